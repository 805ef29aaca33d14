"""Converts a pool to ResourceSlice JSON.

Deterministic: the content of each slice, and the index in its name. Quantities and times are in the form in which the
API server stores them, so that what is stored can be compared with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import msgspec

from pydra.devices import (
    AttributeValue,
    Capacity,
    CapacityRange,
    CounterConsumption,
    CounterSet,
    Device,
    NodeAllocatable,
    Pool,
    Quantity,
    RequestPolicy,
    Scalar,
    Taint,
    Version,
)
from pydra.kube.api_resources import JsonObject
from pydra.quantity import canonical_quantity

SLICE_DEVICES = 128
SLICE_ADVANCED_DEVICES = 64
"""Devices in a slice where at least one has taints, consumes counters or has a list attribute."""
SLICE_COUNTER_SETS = 8
SLICE_BYTES = 1_000_000
"""Devices' JSON in a slice: etcd takes 1.5 MiB a request, and stores less than JSON."""

INDEX_WIDTH = 5
GENERATED_BASE = 58
"""Bytes of a `generateName` that the API server keeps."""


class WantedPool(msgspec.Struct, frozen=True, kw_only=True):
    """A driver's pool as it should be in the API.

    `slices` has the content of each spec, besides driver, node and pool.
    """

    driver: str
    name: str
    node: str
    slices: tuple[JsonObject, ...]


def build_wanted(pool: Pool, *, driver: str, node: str) -> WantedPool:
    """Build the slices of a node's pool: counter sets first, in their own slices; one empty slice if there are none."""
    sets, most = pool.counter_sets, SLICE_COUNTER_SETS
    slices: list[JsonObject] = [
        {"sharedCounters": list(map(build_counter_set, sets[start : start + most]))}
        for start in range(0, len(sets), most)
    ]
    for group in split(pool.devices, has_mappings=pool.has_mappings):
        is_typed = pool.partition_type and any("consumesCounters" in device for device in group)
        kind = {"partitionTypeAttribute": qualify(pool.partition_type, driver)} if is_typed else {}
        slices.append({"devices": list(group), **kind})
    return WantedPool(driver=driver, name=pool.name, node=node, slices=tuple(slices) or ({"devices": []},))


def qualify(name: str, driver: str) -> str:
    """Return the name with its domain, which is the driver's if it has none."""
    return name if "/" in name else f"{driver}/{name}"


def split(devices: tuple[Device, ...], *, has_mappings: bool = False) -> Iterator[tuple[JsonObject, ...]]:
    """Yield the devices' JSON in their order, in groups that fit into a slice."""
    group: list[JsonObject] = []
    size, advanced = 0, False
    for device in devices:
        body = build_device(device, has_mappings=has_mappings)
        length = len(msgspec.json.encode(body))
        limit = SLICE_ADVANCED_DEVICES if advanced or is_advanced(device) else SLICE_DEVICES
        if group and (len(group) >= limit or size + length > SLICE_BYTES):
            yield tuple(group)
            group, size, advanced = [], 0, False
        group.append(body)
        size += length
        advanced = advanced or is_advanced(device)
    if group:
        yield tuple(group)


def is_advanced(device: Device) -> bool:
    """Return whether a slice with this device may have only 64 devices."""
    lists = any(isinstance(value, tuple) for value in device.attributes.values())
    return bool(device.taints or device.consumes_counters or lists)


def build_counter_set(counter_set: CounterSet) -> JsonObject:
    """Build a CounterSet."""
    return {"name": counter_set.name, "counters": _build_amounts(counter_set.counters)}


def build_device(device: Device, *, has_mappings: bool = False) -> JsonObject:
    """Build a Device: sorted names, canonical quantities, no empty fields.

    With `has_mappings`, what it uses of the node is in the field of Kubernetes 1.36.
    """
    field = "nodeAllocatableResourceMappings" if has_mappings else "nodeAllocatableResources"
    build = _build_mapping if has_mappings else _build_node_allocatable
    body: JsonObject = {
        "name": device.name,
        "attributes": build_attributes(device.attributes),
        "capacity": {name: _build_capacity(value) for name, value in sorted(device.capacity.items())},
        "consumesCounters": [_build_consumption(one) for one in device.consumes_counters],
        "taints": [_build_taint(taint) for taint in device.taints],
        "bindsToNode": device.binds_to_node,
        "bindingConditions": list(device.binding_conditions),
        "bindingFailureConditions": list(device.binding_failure_conditions),
        "allowMultipleAllocations": device.allow_multiple_allocations,
        field: {name: build(one) for name, one in sorted(device.node_allocatable.items())},
    }
    return {name: value for name, value in body.items() if value}


def build_attributes(attributes: Mapping[str, AttributeValue]) -> JsonObject:
    """Build a Device's attributes, sorted by name."""
    return {name: _build_attribute(value) for name, value in sorted(attributes.items())}


def _build_amounts(counters: Mapping[str, Quantity]) -> JsonObject:
    return {name: {"value": canonical_quantity(value)} for name, value in sorted(counters.items())}


def _build_consumption(consumption: CounterConsumption) -> JsonObject:
    body: JsonObject = {"counterSet": consumption.counter_set, "counters": _build_amounts(consumption.counters)}
    if consumption.compatibility_groups:
        body["compatibilityGroups"] = list(consumption.compatibility_groups)
    return body


def _build_attribute(value: AttributeValue) -> JsonObject:
    if isinstance(value, tuple):
        return {f"{_kind(value[0])}s": [_build_scalar(element) for element in value]}
    return {_kind(value): _build_scalar(value)}


def _kind(value: Scalar) -> str:
    if isinstance(value, bool):  # before int: a bool is one
        return "bool"
    if isinstance(value, int):
        return "int"
    return "version" if isinstance(value, Version) else "string"


def _build_scalar(value: Scalar) -> bool | int | str:
    return value.version if isinstance(value, Version) else value


def _build_capacity(capacity: Capacity) -> JsonObject:
    body: JsonObject = {"value": canonical_quantity(capacity.value)}
    if capacity.policy is not None:
        body["requestPolicy"] = _build_policy(capacity.policy)
    return body


def _build_policy(policy: RequestPolicy) -> JsonObject:
    body: JsonObject = {}
    if policy.default is not None:
        body["default"] = canonical_quantity(policy.default)
    if policy.valid_values:
        body["validValues"] = [canonical_quantity(value) for value in policy.valid_values]
    if policy.valid_range is not None:
        body["validRange"] = _build_range(policy.valid_range)
    return body


def _build_range(limits: CapacityRange) -> JsonObject:
    given = {"min": limits.min, "max": limits.max, "step": limits.step}
    return {name: canonical_quantity(value) for name, value in given.items() if value is not None}


def _build_mapping(resource: NodeAllocatable) -> JsonObject:
    """Build what Kubernetes 1.36 has, which knows no overheads."""
    body: JsonObject = {"allocationMultiplier": canonical_quantity(_read_multiplier(resource))}
    return body | ({"capacityKey": resource.capacity} if resource.capacity else {})


def _build_node_allocatable(resource: NodeAllocatable) -> JsonObject:
    body: JsonObject = {}
    if resource.capacity:
        amount = canonical_quantity(_read_multiplier(resource))
        body["mapping"] = {"capacityKey": resource.capacity, "capacityMultiplier": amount}
    elif resource.multiplier is not None:
        body["mapping"] = {"deviceMultiplier": canonical_quantity(resource.multiplier)}
    given = {"perPod": resource.per_pod, "perContainer": resource.per_container}
    overhead = {name: canonical_quantity(value) for name, value in given.items() if value is not None}
    return body | ({"overhead": overhead} if overhead else {})


def _read_multiplier(resource: NodeAllocatable) -> Quantity:
    return 1 if resource.multiplier is None else resource.multiplier


def _build_taint(taint: Taint) -> JsonObject:
    body: JsonObject = {"key": taint.key, "effect": taint.effect.value}
    if taint.value:
        body["value"] = taint.value
    if taint.time_added is not None:
        added = datetime.fromisoformat(taint.time_added).astimezone(UTC)
        body["timeAdded"] = added.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"
    return body


def _index_width(count: int) -> int:
    """Return the number of hexadecimal digits for the indexes of `count` slices."""
    return max(INDEX_WIDTH, len(f"{max(count - 1, 0):x}"))


def build_generate_name(index: int, count: int, driver: str, node: str) -> str:
    """Return `<index>-<driver>-<node>-`; the API server adds five characters (and shortens a longer name).

    The scheduler tries slices in the order of their names, so the index keeps the pool's order.
    """
    return f"{index:0{_index_width(count)}x}-{driver}-{node}-"


def parse_index(name: str, count: int) -> int | None:
    """Return the index in a slice's name if the pool has `count` slices; None if there is none of that width."""
    match = re.match(rf"([0-9a-f]{{{_index_width(count)}}})-", name)
    return int(match[1], 16) if match else None
