"""Value types for CDI container edits, with builder methods.

    edits = (
        ContainerEdits()
        .with_env("ACME_VISIBLE", "0")
        .with_device_node("/dev/acme0")
        .with_mount("/usr/lib/libacme.so.1", options=("ro", "nosuid", "nodev", "rbind"))
    )

The rules of the fields and the file format are in `pydra.cdi.spec`. Source: CDI specification 1.1.0, containerEdits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

DEFAULT_MOUNT_OPTIONS = ("ro", "nosuid", "nodev", "bind")
BIND_TYPES = ("", "bind", "none")
"""Types of mounts whose source is a path of the host, not the name of a file system such as tmpfs."""


class DeviceNode(msgspec.Struct, frozen=True, kw_only=True):
    """A device node in the container at `path`, taken from `host_path` (default: the same path) on the node.

    `optional` says that the node may be absent on the host: it is then left out instead of failing the claim.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None
    optional: bool = False


class Mount(msgspec.Struct, frozen=True, kw_only=True):
    """`host_path` of the node, seen in the container at `container_path`; read-only unless `options` say otherwise."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = DEFAULT_MOUNT_OPTIONS
    type: str = ""
    optional: bool = False


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """A program that the runtime runs; `timeout` in seconds, 0 for none."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int = 0


class NetDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface moved into the container and renamed."""

    host_interface_name: str
    name: str


class IntelRdt(msgspec.Struct, frozen=True, kw_only=True):
    """Intel Resource Director Technology settings."""

    clos_id: str = ""
    l3_cache_schema: str = ""
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False


class ContainerEdits(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that changes in a container; the methods return a new value with one thing more."""

    env: Mapping[str, str] = {}
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    net_devices: tuple[NetDevice, ...] = ()
    intel_rdt: IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()

    def with_env(self, name: str, value: str) -> ContainerEdits:
        """Set the environment variable `name`; a former value in these edits is replaced."""
        return replace(self, env={**self.env, name: value})

    def with_device_node(
        self,
        path: str,
        *,
        host_path: str = "",
        type: str = "",  # noqa: A002 - the specification's word
        major: int | None = None,
        minor: int | None = None,
        file_mode: int | None = None,
        permissions: str = "",
        uid: int | None = None,
        gid: int | None = None,
        optional: bool = False,
    ) -> ContainerEdits:
        """Add a device node; what is not given is taken from the host's node."""
        node = DeviceNode(
            path=path,
            host_path=host_path,
            type=type,
            major=major,
            minor=minor,
            file_mode=file_mode,
            permissions=permissions,
            uid=uid,
            gid=gid,
            optional=optional,
        )
        return replace(self, device_nodes=(*self.device_nodes, node))

    def with_mount(
        self,
        host_path: str,
        container_path: str = "",
        *,
        options: Sequence[str] = DEFAULT_MOUNT_OPTIONS,
        type: str = "",  # noqa: A002 - the specification's word
        optional: bool = False,
    ) -> ContainerEdits:
        """Mount a file or directory of the host at `container_path` (default: the same path)."""
        mount = Mount(
            host_path=host_path,
            container_path=container_path or host_path,
            options=tuple(options),
            type=type,
            optional=optional,
        )
        return replace(self, mounts=(*self.mounts, mount))

    def with_hook(
        self, hook_name: str, path: str, *, args: Sequence[str] = (), env: Sequence[str] = (), timeout: int = 0
    ) -> ContainerEdits:
        """Add a hook: the host's program at `path` runs at `hook_name`; `args` begins with the program's name."""
        hook = Hook(hook_name=hook_name, path=path, args=tuple(args), env=tuple(env), timeout=timeout)
        return replace(self, hooks=(*self.hooks, hook))

    def with_net_device(self, host_interface_name: str, name: str) -> ContainerEdits:
        """Move a network interface of the host into the container as `name`."""
        device = NetDevice(host_interface_name=host_interface_name, name=name)
        return replace(self, net_devices=(*self.net_devices, device))

    def with_intel_rdt(
        self,
        *,
        clos_id: str = "",
        l3_cache_schema: str = "",
        mem_bw_schema: str = "",
        schemata: Sequence[str] = (),
        enable_monitoring: bool = False,
    ) -> ContainerEdits:
        """Resource Director Technology settings, in place of those given before."""
        settings = IntelRdt(
            clos_id=clos_id,
            l3_cache_schema=l3_cache_schema,
            mem_bw_schema=mem_bw_schema,
            schemata=tuple(schemata),
            enable_monitoring=enable_monitoring,
        )
        return replace(self, intel_rdt=settings)

    def with_additional_gids(self, *gids: int) -> ContainerEdits:
        """Further groups for the container's process."""
        return replace(self, additional_gids=(*self.additional_gids, *gids))
