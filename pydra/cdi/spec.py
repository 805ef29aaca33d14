"""Builds the CDI spec file for a claim: names, rules, merging, JSON.

One spec per claim, one CDI device per prepared device that edits anything. Every name contains the claim's
uid, so no name is ever reused with other content; runtimes cache specs and would serve the old one.

A container may get all devices of a claim, and in a runtime the last setting wins. So each setting is
recorded with the device that made it, and a second device with another value is an error that
names both: the order of devices never decides. A backend may say that a request is for a container of its own;
then only the devices that this container gets are compared.

Source: CDI specification 1.1.0. `edit_rules` has what runtimes refuse.
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

from pydra.cdi.edit_rules import find_edit_problems
from pydra.cdi.edits import ContainerEdits, DeviceNode, Mount, NetDevice
from pydra.claim import PreparedDevice
from pydra.errors import ContractError, EditConflict
from pydra.message_text import cut

CLASS = "claim"

ItemT = TypeVar("ItemT", bound=Hashable)
_NOTHING = ContainerEdits()
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
