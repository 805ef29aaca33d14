"""Applying CDI devices to a container's OCI runtime configuration, as runtimes do.

Pure, but for the one function that looks at a device node of the host, which is an argument.

Only the parts of the configuration that CDI can change are modelled. Source: CDI specification
1.1.0, OCI runtime specification 1.2, cdi `pkg/cdi/container-edits.go`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from pydra_dev.container_runtime.cdi_specs import DeviceNode, Edits, Hook, IntelRdt, Mount, NetDevice, Registry

DEFAULT_ACCESS = "rwm"
ItemT = TypeVar("ItemT")


class OciDevice(msgspec.Struct, frozen=True, kw_only=True):
    """`linux.devices[]`, with the cgroup access of `linux.resources.devices[]`."""

    path: str
    type: str
    major: int
    minor: int
    file_mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    access: str = DEFAULT_ACCESS


StatNode = Callable[[str], OciDevice]
"""The device node at a path of the host; raises OSError when there is none, ValueError for another kind of file."""


class OciSpec(msgspec.Struct, frozen=True, kw_only=True):
    """`process`, `mounts`, `hooks` and `linux` of a runtime configuration, as far as devices go.

    `replaced_env`, which runtimes do not have, is what variables were before another CDI device set them differently.
    """

    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    replaced_env: Mapping[str, str] = {}
    uid: int = 0
    gid: int = 0
    additional_gids: tuple[int, ...] = ()
    mounts: tuple[Mount, ...] = ()
    devices: tuple[OciDevice, ...] = ()
    hooks: tuple[Hook, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    intel_rdt: IntelRdt | None = None


class InjectionError(Exception):
    """The runtime refuses to create the container."""


def inject_devices(oci: OciSpec, ids: Sequence[str], registry: Registry, stat_node: StatNode) -> OciSpec:
    """The configuration with the CDI devices of these qualified names; raises InjectionError.

    A spec's own edits come once, before those of the first of its devices.
    """
    if unknown := [name for name in ids if name not in registry.devices]:
        raise InjectionError(f"unresolvable CDI devices {', '.join(unknown)}{_reasons(registry)}")
    applied: set[str] = set()
    set_by: dict[str, tuple[str, str]] = {}
    replaced: dict[str, str] = {}
    for name in ids:
        found = registry.devices[name]
        edits = [found.device.container_edits]
        if found.file not in applied:
            applied.add(found.file)
            edits.insert(0, found.spec.container_edits)
        for one in edits:
            oci = apply_edits(oci, one, stat_node)
        own = dict(text.split("=", 1) for one in edits for text in one.env)
        for variable, value in own.items():
            other, before = set_by.get(variable, (name, value))
            if before != value:
                replaced[variable] = f"{variable}={before} of {other}"
            set_by[variable] = (name, value)
    return msgspec.structs.replace(oci, replaced_env=replaced)


def apply_edits(oci: OciSpec, edits: Edits, stat_node: StatNode) -> OciSpec:
    """One set of edits: what has the same variable, path or destination is replaced, the rest appended."""
    env = _by_key(oci.env, edits.env, lambda variable: variable.partition("=")[0])
    devices = _by_key(
        oci.devices, (_device(node, oci, stat_node) for node in edits.device_nodes), lambda device: device.path
    )
    mounts = _by_key(oci.mounts, edits.mounts, lambda mount: mount.container_path)
    if edits.mounts:  # parents before what is mounted below them
        mounts = tuple(sorted(mounts, key=lambda mount: mount.container_path.rstrip("/").count("/")))
    gids = (gid for gid in edits.additional_gids if gid)
    return msgspec.structs.replace(
        oci,
        env=env,
        devices=devices,
        mounts=mounts,
        hooks=oci.hooks + edits.hooks,
        net_devices=_by_key(oci.net_devices, edits.net_devices, lambda device: device.host_interface_name),
        intel_rdt=edits.intel_rdt or oci.intel_rdt,
        additional_gids=tuple(dict.fromkeys((*oci.additional_gids, *gids))),
    )


def stat_host_node(path: str) -> OciDevice:
    """What the host has at `path`; raises OSError, and ValueError for anything but a device node, such as a link."""
    found = os.lstat(path)
    kind = {stat.S_IFCHR: "c", stat.S_IFBLK: "b", stat.S_IFIFO: "p"}.get(stat.S_IFMT(found.st_mode))
    if kind is None:
        raise ValueError(f"{path} is not a device node")
    return OciDevice(
        path=path,
        type=kind,
        major=os.major(found.st_rdev),
        minor=os.minor(found.st_rdev),
        file_mode=stat.S_IMODE(found.st_mode),
    )


def _device(node: DeviceNode, oci: OciSpec, stat_node: StatNode) -> OciDevice:
    """The node with what the spec leaves open taken from the host and from the container's user."""
    type_: str = node.type
    major, minor, file_mode = node.major, node.minor, node.file_mode
    if not type_ or (not major and type_ != "p"):
        source = node.host_path or node.path
        try:
            host = stat_node(source)
        except (OSError, ValueError) as error:
            raise InjectionError(f"CDI device node {node.path}: cannot use {source} of the host: {error}") from error
        if type_ and type_ != host.type:
            raise InjectionError(f"CDI device node {node.path}: type is {type_}, that of {source} is {host.type}")
        type_, major, minor = host.type, major or host.major, minor or host.minor
        file_mode = host.file_mode if file_mode is None else file_mode
    access = "" if node.permissions == "none" else node.permissions or DEFAULT_ACCESS
    return OciDevice(
        path=node.path,
        type=type_,
        major=major,
        minor=minor,
        file_mode=file_mode,
        uid=oci.uid or None if node.uid is None else node.uid,
        gid=oci.gid or None if node.gid is None else node.gid,
        access=access,
    )


def _by_key(old: Iterable[ItemT], new: Iterable[ItemT], key: Callable[[ItemT], str]) -> tuple[ItemT, ...]:
    """All items; a new one stands in the place of an old one with the same key."""
    return tuple({key(item): item for item in (*old, *new)}.values())


def _reasons(registry: Registry) -> str:
    reasons = "; ".join(f"{file}: {error}" for file, error in registry.errors.items())
    return f" ({reasons})" if reasons else ""
