"""Notices fields that the API server dropped, and the feature gates that are to blame. Pure.

What to publish without those gates is decided in `pydra.slices.feature_gates`; what was changed for an unknown reason
is adopted, slice by slice: asking for it again would never end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from pydra.kube.resources import JsonObject
from pydra.slices.build import WantedPool
from pydra.slices.compare import CONTENT, same_content
from pydra.slices.feature_gates import BINDING, LISTS, PARTITIONS, SHARES, TAINTS


class Adoption(msgspec.Struct, frozen=True, kw_only=True):
    """For one slice: what was asked for, and what the server made of it."""

    asked: JsonObject
    stored: JsonObject


def adopt(wanted: WantedPool, adoptions: Mapping[int, Adoption]) -> WantedPool:
    """The pool with what the server made of it, where that was asked for before: asking again would never end."""
    slices = tuple(
        adoptions[index].stored if index in adoptions and adoptions[index].asked == content else content
        for index, content in enumerate(wanted.slices)
    )
    return msgspec.structs.replace(wanted, slices=slices)


def find_adoption(asked: JsonObject, sent: JsonObject, answer: JsonObject) -> Adoption | None:
    """None when the server stored what was sent; `asked` is the slice's content before times were filled in."""
    stored = answer.get("spec") or {}
    if same_content(sent["spec"], stored):
        return None
    return Adoption(asked=asked, stored={field: stored[field] for field in CONTENT if stored.get(field)})


def name_gates(sent: Mapping[str, Any], stored: Mapping[str, Any]) -> tuple[str, ...]:
    """The feature gates that are probably off, by what is in the sent spec and not in the stored; may be empty."""
    gates = set(_compare_slices(sent, stored))
    kept = {device.get("name"): device for device in stored.get("devices") or ()}
    for device in sent.get("devices") or ():
        other = kept.get(device["name"], {})
        gates.update(gate for gate, lost in _DEVICE_GATES.items() if lost(device, other))
    return tuple(sorted(gates))


def _compare_slices(sent: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterator[str]:
    if any(sent.get(field) and not stored.get(field) for field in ("perDeviceNodeSelection", "sharedCounters")):
        yield PARTITIONS
    if sent.get("partitionTypeAttribute") and not stored.get("partitionTypeAttribute"):
        yield "DRAPartitionableDevicesType"
    if sent.get("skipNodeOperations") and not stored.get("skipNodeOperations"):
        yield "DRAOptionalNodeOperations"


def _fewer(field: str) -> Callable[[JsonObject, JsonObject], bool]:
    def lost(sent: JsonObject, stored: JsonObject) -> bool:
        return len(stored.get(field) or ()) < len(sent.get(field) or ())

    return lost


def _lost_binding(sent: JsonObject, stored: JsonObject) -> bool:
    return any(_fewer(field)(sent, stored) for field in ("bindingConditions", "bindingFailureConditions")) or (
        bool(sent.get("bindsToNode")) and not stored.get("bindsToNode")
    )


def _lost_sharing(sent: JsonObject, stored: JsonObject) -> bool:
    policies = [
        name
        for name, capacity in (sent.get("capacity") or {}).items()
        if capacity.get("requestPolicy") and not (stored.get("capacity") or {}).get(name, {}).get("requestPolicy")
    ]
    return bool(policies) or (bool(sent.get("allowMultipleAllocations")) and not stored.get("allowMultipleAllocations"))


_DEVICE_GATES: Mapping[str, Callable[[JsonObject, JsonObject], bool]] = {
    TAINTS: _fewer("taints"),
    PARTITIONS: _fewer("consumesCounters"),
    BINDING: _lost_binding,
    SHARES: _lost_sharing,
    LISTS: _fewer("attributes"),
}
