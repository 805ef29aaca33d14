"""Feature gates: which are on in which release, and what a server with a gate off drops from an object. Pure.

A field of a disabled gate is dropped on create; on update it is kept when the stored object
already uses the feature. Source: Kubernetes feature gate table, `pkg/registry/resource/*/strategy.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from msgspec.structs import replace

from pydra_dev import schema

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


def drop_unknown_fields(spec: schema.SliceSpec, minor: int) -> schema.SliceSpec:
    """What release 1.`minor` reads of a slice's spec: 1.37 replaced a field of 1.36."""
    unknown = "node_allocatable_resource_mappings" if minor >= 37 else "node_allocatable_resources"
    return replace(spec, devices=tuple(replace(d, **{unknown: {}}) for d in spec.devices))


def drop_slice_fields(spec: schema.SliceSpec, old: schema.SliceSpec | None, gates: Gates) -> schema.SliceSpec:
    """What is left of a slice's spec under these gates."""
    before = old.devices if old is not None else ()
    devices = spec.devices
    if not gates[TAINTS] and not any(d.taints for d in before):
        devices = tuple(replace(d, taints=()) for d in devices)
    if not gates[BINDING] and not any(d.binding_conditions or d.binds_to_node for d in before):
        devices = tuple(
            replace(d, binding_conditions=(), binding_failure_conditions=(), binds_to_node=None) for d in devices
        )
    if not gates[SHARES] and not any(d.allow_multiple_allocations for d in before):
        devices = tuple(_drop_shares(d) for d in devices)
    if not gates[LISTS] and not any(_has_lists(d) for d in before):
        devices = tuple(_drop_lists(d) for d in devices)
    if not gates[ALLOCATABLE] and not any(_uses_node(d) for d in before):
        devices = tuple(
            replace(d, node_allocatable_resource_mappings={}, node_allocatable_resources={}) for d in devices
        )
    if not gates[GROUPS] and not any(has_groups(d) for d in before):
        devices = tuple(_drop_groups(d) for d in devices)
    if not gates[PARTITION_TYPE] and not (old is not None and old.partition_type_attribute):
        spec = replace(spec, partition_type_attribute=None)
    if not gates[PARTITIONS] and not (old is not None and _uses_partitions(old)):
        devices = tuple(
            replace(d, consumes_counters=(), node_name=None, node_selector=None, all_nodes=None) for d in devices
        )
        spec = replace(spec, shared_counters=(), per_device_node_selection=None)
    return replace(spec, devices=devices)


def _uses_partitions(spec: schema.SliceSpec) -> bool:
    return bool(
        spec.shared_counters or spec.per_device_node_selection or any(d.consumes_counters for d in spec.devices)
    )


def has_groups(device: schema.Device) -> bool:
    """Whether the device may be used beside some others only."""
    return any(one.compatibility_groups for one in device.consumes_counters)


def _drop_groups(device: schema.Device) -> schema.Device:
    return replace(
        device, consumes_counters=tuple(replace(one, compatibility_groups=()) for one in device.consumes_counters)
    )


def _uses_node(device: schema.Device) -> bool:
    return bool(device.node_allocatable_resource_mappings or device.node_allocatable_resources)


def _drop_shares(device: schema.Device) -> schema.Device:
    capacity = {name: replace(value, request_policy=None) for name, value in device.capacity.items()}
    return replace(device, allow_multiple_allocations=None, capacity=capacity)


def _has_lists(device: schema.Device) -> bool:
    return any((a.ints, a.bools, a.strings, a.versions) != (None,) * 4 for a in device.attributes.values())


def _drop_lists(device: schema.Device) -> schema.Device:
    attributes = {
        name: replace(value, ints=None, bools=None, strings=None, versions=None)
        for name, value in device.attributes.items()
    }
    return replace(device, attributes=attributes)


def drop_class_fields(spec: schema.ClassSpec, old: schema.ClassSpec | None, gates: Gates) -> schema.ClassSpec:
    """What is left of a class's spec under these gates."""
    if not gates[EXTENDED] and not (old is not None and old.extended_resource_name):
        spec = replace(spec, extended_resource_name=None)
    return spec


def drop_claim_fields(spec: schema.ClaimSpec, gates: Gates) -> schema.ClaimSpec:
    """What is left of a new claim's spec under these gates (an old one's cannot change)."""
    requests = spec.devices.requests or ()
    if not gates[PRIORITIZED]:
        requests = tuple(replace(r, first_available=()) for r in requests)
    constraints = spec.devices.constraints
    if not gates[SHARES]:
        constraints = tuple(replace(c, distinct_attribute=None) for c in constraints)
    requests = tuple(
        replace(
            r,
            exactly=_drop_request_fields(r.exactly, gates) if r.exactly else None,
            first_available=tuple(_drop_request_fields(s, gates) for s in r.first_available),
        )
        for r in requests
    )
    return replace(spec, devices=replace(spec.devices, requests=requests, constraints=constraints))


def _drop_request_fields(request: schema.Request, gates: Gates) -> schema.Request:
    if not gates[ADMIN]:
        request = replace(request, admin_access=None)
    if not gates[TAINTS]:
        request = replace(request, tolerations=())
    if not gates[SHARES]:
        request = replace(request, capacity=None)
    return request
