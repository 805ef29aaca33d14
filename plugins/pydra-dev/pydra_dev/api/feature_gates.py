"""Feature gates: which are on in which release, and what a server with a gate off drops from an object. Pure.

The fields of each gate are marked in `schema`. A field of a disabled gate is dropped on create; on update it is kept
when the stored object already uses the feature. Source: Kubernetes feature gate table,
`pkg/registry/resource/*/strategy.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar, get_args

import msgspec

T = TypeVar("T")
Gates: TypeAlias = Mapping[str, bool]

TAINTS = "DRADeviceTaints"
PARTITIONS = "DRAPartitionableDevices"
SHARES = "DRAConsumableCapacity"
BINDING = "DRADeviceBindingConditions"
LISTS = "DRAListTypeAttributes"
GROUPS = "DRADeviceCompatibilityGroups"
PARTITION_TYPE = "DRAPartitionableDevicesType"
ALLOCATABLE = "DRANodeAllocatableResources"
ADMIN = "DRAAdminAccess"
PRIORITIZED = "DRAPrioritizedList"
EXTENDED = "DRAExtendedResource"
DEVICE_STATUS = "DRAResourceClaimDeviceStatus"

_FIRST_ON = {
    TAINTS: 36,
    PARTITIONS: 36,
    SHARES: 36,
    BINDING: 36,
    EXTENDED: 36,
    LISTS: None,
    ALLOCATABLE: None,
    GROUPS: None,
    PARTITION_TYPE: None,
    ADMIN: 34,
    PRIORITIZED: 34,
    DEVICE_STATUS: 34,
}


_FIRST_KNOWN = {LISTS: 36, ALLOCATABLE: 36, GROUPS: 37, PARTITION_TYPE: 37}
"""Every other gate is known in 1.34."""

_LOCKED = {TAINTS: 38}
"""From which release on a gate cannot be turned off."""


def build_gates(minor: int, overrides: Gates = MappingProxyType({})) -> Gates:
    """The gates of release 1.`minor` by default, then the overrides; raises ValueError for one that is unknown."""
    known = {gate for gate in _FIRST_ON if minor >= _FIRST_KNOWN.get(gate, 0)}
    unknown = sorted(gate for gate in overrides if gate not in known and (overrides[gate] or gate not in _FIRST_ON))
    if unknown:
        raise ValueError(f"unknown feature gates {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    if locked := sorted(gate for gate in overrides if not overrides[gate] and minor >= _LOCKED.get(gate, minor + 1)):
        raise ValueError(f"feature gates {', '.join(locked)} cannot be turned off in 1.{minor}")
    defaults = {gate: first is not None and minor >= first for gate, first in _FIRST_ON.items()}
    return MappingProxyType({**defaults, **overrides})


class Gated(msgspec.Struct, frozen=True):
    """The mark of a field that needs a feature gate, and that the releases 1.`first` to 1.`last` know."""

    gate: str
    first: int = 0
    last: int = 1000


@lru_cache(maxsize=128)
def _find_marks(type_: type[msgspec.Struct]) -> Mapping[str, Gated]:
    """The marks of a type's fields by name."""
    return {
        field.name: mark
        for field in msgspec.structs.fields(type_)
        for mark in getattr(field.type, "__metadata__", ())
        if isinstance(mark, Gated)
    }


@lru_cache(maxsize=128)
def _find_parts(type_: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a type in which there may be other types of the API."""
    return tuple(field.name for field in msgspec.structs.fields(type_) if _has_types(field.type))


def _has_types(annotation: Any) -> bool:
    is_type = isinstance(annotation, type) and issubclass(annotation, msgspec.Struct)
    return is_type or any(map(_has_types, get_args(annotation)))


def drop_disabled(value: T, old: T | None, gates: Gates, minor: int) -> T:
    """What release 1.`minor` reads of a spec or status under these gates; `old` is the stored one of an update."""
    enabled = {gate for gate, is_on in gates.items() if is_on}.union(_find_used(old))

    @lru_cache
    def find_dropped(type_: type[msgspec.Struct]) -> frozenset[str]:
        marks = _find_marks(type_).items()
        return frozenset(
            name for name, mark in marks if mark.gate not in enabled or not mark.first <= minor <= mark.last
        )

    kept: T = _drop(value, find_dropped)
    return kept


def _find_used(value: Any) -> Iterator[str]:
    """The gates of all fields that are set."""
    if isinstance(value, msgspec.Struct):
        yield from (mark.gate for name, mark in _find_marks(type(value)).items() if getattr(value, name))
        for name in _find_parts(type(value)):
            yield from _find_used(getattr(value, name))
    elif isinstance(value, tuple | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _find_used(one)


def _drop(value: Any, find_dropped: Callable[[type[msgspec.Struct]], frozenset[str]]) -> Any:
    if isinstance(value, tuple):
        return tuple([_drop(one, find_dropped) for one in value])
    if isinstance(value, dict):
        return {key: _drop(one, find_dropped) for key, one in value.items()}
    if not isinstance(value, msgspec.Struct):
        return value
    dropped, parts = find_dropped(type(value)), _find_parts(type(value))
    if not parts and all(getattr(value, name) is None for name in dropped):
        return value
    kept = {name: getattr(value, name) for name in value.__struct_fields__ if name not in dropped}
    return type(value)(**kept | {name: _drop(kept[name], find_dropped) for name in parts if name in kept})
