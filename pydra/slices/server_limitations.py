"""Detects what the API server lacks, such as a feature gate, and adapts the published pool.

A disabled gate is detected by the fields that the API server drops; what its release does not have, by its refusal. No
device is published without what makes its allocation safe: devices that consume counters must fit beside everything
else that is published, and a device whose taint or binding condition the server drops is left out. A modification for
an unknown reason is accepted, slice by slice, since writing it again would never end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from functools import cached_property
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra.devices import AttributeValue, Capacity, Device, NodeAllocatable, Pool, TaintEffect
from pydra.inventory.api_rules import is_compatible
from pydra.inventory.numa_nodes_and_overhead import NUMA_NODE
from pydra.kube.api_resources import JsonObject
from pydra.message_text import list_names
from pydra.quantity import parse_quantity
from pydra.slices.build import WantedPool, build_wanted
from pydra.slices.diff import CONTENT, same_content

PARTITIONS = "DRAPartitionableDevices"
TAINTS = "DRADeviceTaints"
SHARES = "DRAConsumableCapacity"
BINDING = "DRADeviceBindingConditions"
LISTS = "DRAListTypeAttributes"
EFFECT_NONE = "taint effect None"
"""Not a gate: Kubernetes 1.34 has the gate for taints, and refuses this effect."""
GROUPS = "DRADeviceCompatibilityGroups"
PARTITION_TYPE = "DRAPartitionableDevicesType"
ALLOCATABLE = "DRANodeAllocatableResources"
OVERHEADS = "overheads of node allocatable resources"
"""Not a gate: Kubernetes 1.36 has that gate with another field, for multipliers only."""
ON_BY_DEFAULT = dict.fromkeys((BINDING, PARTITIONS, SHARES, TAINTS), "1.36")
"""Source: the Kubernetes feature gate table."""
NEEDED_RELEASE = {
    PARTITIONS: "Kubernetes 1.34 cannot store partitions even with the gate on",
    LISTS: f"{LISTS} exists from Kubernetes 1.36",
    GROUPS: f"{GROUPS} exists from Kubernetes 1.37",
    PARTITION_TYPE: f"{PARTITION_TYPE} exists from Kubernetes 1.37",
    ALLOCATABLE: f"{ALLOCATABLE} exists from Kubernetes 1.36",
}
_GATES = (PARTITIONS, GROUPS, TAINTS, SHARES, BINDING, LISTS, EFFECT_NONE, OVERHEADS, ALLOCATABLE)


class RefusedDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that the API server refuses, whatever its feature gates, and the field and reason that it names."""

    device: Device
    why: str

    def __str__(self) -> str:
        return f"{self.device.name} ({self.why})"


_SHOWN = 8
_NONE: Mapping[str, RefusedDevice] = {}


class ReducedPool(msgspec.Struct, frozen=True, kw_only=True):
    """The pool to publish, and the names of the devices that are left out, in the pool's order."""

    pool: Pool
    withheld: tuple[str, ...] = ()


def has_overheads(pool: Pool) -> bool:
    """Return whether Kubernetes 1.36 cannot say all that any device uses of the node."""
    return any(_reduce(device, (OVERHEADS,)) != device for device in pool.devices)


def build_probe(pool: Pool) -> Pool:
    """Build a pool of a few devices that need the same gates as the whole pool; it may be empty."""
    needed = [next((device for device in pool.devices if _reduce(device, (gate,)) != device), None) for gate in _GATES]
    names = {device.name for device in needed if device is not None}
    return replace(pool, devices=tuple(device for device in pool.devices if device.name in names))


def reduce_pool(pool: Pool, gates: Collection[str], refused: Mapping[str, RefusedDevice] = _NONE) -> ReducedPool:
    """Reduce the pool for a server with these gates off, which refuses these devices as they are.

    Of the devices that consume counters, as many are published, in their order, as fit into the counters together: any
    of them may then be allocated beside any others. If a backend lists whole boards first, those are kept. Without
    compatibility groups, as many as may be used beside each other as far as the counters allow it.
    """
    if not gates and not refused:
        return ReducedPool(pool=pool)
    fitting = set(_find_fitting(pool, gates))
    published = [
        _reduce(device, gates)
        for device in pool.devices
        if device.name in fitting
        and not (device.name in refused and refused[device.name].device == device)
        and not (TAINTS in gates and _is_tainted(device))
        and not (BINDING in gates and device.binding_conditions)
    ]
    names = {device.name for device in published}
    return ReducedPool(
        pool=replace(
            pool,
            devices=tuple(published),
            counter_sets=() if PARTITIONS in gates else pool.counter_sets,
            partition_type="" if PARTITION_TYPE in gates else pool.partition_type,
            has_mappings=OVERHEADS in gates,
        ),
        withheld=tuple(device.name for device in pool.devices if device.name not in names),
    )


def has_lists(content: Mapping[str, Any]) -> bool:
    """Return whether any device of a slice has a list attribute."""
    return any(
        kind in value
        for device in content.get("devices") or ()
        for value in (device.get("attributes") or {}).values()
        for kind in ("ints", "bools", "strings", "versions")
    )


def name_refused(refusal: str, content: Mapping[str, Any]) -> frozenset[str]:
    """Return what the server lacks if it refuses a slice for that reason.

    A server without list attributes empties them, and refuses that. Kubernetes 1.34 wants counter sets in the slice of
    the devices, which later releases refuse, and does not know one effect of taints.
    """
    devices = content.get("devices") or ()
    found = set()
    if "attributes" in refusal and has_lists(content):
        found.add(LISTS)
    if "must reference a counterSet" in refusal and any(device.get("consumesCounters") for device in devices):
        found.add(PARTITIONS)
    none = TaintEffect.NONE.value
    effects = {taint.get("effect") for device in devices for taint in device.get("taints") or ()}
    if f'Unsupported value: "{none}"' in refusal and none in effects:
        found.add(EFFECT_NONE)
    return frozenset(found)


_DEVICE_FIELD = re.compile(r"spec\.devices\[(\d+)\]\.?(.*?)(?=, spec\.|\]?$)", re.DOTALL)


def find_refused(refusal: str, content: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the devices of a slice that the server refuses, by name, with the first reason for each."""
    devices = content.get("devices") or ()
    found: dict[str, str] = {}
    for index, why in _DEVICE_FIELD.findall(refusal):
        if int(index) < len(devices):
            found.setdefault(str(devices[int(index)].get("name")), why)
    return found


def _is_tainted(device: Device) -> bool:
    return any(taint.effect is not TaintEffect.NONE for taint in device.taints)


def _find_fitting(pool: Pool, gates: Collection[str]) -> Iterator[str]:
    totals = {
        (one.name, counter): parse_quantity(value)
        for one in pool.counter_sets
        for counter, value in one.counters.items()
    }
    left = dict(totals)
    has_groups = any(one.compatibility_groups for device in pool.devices for one in device.consumes_counters)
    kept: list[Device] = []
    for device in pool.devices:
        wanted = _consumption(device) if PARTITIONS in gates else {}
        if not all(left.get(counter, Fraction(0)) >= amount for counter, amount in wanted.items()):
            continue
        if has_groups and (PARTITIONS in gates or GROUPS in gates):
            beside = [one.consumes_counters for one in kept if _fit(device, one, totals)]
            if not is_compatible(device.consumes_counters, beside):
                continue
            kept.append(device)
        for counter, amount in wanted.items():
            left[counter] -= amount
        yield device.name


def _fit(one: Device, other: Device, totals: Mapping[tuple[str, str], Fraction]) -> bool:
    """Return whether the counters allow both devices to be used at once."""
    theirs = _consumption(other)
    return all(
        amount + theirs.get(counter, 0) <= totals.get(counter, Fraction(0))
        for counter, amount in _consumption(one).items()
    )


def _consumption(device: Device) -> Mapping[tuple[str, str], Fraction]:
    return {
        (one.counter_set, counter): parse_quantity(value)
        for one in device.consumes_counters
        for counter, value in one.counters.items()
    }


def _reduce(device: Device, gates: Collection[str]) -> Device:
    """Return the device without the fields that the server would drop."""
    if PARTITIONS in gates:
        device = replace(device, consumes_counters=())
    if GROUPS in gates:
        consumed = tuple(replace(one, compatibility_groups=()) for one in device.consumes_counters)
        device = replace(device, consumes_counters=consumed)
    if TAINTS in gates:
        device = replace(device, taints=())
    if EFFECT_NONE in gates:
        taints = tuple(taint for taint in device.taints if taint.effect is not TaintEffect.NONE)
        device = replace(device, taints=taints)
    if BINDING in gates:
        device = replace(device, binds_to_node=False, binding_conditions=(), binding_failure_conditions=())
    if SHARES in gates:
        capacity = {name: Capacity(one.value) for name, one in device.capacity.items()}
        resources = {name: _count_whole(device, one) for name, one in device.node_allocatable.items()}
        device = replace(device, allow_multiple_allocations=False, capacity=capacity, node_allocatable=resources)
    if LISTS in gates:
        device = replace(device, attributes=dict(_drop_lists(device)))
    if OVERHEADS in gates:
        device = replace(device, node_allocatable=dict(_drop_overheads(device)))
    if ALLOCATABLE in gates:
        device = replace(device, node_allocatable={})
    return device


def _count_whole(device: Device, resource: NodeAllocatable) -> NodeAllocatable:
    """Return what a device needs whose capacities are all given to one claim."""
    if not resource.capacity:
        return resource
    each = 1 if resource.multiplier is None else resource.multiplier
    amount = parse_quantity(device.capacity[resource.capacity].value) * parse_quantity(each)
    return replace(resource, capacity="", multiplier=f"{int(amount * 10**9)}n")


def _drop_lists(device: Device) -> Iterator[tuple[str, AttributeValue]]:
    for name, value in device.attributes.items():
        if not isinstance(value, tuple):
            yield name, value
        elif name == NUMA_NODE:  # the standard puts the device's own node first
            yield name, value[0]


def _drop_overheads(device: Device) -> Iterator[tuple[str, NodeAllocatable]]:
    for name, resource in device.node_allocatable.items():
        if resource.capacity or resource.multiplier is not None:
            yield name, replace(resource, per_pod=None, per_container=None)


class AcceptedPool(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What is to be published of `pool`, as far as it is known what the server lacks.

    `gates_off` are the feature gates whose fields it drops, `refused` the devices that it refuses, by name.
    """

    driver: str
    node: str
    pool: Pool
    gates_off: frozenset[str] = frozenset()
    refused: Mapping[str, RefusedDevice] = {}

    @cached_property
    def _reduced(self) -> ReducedPool:
        return reduce_pool(self.pool, self.gates_off, self.refused)

    @cached_property
    def wanted(self) -> WantedPool:
        """The slices."""
        return build_wanted(self._reduced.pool, driver=self.driver, node=self.node)

    @cached_property
    def probe(self) -> WantedPool | None:
        """The slices of a dry run that shows whether gates are off; None if the pool needs none."""
        probe = build_probe(self._reduced.pool)
        return build_wanted(probe, driver=self.driver, node=self.node) if probe.devices else None

    def describe_lack(self) -> FieldsDropped | None:
        """Return what to report about the server; None if it accepts all of the pool."""
        gates = tuple(sorted(gate for gate in self.gates_off if gate != OVERHEADS or self._loses_overheads()))
        refused = tuple(map(str, self.refused.values()))
        if not gates and not refused:
            return None
        # What is left out because it would be unsafe without its fields; what is refused has its own reason.
        withheld = tuple(name for name in self._reduced.withheld if name not in self.refused)
        return FieldsDropped(pool=self.pool.name, gates=gates, withheld=withheld, refused=refused)

    def _loses_overheads(self) -> bool:
        """Return whether the form of Kubernetes 1.36 is published, and says less than is known."""
        return ALLOCATABLE not in self.gates_off and has_overheads(self.pool)


# What a server dropped


class FieldsDropped(msgspec.Struct, frozen=True, kw_only=True):
    """The API server does not store all of a pool; `gates` are the feature gates that are probably off, if known.

    `gates` may also name what is not a gate, such as `EFFECT_NONE`. `withheld` are the devices that are not published,
    because they would be unsafe without their fields; `refused` are those that the server refuses, with its reason.
    """

    pool: str
    gates: tuple[str, ...]
    withheld: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f'pool "{self.pool}": ' + ". ".join(self._sentences())

    def _sentences(self) -> Iterator[str]:
        gates = [gate for gate in self.gates if gate not in (EFFECT_NONE, OVERHEADS)]
        if gates:
            text = (
                "some fields are dropped by the API server, probably because these feature gates are "
                f"off: {', '.join(gates)}. Turn them on in the control plane and the kubelets"
            )
            notes = [NEEDED_RELEASE[gate] for gate in gates if gate in NEEDED_RELEASE]
            if since := [gate for gate in gates if gate in ON_BY_DEFAULT]:
                notes.insert(0, f"{', '.join(since)}: on by default from Kubernetes {ON_BY_DEFAULT[since[0]]}")
            yield f"{text} ({'; '.join(notes)})" if notes else text
        if EFFECT_NONE in self.gates:
            yield "Taints with the effect None are left out, which Kubernetes accepts from 1.35"
        if OVERHEADS in self.gates:
            yield "What pods need of the node besides their devices is left out, which Kubernetes accepts from 1.37"
        if self.withheld:
            yield f"Not published until then, since unsafe without: {list_names(self.withheld, _SHOWN)}"
        if self.refused:
            yield f"Not published, because the API server refuses them: {list_names(self.refused, _SHOWN)}"
        if not self.gates and not self.refused:
            yield "some fields were dropped by the API server, for a reason that is not known"


class ServerModification(msgspec.Struct, frozen=True, kw_only=True):
    """How the server modified one slice: what was asked for, and what was stored."""

    asked: JsonObject
    stored: JsonObject


def apply_modifications(wanted: WantedPool, modifications: Mapping[int, ServerModification]) -> WantedPool:
    """Replace slices that were asked for before by what the server stored: asking again would never end."""
    slices = tuple(
        modifications[index].stored if index in modifications and modifications[index].asked == content else content
        for index, content in enumerate(wanted.slices)
    )
    return replace(wanted, slices=slices)


def find_modification(asked: JsonObject, sent: JsonObject, answer: JsonObject) -> ServerModification | None:
    """Return None if the server stored what was sent; `asked` is the slice's content before times were filled in."""
    stored = answer.get("spec") or {}
    if same_content(sent["spec"], stored):
        return None
    return ServerModification(asked=asked, stored={field: stored[field] for field in CONTENT if stored.get(field)})


def name_gates(sent: Mapping[str, Any], stored: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the gates that are probably off, from what the sent spec has and the stored one lacks; may be empty."""
    gates = set(_compare_slices(sent, stored))
    kept = {device.get("name"): device for device in stored.get("devices") or ()}
    for device in sent.get("devices") or ():
        other = kept.get(device["name"], {})
        gates.update(gate for gate, lost in _DEVICE_GATES.items() if lost(device, other))
    return tuple(sorted(gates))


def _compare_slices(sent: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterator[str]:
    if sent.get("sharedCounters") and not stored.get("sharedCounters"):
        yield PARTITIONS
    if sent.get("partitionTypeAttribute") and not stored.get("partitionTypeAttribute"):
        yield PARTITION_TYPE


def _fewer(field: str) -> Callable[[JsonObject, JsonObject], bool]:
    def lost(sent: JsonObject, stored: JsonObject) -> bool:
        return len(stored.get(field) or ()) < len(sent.get(field) or ())

    return lost


def _lost_groups(sent: JsonObject, stored: JsonObject) -> bool:
    lists = (body.get("consumesCounters") or () for body in (sent, stored))
    lost = _fewer("compatibilityGroups")
    return any(lost(ours, theirs) for ours, theirs in zip_longest(*lists, fillvalue={}))


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
    GROUPS: _lost_groups,
    BINDING: _lost_binding,
    SHARES: _lost_sharing,
    LISTS: _fewer("attributes"),
    OVERHEADS: _fewer("nodeAllocatableResources"),
    ALLOCATABLE: _fewer("nodeAllocatableResourceMappings"),
}
