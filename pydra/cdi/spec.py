"""Builds the CDI spec file for a claim: names, rules, merging, JSON.

One spec per claim, one CDI device per prepared device that edits anything. Every name contains the claim's
uid, so no name is ever reused with other content; runtimes cache specs and would serve the old one.

A container may get all devices of a claim, and in a runtime the last setting wins. So each setting is
recorded with the device that made it, and a second device with another value is an error that
names both: the order of devices never decides. A backend may say that a request is for a container of its own;
then only the devices that this container gets are compared.

Source: CDI specification 1.1.0, and the rules that its Go library enforces in every runtime. Stricter on
purpose where a container would fail later anyway: paths are absolute, and no string contains a NUL byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from operator import attrgetter, itemgetter
from posixpath import normpath
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from pydra.cdi.edits import BIND_TYPES, ContainerEdits, DeviceNode, Hook, Mount, NetDevice
from pydra.claim import PreparedDevice
from pydra.errors import ContractError, EditConflict
from pydra.foreign_text import cut

CLASS = "claim"
HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
NODE_TYPES = ("", "b", "c", "u", "p")

ItemT = TypeVar("ItemT", bound=Hashable)
_NOTHING = ContainerEdits()
_UINT32 = 2**32 - 1
_INT64 = 2**63 - 1
_SHOWN = 120

_path_of_node: Callable[[DeviceNode], str] = attrgetter("path")
_path_of_mount: Callable[[Mount], str] = attrgetter("container_path")
_required: Callable[[Mount], Mount] = partial(replace, optional=False)
_interface_of: Callable[[NetDevice], str] = attrgetter("host_interface_name")


def cdi_vendor(driver: str) -> str:
    """Return the vendor in a CDI kind: the driver's name, after `k8s.` if it begins with a digit."""
    return driver if driver[:1].isalpha() else f"k8s.{driver}"


class ClaimSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A claim's CDI file, and the CDI ids of its prepared devices for the kubelet, in their order.

    `content` is None when no device edits anything. A device without edits has no ids, since CDI forbids empty devices.
    An id is `<vendor>/claim=<claim uid>:<base request>:<device>[:<share id>]`.
    """

    content: bytes | None
    ids: tuple[tuple[str, ...], ...]


def build_spec(driver: str, uid: str, prepared: Sequence[PreparedDevice]) -> ClaimSpec:
    """Build the claim's CDI file, and name its CDI devices.

    The order of `prepared` does not matter for the content. It has passed `pydra.cdi.host_path_checks`, so nothing
    optional is in it that the host lacks. The same devices always give the same bytes.

    Raises:
        EditConflict: two devices set the same thing to different values; names both.
        ContractError: the backend's edits violate CDI's rules; all violations.
    """
    kind = f"{cdi_vendor(driver)}/{CLASS}"
    ids: list[tuple[str, ...]] = []
    editing: list[tuple[str, str, ContainerEdits, str]] = []
    violations: list[str] = []
    for one in prepared:
        normal = _normal_edits(one.edits)
        if normal == _NOTHING:
            ids.append(())
            continue
        request = one.request.partition("/")[0]
        name = f"{uid}:{request}:{one.device}{'' if one.share_id is None else f':{one.share_id}'}"
        ids.append((f"{kind}={name}",))
        owner = f"device {one.device} (request {one.request})"
        for problem in find_edit_problems(one.edits):
            violations.append(f"{owner}: {problem}")
        editing.append((name, owner, normal, request if one.own_container else ""))
    if not editing:
        return ClaimSpec(content=None, ids=tuple(ids))
    editing.sort(key=itemgetter(0))
    names, owners, edits, alone = zip(*editing, strict=True)
    if len(set(names)) < len(names):
        violations.append(f"a device was prepared twice; the CDI devices would be {', '.join(names)}")
    if violations:
        raise ContractError(driver, violations)
    conflicts: dict[str, None] = {}
    for request in dict.fromkeys(alone):  # a container has one of these beside what has no container of its own
        beside = zip(owners, edits, alone, strict=True)
        owned = [(owner, own) for owner, own, of in beside if of in ("", request)]
        conflicts |= dict.fromkeys(_find_conflicts(owned))
    if conflicts:
        raise EditConflict(*conflicts)
    shared, kept = (_NOTHING, edits) if len(edits) == 1 else _share_edits(edits)
    devices: list[_Device] = []
    for name, own in zip(names, kept, strict=True):
        devices.append(_Device(name=name, container_edits=_build_edits(own)))
    document = SpecDocument(
        cdi_version=find_lowest_version(names, edits),
        kind=kind,
        devices=tuple(devices),
        container_edits=None if shared == _NOTHING else _build_edits(shared),
    )
    content = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
    return ClaimSpec(content=content, ids=tuple(ids))


# Rules


def find_edit_problems(edits: ContainerEdits) -> list[str]:
    """Return every problem that makes a runtime refuse the edits, each with its place."""
    problems: list[str] = []
    for name in edits.env:
        if not name or "=" in name:
            problems.append(f"env: {name!r} is not a valid name of an environment variable")
    parts: tuple[tuple[str, Sequence[Any], Callable[[Any], list[str]]], ...] = (
        ("deviceNodes", edits.device_nodes, _find_node_problems),
        ("mounts", edits.mounts, _find_mount_problems),
        ("hooks", edits.hooks, _find_hook_problems),
    )
    for field, items, find_problems in parts:
        for index, item in enumerate(items):
            for problem in find_problems(item):
                problems.append(f"{field}[{index}].{problem}")
    if edits.net_devices:
        problems += _find_net_device_problems(edits.net_devices)
    if edits.intel_rdt is not None or edits.additional_gids:
        problems += _find_process_problems(edits)
    # JSON escapes a NUL byte, so nearly always this is one search; a backslash in a text may look like one.
    if b"u0000" in msgspec.json.encode(edits) and _has_nul(msgspec.to_builtins(edits)):
        problems.append("a text holds a NUL byte, which no path, variable or argument can")
    return problems


def _find_node_problems(node: DeviceNode) -> list[str]:
    problems: list[str] = []
    if not node.path.startswith("/"):
        problems.append(f"path: {node.path!r} must be an absolute path")
    if node.host_path and not node.host_path.startswith("/"):
        problems.append(f"hostPath: {node.host_path!r} must be an absolute path")
    if node.type not in NODE_TYPES:
        problems.append(f"type: {node.type!r} must be one of {', '.join(NODE_TYPES[1:])}, or empty")
    if node.permissions != "none" and node.permissions.strip("rwm"):
        problems.append(f"permissions: {node.permissions!r} must be made of r, w and m, or be 'none'")
    for field, value, least, most in (
        ("major", node.major, -_INT64 - 1, _INT64),
        ("minor", node.minor, -_INT64 - 1, _INT64),
        ("fileMode", node.file_mode, 0, _UINT32),
        ("uid", node.uid, 0, _UINT32),
        ("gid", node.gid, 0, _UINT32),
    ):
        if value is not None and not least <= value <= most:
            problems.append(f"{field}: {value} must be between {least} and {most}")
    return problems


def _find_mount_problems(mount: Mount) -> list[str]:
    problems: list[str] = []
    if not mount.container_path.startswith("/"):
        problems.append(f"containerPath: {mount.container_path!r} must be an absolute path")
    if mount.type in BIND_TYPES and not mount.host_path.startswith("/"):
        problems.append(f"hostPath: {mount.host_path!r} must be an absolute path")
    elif not mount.host_path:
        problems.append("hostPath: must not be empty; a mount needs a source")
    return problems


def _find_hook_problems(hook: Hook) -> list[str]:
    problems: list[str] = []
    if hook.hook_name not in HOOK_NAMES:
        problems.append(f"hookName: {hook.hook_name!r} must be one of {', '.join(HOOK_NAMES)}")
    if not hook.path.startswith("/"):
        problems.append(f"path: {hook.path!r} must be an absolute path")
    problems += [f"env: {one[:100]!r} must be NAME=VALUE" for one in hook.env if one.find("=") < 1]
    if not 0 <= hook.timeout <= _UINT32:
        problems.append(f"timeout: {hook.timeout} must be between 0 and {_UINT32}")
    return problems


def _find_net_device_problems(devices: Sequence[NetDevice]) -> list[str]:
    problems: list[str] = []
    for field, names in (
        ("hostInterfaceName", [one.host_interface_name for one in devices]),
        ("name", [one.name for one in devices]),
    ):
        problems += [f"netDevices[{index}].{field}: must not be empty" for index, one in enumerate(names) if not one]
        problems += [
            f"netDevices: {names.count(one)} entries have the {field} {one!r}"
            for one in dict.fromkeys(names)
            if one and names.count(one) > 1
        ]
    return problems


def _find_process_problems(edits: ContainerEdits) -> list[str]:
    problems = [
        f"additionalGids: {gid} must be between 0 and {_UINT32}"
        for gid in edits.additional_gids
        if not 0 <= gid <= _UINT32
    ]
    name = "" if edits.intel_rdt is None else edits.intel_rdt.clos_id
    if name != "/" and (len(name.encode()) >= 4096 or name in (".", "..") or "/" in name or "\n" in name):
        problems.append(f"intelRdt.closID: {name[:100]!r} must be '/' or the name of one directory")
    return problems


def _has_nul(value: object) -> bool:
    match value:
        case str():
            return "\0" in value
        case dict():
            return any(_has_nul(key) or _has_nul(item) for key, item in value.items())
        case list() | tuple():
            return any(map(_has_nul, value))
        case _:
            return False


# Merging


def _normal_edits(edits: ContainerEdits) -> ContainerEdits:
    """Normalise the edits: sort what does not depend on order, remove repeated and meaningless entries.

    `optional` has been decided by now and goes; hooks keep their order, and the same hook twice is run once.
    Group 0 counts as nothing, as in the specification.
    """
    nodes: list[DeviceNode] = []
    for node in edits.device_nodes:
        host_path = "" if node.host_path == node.path else node.host_path
        nodes.append(replace(node, host_path=host_path, optional=False))
    mounts = map(_required, edits.mounts)
    return replace(
        edits,
        env=dict(sorted(edits.env.items())),
        device_nodes=tuple(dict.fromkeys(sorted(nodes, key=_path_of_node))),
        mounts=tuple(dict.fromkeys(sorted(mounts, key=_path_of_mount))),
        hooks=tuple(dict.fromkeys(edits.hooks)),
        net_devices=tuple(dict.fromkeys(sorted(edits.net_devices, key=_interface_of))),
        additional_gids=tuple(sorted({*edits.additional_gids} - {0})),
    )


def _find_conflicts(owned: Iterable[tuple[str, ContainerEdits]]) -> tuple[str, ...]:
    """Settings that two owners, or one owner twice, give different values; owners are named as given."""
    made: dict[str, tuple[str, object]] = {}
    conflicts: list[str] = []
    for owner, edits in owned:
        settings: list[tuple[str, object]] = []
        for name, value in edits.env.items():
            settings.append((f"environment variable {name}", value))
        for node in edits.device_nodes:
            settings.append((f"device node {normpath(node.path)}", node))
        for mount in edits.mounts:
            settings.append((f"mount at {normpath(mount.container_path)}", mount))
        for device in edits.net_devices:
            settings.append((f"host interface {device.host_interface_name}", device))
            settings.append((f"container interface {device.name}", device))
        if edits.intel_rdt is not None:
            settings.append(("Intel RDT", edits.intel_rdt))
        for setting, wanted in settings:
            first_owner, first = made.setdefault(setting, (owner, wanted))
            if wanted != first:
                one, other = _show_difference(first, wanted)
                conflicts.append(f"{setting}: {first_owner} sets {one}, {owner} sets {other}")
    return tuple(conflicts)


def _share_edits(edits: Sequence[ContainerEdits]) -> tuple[ContainerEdits, tuple[ContainerEdits, ...]]:
    """Split the edits of several devices into the common part and the rest of each.

    The common part goes into the spec's own edits, which a runtime applies once, before those of the
    first device: eight GPUs name their libraries once, and a hook that all want runs once. Hooks are
    shared only as far as all begin with the same ones, since their order matters. Where nothing would
    be left of a device it keeps its own (applying the same twice changes nothing), except for hooks.
    """
    first, *others = edits
    shared = ContainerEdits(
        env=dict(item for item in first.env.items() if all(item in other.env.items() for other in others)),
        device_nodes=_in_all(first.device_nodes, [other.device_nodes for other in others]),
        mounts=_in_all(first.mounts, [other.mounts for other in others]),
        hooks=_common_beginning(first.hooks, [other.hooks for other in others]),
        net_devices=_in_all(first.net_devices, [other.net_devices for other in others]),
        intel_rdt=first.intel_rdt if all(other.intel_rdt == first.intel_rdt for other in others) else None,
        additional_gids=_in_all(first.additional_gids, [other.additional_gids for other in others]),
    )
    left = tuple(_without(one, shared) for one in edits)
    kept = tuple(replace(one, hooks=()) if rest == _NOTHING else rest for one, rest in zip(edits, left, strict=True))
    return (_NOTHING, tuple(edits)) if _NOTHING in kept else (shared, kept)


def _without(edits: ContainerEdits, shared: ContainerEdits) -> ContainerEdits:
    return ContainerEdits(
        env={name: value for name, value in edits.env.items() if name not in shared.env},
        device_nodes=_not_in(edits.device_nodes, shared.device_nodes),
        mounts=_not_in(edits.mounts, shared.mounts),
        hooks=edits.hooks[len(shared.hooks) :],
        net_devices=_not_in(edits.net_devices, shared.net_devices),
        intel_rdt=None if shared.intel_rdt is not None else edits.intel_rdt,
        additional_gids=_not_in(edits.additional_gids, shared.additional_gids),
    )


def _show_difference(first: object, second: object) -> tuple[str, str]:
    if not isinstance(first, msgspec.Struct) or not isinstance(second, msgspec.Struct):
        return cut(json.dumps(first, ensure_ascii=False), _SHOWN), cut(json.dumps(second, ensure_ascii=False), _SHOWN)
    one, other = msgspec.to_builtins(first), msgspec.to_builtins(second)
    fields = [field for field in one if one[field] != other[field]]
    return _show_fields(one, fields), _show_fields(other, fields)


def _show_fields(values: Mapping[str, object], fields: Sequence[str]) -> str:
    shown = " ".join(f"{field}={json.dumps(values[field], ensure_ascii=False)}" for field in fields)
    return cut(shown, _SHOWN)


def _in_all(items: Sequence[ItemT], others: Iterable[Sequence[ItemT]]) -> tuple[ItemT, ...]:
    everywhere = set(items).intersection(*others)
    return tuple(item for item in items if item in everywhere)


def _not_in(items: Sequence[ItemT], taken: Sequence[ItemT]) -> tuple[ItemT, ...]:
    gone = set(taken)
    return tuple(item for item in items if item not in gone)


def _common_beginning(items: Sequence[ItemT], others: Sequence[Sequence[ItemT]]) -> tuple[ItemT, ...]:
    same = takewhile(lambda column: all(one == column[0] for one in column), zip(items, *others, strict=False))
    return tuple(column[0] for column in same)


# The file


def find_lowest_version(names: Iterable[str], edits: Iterable[ContainerEdits]) -> str:
    """Return the lowest CDI version with everything that the devices use: runtimes refuse unknown versions."""
    version = "0.3.0"
    for name in names:
        if name[0].isdigit():
            version = "0.5.0"
    for one in edits:
        rdt = one.intel_rdt
        if one.net_devices or (rdt is not None and (rdt.schemata or rdt.enable_monitoring)):
            return "1.1.0"
        if rdt is not None or one.additional_gids:
            version = "0.7.0"
        for node in one.device_nodes:
            if node.host_path:
                version = max(version, "0.5.0")
        for mount in one.mounts:
            if mount.type:
                version = max(version, "0.4.0")
    return version


class _Json(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename="camel"):
    """The specification's own names; defaults are left out. Runtimes refuse a file with any other field."""


class _DeviceNode(_Json, frozen=True, kw_only=True):
    path: str
    host_path: str = ""
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class _Mount(_Json, frozen=True, kw_only=True):
    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class _Hook(_Json, frozen=True, kw_only=True):
    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int = 0


class _NetDevice(_Json, frozen=True, kw_only=True):
    host_interface_name: str
    name: str


class _IntelRdt(_Json, frozen=True, kw_only=True):
    clos_id: str = msgspec.field(default="", name="closID")
    l3_cache_schema: str = msgspec.field(default="", name="l3CacheSchema")
    mem_bw_schema: str = ""
    schemata: tuple[str, ...] = ()
    enable_monitoring: bool = False
    # Of versions before 1.1.0: other drivers may write them, pydra does not.
    enable_cmt: bool = msgspec.field(default=False, name="enableCMT")
    enable_mbm: bool = msgspec.field(default=False, name="enableMBM")


class EditsDocument(_Json, frozen=True, kw_only=True):
    """Edits as they are in a file."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[_DeviceNode, ...] = ()
    net_devices: tuple[_NetDevice, ...] = ()
    hooks: tuple[_Hook, ...] = ()
    mounts: tuple[_Mount, ...] = ()
    intel_rdt: _IntelRdt | None = None
    additional_gids: tuple[int, ...] = ()


class _Device(_Json, frozen=True, kw_only=True):
    name: str
    annotations: Mapping[str, str] = {}
    container_edits: EditsDocument


class SpecDocument(_Json, frozen=True, kw_only=True):
    """A whole file."""

    cdi_version: str
    kind: str
    annotations: Mapping[str, str] = {}
    devices: tuple[_Device, ...]
    container_edits: EditsDocument | None = None


def _build_edits(edits: ContainerEdits) -> EditsDocument:
    variables: Any = tuple(map("=".join, edits.env.items()))
    return msgspec.convert(replace(edits, env=variables), EditsDocument, from_attributes=True)
