"""The edits of a claim's devices together: who conflicts with whom, and what they share. Pure.

A container may get all devices of a claim, and a runtime lets the last writer win. So every setting
is recorded with the device that made it, and a second device that wants another value is an error
naming both: nothing is decided by the order of devices.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from pydra.cdi.edits import ContainerEdits

ItemT = TypeVar("ItemT", bound=Hashable)
_SHOWN = 120


def normal_edits(edits: ContainerEdits) -> ContainerEdits:
    """The edits in one form: what the order cannot change is sorted, repeated and meaningless entries are gone.

    `optional` has been decided by now and goes; hooks keep their order, and the same hook twice is run once.
    """
    nodes = (
        replace(node, host_path="" if node.host_path == node.path else node.host_path, optional=False)
        for node in edits.device_nodes
    )
    mounts = (replace(mount, optional=False) for mount in edits.mounts)
    return replace(
        edits,
        env=dict(sorted(edits.env.items())),
        device_nodes=_unique(sorted(nodes, key=lambda node: node.path)),
        mounts=_unique(sorted(mounts, key=lambda mount: mount.container_path)),
        hooks=_unique(edits.hooks),
        net_devices=_unique(sorted(edits.net_devices, key=lambda device: device.host_interface_name)),
        additional_gids=tuple(sorted({gid for gid in edits.additional_gids if gid})),
    )


def find_conflicts(owned: Iterable[tuple[str, ContainerEdits]]) -> tuple[str, ...]:
    """Settings that two owners, or one owner twice, give different values; owners are named as given."""
    settled: dict[str, tuple[str, object]] = {}
    conflicts: list[str] = []
    for owner, edits in owned:
        for setting, value in _settings(edits):
            first_owner, first = settled.setdefault(setting, (owner, value))
            if value != first:
                was, wanted = _show_difference(first, value)
                conflicts.append(f"{setting}: {first_owner} sets {was}, {owner} sets {wanted}")
    return tuple(conflicts)


def share_edits(edits: Sequence[ContainerEdits]) -> tuple[ContainerEdits, tuple[ContainerEdits, ...]]:
    """What all of them have in common, and what is left of each.

    The common part goes into the spec's own edits, which a runtime applies once, before those of the
    first device: eight GPUs name their libraries once, and a hook that all want runs once. Hooks are
    shared only as far as all begin with the same ones, since their order matters. Where nothing would
    be left of a device it keeps its own (applying the same twice changes nothing), but for hooks.
    """
    if len(edits) < 2:
        return ContainerEdits(), tuple(edits)
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
    kept = tuple(replace(one, hooks=()) if rest.is_empty else rest for one, rest in zip(edits, left, strict=True))
    if any(one.is_empty for one in kept):
        return ContainerEdits(), tuple(edits)
    return shared, kept


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


def _settings(edits: ContainerEdits) -> Iterator[tuple[str, object]]:
    for name, value in edits.env.items():
        yield f"environment variable {name}", value
    for node in edits.device_nodes:
        yield f"device node {posixpath.normpath(node.path)}", node
    for mount in edits.mounts:
        yield f"mount at {posixpath.normpath(mount.container_path)}", mount
    for device in edits.net_devices:
        yield f"host interface {device.host_interface_name}", device
        yield f"container interface {device.name}", device
    if edits.intel_rdt is not None:
        yield "Intel RDT", edits.intel_rdt


def _show_difference(first: object, second: object) -> tuple[str, str]:
    if not isinstance(first, msgspec.Struct) or not isinstance(second, msgspec.Struct):
        return _clip(json.dumps(first, ensure_ascii=False)), _clip(json.dumps(second, ensure_ascii=False))
    one, other = msgspec.to_builtins(first), msgspec.to_builtins(second)
    fields = [field for field in one if one[field] != other[field]]
    return _show_fields(one, fields), _show_fields(other, fields)


def _show_fields(values: Mapping[str, object], fields: Sequence[str]) -> str:
    return _clip(" ".join(f"{field}={json.dumps(values[field], ensure_ascii=False)}" for field in fields))


def _clip(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _unique(items: Iterable[ItemT]) -> tuple[ItemT, ...]:
    return tuple(dict.fromkeys(items))


def _in_all(items: Sequence[ItemT], others: Iterable[Sequence[ItemT]]) -> tuple[ItemT, ...]:
    everywhere = set(items).intersection(*others)
    return tuple(item for item in items if item in everywhere)


def _not_in(items: Sequence[ItemT], taken: Sequence[ItemT]) -> tuple[ItemT, ...]:
    gone = set(taken)
    return tuple(item for item in items if item not in gone)


def _common_beginning(items: Sequence[ItemT], others: Sequence[Sequence[ItemT]]) -> tuple[ItemT, ...]:
    same = takewhile(lambda column: all(one == column[0] for one in column), zip(items, *others, strict=False))
    return tuple(column[0] for column in same)
