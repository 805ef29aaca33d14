"""Feature gates: which are on in which release, and what a server with a gate off drops from an object. Pure.

The fields of each gate are marked in `schema`. A field of a disabled gate is dropped on create; on update it is kept
when the stored object already uses the feature. Source: Kubernetes feature gate table,
`pkg/registry/resource/*/strategy.go`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

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


def drop_disabled(value: T, old: T | None, gates: Gates, minor: int) -> T:
    """What release 1.`minor` reads of a spec or status under these gates; `old` is the stored one of an update."""
    enabled = {gate for gate, is_on in gates.items() if is_on}.union(_find_used(old))
    kept: T = _select(value, lambda mark: mark.gate in enabled and mark.first <= minor <= mark.last)
    return kept


def _find_used(value: Any) -> Iterator[str]:
    """The gates of all fields that are set."""
    marks = _find_marks(type(value)) if isinstance(value, msgspec.Struct) else {}
    yield from (mark.gate for name, mark in marks.items() if getattr(value, name))
    for part in _list_parts(value):
        yield from _find_used(part)


def _list_parts(value: Any) -> tuple[Any, ...]:
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.astuple(value)
    return tuple(value.values()) if isinstance(value, dict) else value if isinstance(value, tuple) else ()


def _select(value: Any, is_kept: Callable[[Gated], bool]) -> Any:
    """The value without fields whose marks are not kept."""
    if isinstance(value, tuple):
        return tuple(_select(one, is_kept) for one in value)
    if isinstance(value, dict):
        return {key: _select(one, is_kept) for key, one in value.items()}
    if not isinstance(value, msgspec.Struct):
        return value
    marks = _find_marks(type(value))
    names = [name for name in value.__struct_fields__ if name not in marks or is_kept(marks[name])]
    return type(value)(**{name: _select(getattr(value, name), is_kept) for name in names})
