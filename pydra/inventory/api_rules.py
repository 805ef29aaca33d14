"""Checks devices, counter sets and the status of a claim's device by the API's rules.

The only place that knows these rules. A device that the API server would refuse is left out, with a text that says
why, so one invalid device does not affect the others. A status is refused as a whole.

Sources: Kubernetes 1.36, pkg/apis/resource/validation, and the API reference of resource.k8s.io/v1. Kubernetes 1.35 has
the same limits. What 1.34 limits more tightly (4 taints) is left to the server: a device that it refuses is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import ip_interface
from itertools import pairwise
from math import ceil
from typing import TypeVar

import msgspec

from pydra.api_name_formats import is_label, is_label_key, is_label_value, is_qualified_name
from pydra.devices import (
    HEALTHY,
    AttributeValue,
    Capacity,
    CapacityRange,
    ClaimDeviceStatus,
    Condition,
    CounterConsumption,
    CounterSet,
    Device,
    DeviceStatus,
    Inventory,
    NetworkData,
    NodeAllocatable,
    Quantity,
    RequestPolicy,
    Scalar,
    Taint,
    Version,
)
from pydra.json_encodable import find_json_problems
from pydra.quantity import is_quantity, parse_quantity

ATTRIBUTES_AND_CAPACITIES = 32
"""Of a device, together."""
ATTRIBUTE_VALUES = 48
"""Of a device, elements of lists counted."""
VALUE_BYTES = 64
COUNTERS = 32
CONSUMPTIONS = 2
COMPATIBILITY_GROUPS = 2
TAINTS = 16
BINDING_CONDITIONS = 4
VALID_VALUES = 10
CONDITIONS = 8
"""Of a status, as those below."""
DATA_BYTES = 10 * 1024
ADDRESSES = 16
INTERFACE_BYTES = 256
HARDWARE_ADDRESS_BYTES = 128
MESSAGE_BYTES = 32 * 1024
TYPE_CHARACTERS = 316
REASON_CHARACTERS = 1024

_NATIVE_RESOURCE = re.compile(r"cpu|memory|ephemeral-storage|hugepages-[1-9][0-9]*(Ki|Mi|Gi)")
_INT64 = range(-(2**63), 2**63)
_SEMVER = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(-(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?"
)
_CONDITION_TYPE = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_CONDITION_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")

Named = TypeVar("Named", Device, CounterSet)


class Valid(msgspec.Struct, frozen=True, kw_only=True):
    """The valid part of an inventory by the API's rules; as text, why devices and counter sets were left out."""

    devices: tuple[Device, ...]
    counter_sets: tuple[CounterSet, ...]
    partition_type: str
    dropped: tuple[str, ...]
    problems: tuple[str, ...]
    claim_statuses: tuple[ClaimDeviceStatus, ...] = ()


def validate_inventory(inventory: Inventory) -> Valid:
    """Return what the API server accepts and the scheduler can use of the inventory, in its order."""
    dropped: list[str] = []
    problems: list[str] = []
    kept_sets: dict[str, CounterSet] = {}
    for one in inventory.counter_sets:
        _keep(one, kept_sets, "counter set", check_counter_set(one), problems)
    kept: dict[str, Device] = {}
    for device in inventory.devices:
        errors = [*check_device(device), *_check_references(device, kept_sets)]
        _keep(device, kept, "device", errors, dropped)
        if not is_label_key(device.health.taint):
            problems.append(
                f"device {device.name!r}: health.taint {device.health.taint!r} is not a valid key of a taint; "
                f"{HEALTHY.taint!r} is used"
            )
    statuses: list[ClaimDeviceStatus] = []
    for status in inventory.claim_statuses:
        if errors := [*check_device_status(status.status)]:
            named = f"the status of device {status.device!r} for the claim {status.claim_uid!r}"
            problems.append(f"{named} is not written: " + "; ".join(errors))
        else:
            statuses.append(status)
    no_type = list(_check_partition_type(inventory.partition_type, kept.values()))
    problems += no_type
    return Valid(
        devices=tuple(kept.values()),
        counter_sets=tuple(kept_sets.values()),
        partition_type="" if no_type else inventory.partition_type,
        dropped=tuple(dropped),
        problems=tuple(problems),
        claim_statuses=tuple(statuses),
    )


def _keep(thing: Named, kept: dict[str, Named], kind: str, errors: Iterable[str], problems: list[str]) -> None:
    """Add it to `kept` if it has no errors and a unique name; otherwise add why to `problems`."""
    found = list(errors)
    if thing.name in kept:
        found.append("the name is taken by another one, which is kept")
    if found:
        problems.append(f"{kind} {thing.name!r} is not published: " + "; ".join(found))
    else:
        kept[thing.name] = thing


def check_device(device: Device) -> Iterator[str]:
    """Yield everything that the API server would refuse in a device, each with the field's name."""
    if not is_label(device.name):
        yield f"name {device.name!r} must be a DNS label: at most 63 of a-z, 0-9 and -, not - at an end"
    count = len(device.attributes) + len(device.capacity)
    if count > ATTRIBUTES_AND_CAPACITIES:
        yield f"{count} attributes and capacities; at most {ATTRIBUTES_AND_CAPACITIES} together are allowed"
    values = sum(len(value) if isinstance(value, tuple) else 1 for value in device.attributes.values())
    if values > ATTRIBUTE_VALUES:
        yield f"{values} attribute values, elements of lists counted; at most {ATTRIBUTE_VALUES} are allowed"
    yield from check_attributes(device.attributes)
    for name, capacity in device.capacity.items():
        yield from _check_name(f"capacity {name!r}", name)
        yield from _check_capacity(f"capacity {name!r}", capacity, shared=device.allow_multiple_allocations)
    yield from _check_consumptions(device.consumes_counters)
    if len(device.taints) > TAINTS:
        yield f"{len(device.taints)} taints; at most {TAINTS} are allowed"
    for taint in device.taints:
        yield from _check_taint(taint)
    yield from _check_binding(device.binding_conditions, device.binding_failure_conditions)
    for name, resource in device.node_allocatable.items():
        yield from (f"node_allocatable {name!r}: {problem}" for problem in _check_resource(name, resource, device))


def check_attributes(attributes: Mapping[str, AttributeValue]) -> Iterator[str]:
    """Yield everything that the API server would refuse in single attributes."""
    for name, value in attributes.items():
        yield from _check_name(f"attribute {name!r}", name)
        yield from _check_attribute(f"attribute {name!r}", value)


def check_counter_set(counter_set: CounterSet) -> Iterator[str]:
    """Yield everything that the API server would refuse in a counter set."""
    if not is_label(counter_set.name):
        yield f"name {counter_set.name!r} must be a DNS label"
    yield from _check_counters("counters", counter_set.counters)


def _check_references(device: Device, sets: Mapping[str, CounterSet]) -> Iterator[str]:
    """Yield counters that a device consumes and its pool lacks: the API server accepts them, the scheduler fails."""
    for consumption in device.consumes_counters:
        known = sets.get(consumption.counter_set)
        if known is None:
            yield f"consumes from counter set {consumption.counter_set!r}, which the pool does not have"
            continue
        for name in sorted(consumption.counters.keys() - known.counters.keys()):
            yield f"consumes counter {name!r}, which counter set {consumption.counter_set!r} does not have"


def _check_name(field: str, name: str) -> Iterator[str]:
    if not is_qualified_name(name):
        yield f"{field}: the name must be a C identifier of at most 32 bytes, or domain/identifier"


def _check_attribute(field: str, value: AttributeValue) -> Iterator[str]:
    if not isinstance(value, tuple):
        yield from _check_scalar(field, value)
    elif not value:
        yield f"{field}: a list must not be empty; leave the attribute out"
    elif len({type(element) for element in value}) > 1:
        yield f"{field}: all elements of a list must have one type"
    else:
        for element in value:
            yield from _check_scalar(field, element)


def _check_scalar(field: str, value: Scalar) -> Iterator[str]:
    if isinstance(value, Version):
        if len(value.version) > VALUE_BYTES or not _SEMVER.fullmatch(value.version):
            yield f"{field}: {value.version!r} is not a semantic version 2.0.0 such as 1.2.3, of at most 64 bytes"
    elif isinstance(value, str):
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            yield f"{field}: {value!r} is not valid Unicode"
            return
        if size > VALUE_BYTES:
            yield f"{field}: a string of {size} bytes; at most {VALUE_BYTES} are allowed"
    elif not isinstance(value, bool) and value not in _INT64:
        yield f"{field}: {value} does not fit in 64 bits"


def _check_capacity(field: str, capacity: Capacity, *, shared: bool) -> Iterator[str]:
    if not is_quantity(capacity.value):
        yield f"{field}: {capacity.value!r} is not a quantity such as 2, 80Gi or 1500m"
    elif capacity.policy is not None:
        if not shared:
            yield f"{field}: a request policy needs allow_multiple_allocations on the device"
        yield from (f"{field}: {problem}" for problem in _check_policy(capacity.policy, capacity.value))


def _check_policy(policy: RequestPolicy, value: Quantity) -> Iterator[str]:
    limits = policy.valid_range
    given: list[Quantity | None] = [policy.default, *policy.valid_values]
    given += [limits.min, limits.max, limits.step] if limits else []
    if bad := [quantity for quantity in given if quantity is not None and not is_quantity(quantity)]:
        yield f"the policy has {bad[0]!r}, which is not a quantity"
        return
    if policy.valid_values and limits:
        yield "a policy has valid_values or valid_range, not both"
    elif (policy.valid_values or limits) and policy.default is None:
        yield "a policy with valid_values or valid_range needs a default"
    elif policy.valid_values and policy.default is not None:
        yield from _check_valid_values(policy.valid_values, policy.default, value)
    elif limits and policy.default is not None:
        yield from _check_range(limits, policy.default, value)


def _check_valid_values(values: Sequence[Quantity], default: Quantity, whole: Quantity) -> Iterator[str]:
    amounts = [parse_quantity(value) for value in values]
    if len(amounts) > VALID_VALUES:
        yield f"{len(amounts)} valid_values; at most {VALID_VALUES} are allowed"
    if any(a >= b or ceil(a) == ceil(b) for a, b in pairwise(amounts)):
        yield "valid_values must ascend and not repeat, even when rounded up to whole numbers"
    if max(amounts) > parse_quantity(whole):
        yield f"no valid value may be above the capacity {whole}"
    if parse_quantity(default) not in amounts:
        yield f"the default {default} must be one of the valid_values"


def _check_range(limits: CapacityRange, default: Quantity, whole: Quantity) -> Iterator[str]:
    given = {"min": limits.min, "default": default, "max": limits.max, "capacity": whole}
    amounts = {name: parse_quantity(amount) for name, amount in given.items() if amount is not None}
    for lower, upper in pairwise(amounts):
        if amounts[lower] > amounts[upper]:
            yield f"{lower} {given[lower]} must not be above {upper} {given[upper]}"
    if limits.step is None:
        return
    step, least = parse_quantity(limits.step), amounts["min"]
    if step <= 0 or least + step > amounts["capacity"]:
        yield f"the step {limits.step} must be positive, and min + step at most the capacity {whole}"
    elif any((ceil(amounts[name]) - ceil(least)) % ceil(step) for name in ("default", "max") if name in amounts):
        yield f"default and max must be min {limits.min} plus steps of {limits.step}, all rounded up to whole numbers"


def _check_resource(name: str, resource: NodeAllocatable, device: Device) -> Iterator[str]:
    """Yield what is wrong; Kubernetes 1.36 and 1.37 have the same rules, except that the former has no overheads."""
    if not _NATIVE_RESOURCE.fullmatch(name):
        yield "only cpu, memory, ephemeral-storage and hugepages-SIZE are the node's own resources"
    if resource.capacity and resource.capacity not in device.capacity:
        yield f"the device has no capacity {resource.capacity!r}"
    elif resource.capacity and not device.allow_multiple_allocations:
        yield "a capacity is shared, and counted, only with allow_multiple_allocations on the device"
    fields = {"multiplier": resource.multiplier, "per_pod": resource.per_pod, "per_container": resource.per_container}
    given = {field: value for field, value in fields.items() if value is not None}
    if not resource.capacity and not given:
        yield "has neither a capacity nor a multiplier, per_pod or per_container"
    for field, value in given.items():
        if not is_quantity(value):
            yield f"{field} {value!r} is not a quantity such as 2, 80Gi or 1500m"
        elif parse_quantity(value) < 0 or (field == "multiplier" and not parse_quantity(value)):
            yield f"{field} {value!r} must {'be positive' if field == 'multiplier' else 'not be negative'}"


def _check_consumptions(consumptions: Sequence[CounterConsumption]) -> Iterator[str]:
    if len(consumptions) > CONSUMPTIONS:
        yield f"consumes from {len(consumptions)} counter sets; at most {CONSUMPTIONS} are allowed"
    names = [consumption.counter_set for consumption in consumptions]
    if len(set(names)) < len(names):
        yield "consumes_counters names a counter set twice"
    for consumption in consumptions:
        field = f"consumes_counters of {consumption.counter_set!r}"
        yield from _check_counters(field, consumption.counters)
        yield from _check_groups(field, consumption.compatibility_groups)


def _check_groups(field: str, groups: Sequence[str]) -> Iterator[str]:
    if len(groups) > COMPATIBILITY_GROUPS:
        yield f"{field}: {len(groups)} compatibility_groups; at most {COMPATIBILITY_GROUPS} are allowed"
    if len(set(groups)) < len(groups) or "" in groups:
        yield f"{field}: compatibility_groups must not be empty names, nor repeat"


def is_compatible(own: Iterable[CounterConsumption], others: Iterable[Iterable[CounterConsumption]]) -> bool:
    """Return whether a device may be used beside all others: none of a counter set has groups, or all share one.

    Source: KEP-5963.
    """
    beside = [consumption for other in others for consumption in other]
    for mine in own:
        common = set(mine.compatibility_groups)
        for theirs in beside:
            if theirs.counter_set != mine.counter_set:
                continue
            common &= set(theirs.compatibility_groups)
            if not common and (mine.compatibility_groups or theirs.compatibility_groups):
                return False
    return True


def _check_partition_type(name: str, devices: Iterable[Device]) -> Iterator[str]:
    """Yield why the slices cannot say which attribute has the type of partitions."""
    if name and not is_qualified_name(name):
        yield f"partition_type {name!r} is not published: it must be the name of an attribute"
    elif name:
        partitions = (one for one in devices if one.consumes_counters)
        without = [one.name for one in partitions if not isinstance(one.attributes.get(name), str)]
        if without:
            yield f"partition_type {name!r} is not published: device {without[0]!r} has no such attribute with a string"


def _check_counters(field: str, counters: Mapping[str, Quantity]) -> Iterator[str]:
    if not 1 <= len(counters) <= COUNTERS:
        yield f"{field}: {len(counters)} counters; 1 to {COUNTERS} are allowed"
    for name, value in counters.items():
        if not is_label(name):
            yield f"{field}: the counter's name {name!r} must be a DNS label"
        if not is_quantity(value):
            yield f"{field}: counter {name!r} has {value!r}, which is not a quantity"


def _check_taint(taint: Taint) -> Iterator[str]:
    if not is_label_key(taint.key):
        yield f"taint {taint.key!r}: the key must be a label name such as example.com/unhealthy"
    if not is_label_value(taint.value):
        yield f"taint {taint.key!r}: the value {taint.value!r} must be a label value: at most 63 of A-Z, a-z, 0-9, -_."
    if taint.time_added is not None and not _is_time(taint.time_added):
        yield f"taint {taint.key!r}: time_added {taint.time_added!r} is not RFC 3339 such as 2026-01-02T03:04:05Z"


def _is_time(text: str) -> bool:
    try:
        moment = datetime.fromisoformat(text)
        moment.astimezone(UTC)  # it is published in UTC
    except (ValueError, OverflowError):
        return False
    return moment.tzinfo is not None and "T" in text


def _check_binding(conditions: Sequence[str], failures: Sequence[str]) -> Iterator[str]:
    for field, names in (("binding_conditions", conditions), ("binding_failure_conditions", failures)):
        if len(names) > BINDING_CONDITIONS:
            yield f"{field}: {len(names)} conditions; at most {BINDING_CONDITIONS} are allowed"
        for name in names:
            if not is_label_key(name):
                yield f"{field}: {name!r} must be a label name"
    if len({*conditions, *failures}) < len(conditions) + len(failures):
        yield "a condition may stand once only in binding_conditions and binding_failure_conditions"
    if bool(conditions) != bool(failures):
        yield "binding_conditions and binding_failure_conditions come together or not at all"


# The status of a claim's device


def check_device_status(status: DeviceStatus) -> Iterator[str]:
    """Yield why the API server would refuse it."""
    if len(status.conditions) > CONDITIONS:  # of which there may be any number
        yield f"status has {len(status.conditions)} conditions; at most {CONDITIONS} are allowed"
    else:
        yield from _check_conditions(status.conditions)
    problems = list(find_json_problems(status.data, "status.data"))
    yield from problems
    if not problems and (size := len(msgspec.json.encode(status.data))) > DATA_BYTES:
        yield f"status.data has {size} bytes of JSON; at most {DATA_BYTES} are allowed"
    if status.network_data is not None:
        yield from _check_network(status.network_data)


def _check_conditions(conditions: Sequence[Condition]) -> Iterator[str]:
    types = [one.type for one in conditions]
    for name in sorted({one for one in types if types.count(one) > 1}):
        yield f"status has two conditions of the type {name!r}"
    for one in conditions:
        yield from _check_condition(one)


def _check_condition(one: Condition) -> Iterator[str]:
    if len(one.type) > TYPE_CHARACTERS or not _CONDITION_TYPE.fullmatch(one.type):
        yield f"{one.type[:64]!r} is not a valid type of a condition; it must be a word in CamelCase, such as Ready"
    if len(one.reason) > REASON_CHARACTERS or not _CONDITION_REASON.fullmatch(one.reason):
        yield f"{one.reason[:64]!r} is not a valid reason of a condition; it must be a word in CamelCase"
    if len(one.message.encode(errors="replace")) > MESSAGE_BYTES:
        yield f"the message of the condition {one.type} has more than {MESSAGE_BYTES} bytes"


def _check_network(data: NetworkData) -> Iterator[str]:
    for what, text, limit in (
        ("interface_name", data.interface_name, INTERFACE_BYTES),
        ("hardware_address", data.hardware_address, HARDWARE_ADDRESS_BYTES),
    ):
        if len(text.encode(errors="replace")) > limit:
            yield f"network_data.{what} has more than {limit} bytes"
    if len(data.ips) > ADDRESSES:
        yield f"network_data has {len(data.ips)} addresses; at most {ADDRESSES} are allowed"
        return
    for address in data.ips:
        if not _is_interface_address(address):
            yield f"network_data.ips: {address[:64]!r} is not an address with a prefix length, such as 192.0.2.5/24"
        elif data.ips.count(address) > 1:
            yield f"network_data.ips: {address} is there twice"


def _is_interface_address(text: str) -> bool:
    """Whether it is canonical, which the API server demands."""
    try:
        return str(ip_interface(text)) == text
    except ValueError:
        return False
