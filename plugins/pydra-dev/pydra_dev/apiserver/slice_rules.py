"""What the API server demands of a ResourceSlice, and what it fills in. Pure.

Source: `pkg/apis/resource/validation/validation.go` and `v1/defaults.go`, Kubernetes 1.34.9, 1.35.6 and 1.36.2, and
the changelog of 1.38.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import msgspec
from msgspec.structs import astuple, replace

from pydra_dev.api import schema
from pydra_dev.api.errors import duplicate, forbidden, invalid, required, too_long, too_many, unsupported
from pydra_dev.api.quantity import format_like, parse_quantity
from pydra_dev.apiserver.name_and_list_validation import (
    SEMVER,
    Errors,
    check_attribute_name,
    check_driver,
    check_label,
    check_label_key,
    check_label_value,
    check_list,
    check_pool,
    check_required,
    check_set,
    check_subdomain,
    size,
)
from pydra_dev.apiserver.node_selector_rules import check_node_selector

MAX_DEVICES = 128
MAX_COUNTERS = 32
MAX_GROUPS = 2
MAX_ATTRIBUTES = 32
MAX_ATTRIBUTE_VALUES = 48
MAX_VALUE_BYTES = 64
MAX_VALID_VALUES = 10
MAX_CONDITIONS = 4
NATIVE_RESOURCES = ("cpu", "memory", "ephemeral-storage")
EFFECTS = ("NoExecute", "NoSchedule", "None")


class SliceRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that differ between releases; the defaults are those of 1.36."""

    taints: int = 16
    effects: tuple[str, ...] = EFFECTS
    advanced_devices: int = 64
    """Devices in a slice where at least one has taints, consumes counters or has a list attribute."""
    consumptions: int = 2
    counter_sets: int = 8
    counters_beside_devices: bool = False
    """Whether a slice has the counter sets of its own devices, with 32 counters in all; otherwise only one of both."""
    one_slash: bool = False
    """Whether a name with two slashes is refused."""
    one_term: bool = False
    """Whether a device's node selector must have exactly one term, as that of a slice."""


_OLDEST = SliceRules(
    taints=4,
    effects=("NoExecute", "NoSchedule"),
    advanced_devices=MAX_DEVICES,
    consumptions=MAX_COUNTERS,
    counter_sets=MAX_COUNTERS,
    counters_beside_devices=True,
)


def find_rules(minor: int) -> SliceRules:
    """The rules of release 1.`minor`."""
    return _OLDEST if minor < 35 else SliceRules(one_slash=minor >= 38, one_term=minor >= 38)


def default_slice(spec: schema.SliceSpec, now: str) -> schema.SliceSpec:
    """The spec with every taint's `timeAdded` filled in."""
    if not any(device.taints for device in spec.devices):
        return spec
    devices = tuple(
        replace(
            device, taints=tuple(t if t.time_added else replace(t, time_added=schema.Time(now)) for t in device.taints)
        )
        for device in spec.devices
    )
    return replace(spec, devices=devices)


def check_slice(spec: schema.SliceSpec, old: schema.SliceSpec | None, rules: SliceRules) -> Errors:
    """Everything wrong with a slice's spec; `old` is the stored one of an update."""
    path = "spec"
    yield from check_driver(f"{path}.driver", spec.driver)
    yield from check_pool(f"{path}.pool.name", spec.pool.name)
    if spec.pool.resource_slice_count <= 0:
        count = spec.pool.resource_slice_count
        yield invalid(f"{path}.pool.resourceSliceCount", count, "must be greater than zero")
    if spec.pool.generation < 0:
        yield invalid(f"{path}.pool.generation", spec.pool.generation, "must be greater than or equal to zero")
    if old is not None:
        for field, new_value, old_value in (
            ("pool.name", spec.pool.name, old.pool.name),
            ("driver", spec.driver, old.driver),
            ("nodeName", spec.node_name, old.node_name),
        ):
            if new_value != old_value:
                yield invalid(f"{path}.{field}", new_value, "field is immutable")
    yield from _check_slice_nodes(spec, path)
    if (attribute := spec.partition_type_attribute) is not None:
        yield from check_attribute_name(f"{path}.partitionTypeAttribute", attribute)
        if "/" not in attribute:
            yield invalid(f"{path}.partitionTypeAttribute", attribute, "must include a domain")
    if spec.shared_counters and spec.devices and not rules.counters_beside_devices:
        yield invalid(path, "", "only one of `sharedCounters` or `devices` is allowed")
    per_device = bool(spec.per_device_node_selection)
    yield from check_set(
        f"{path}.devices",
        spec.devices,
        rules.advanced_devices if _is_advanced(spec) else MAX_DEVICES,
        lambda at, device: _check_device(at, device, rules, per_device),
        lambda device: device.name,
    )
    yield from check_set(
        f"{path}.sharedCounters", spec.shared_counters, rules.counter_sets, _check_counter_set, lambda s: s.name
    )
    if rules.counters_beside_devices:
        yield from _check_counters_beside_devices(path, spec)


def _check_counters_beside_devices(path: str, spec: schema.SliceSpec) -> Errors:
    """A device consumes counters of its own slice only, and not too many of them."""
    sets = {one.name: one.counters for one in spec.shared_counters}
    if (total := sum(map(len, sets.values()))) > MAX_COUNTERS:
        detail = f"the total number of shared counters must not exceed {MAX_COUNTERS}"
        yield invalid(f"{path}.sharedCounters", total, detail)
    for index, device in enumerate(spec.devices):
        at = f"{path}.devices[{index}]"
        if (total := sum(len(one.counters) for one in device.consumes_counters)) > MAX_COUNTERS:
            yield invalid(at, total, f"the total number of counters must not exceed {MAX_COUNTERS}")
        for place, one in enumerate(device.consumes_counters):
            inner = f"{at}.consumesCounters[{place}]"
            if one.counter_set not in sets:
                detail = "must reference a counterSet defined in the ResourceSlice sharedCounters"
                yield invalid(f"{inner}.counterSet", one.counter_set, detail)
                continue
            for name in sorted(one.counters.keys() - sets[one.counter_set].keys()):
                detail = "must reference a counter defined in the ResourceSlice sharedCounters"
                yield invalid(f"{inner}.counters", name, detail)


def _is_advanced(spec: schema.SliceSpec) -> bool:
    return any(
        device.taints
        or device.consumes_counters
        or any((a.ints, a.bools, a.strings, a.versions) != (None,) * 4 for a in device.attributes.values())
        for device in spec.devices
    )


def _check_slice_nodes(spec: schema.SliceSpec, path: str) -> Errors:
    chosen = []
    if spec.node_name is not None:
        if spec.node_name:
            chosen.append("`nodeName`")
            yield from check_subdomain(f"{path}.nodeName", spec.node_name)
        else:
            yield invalid(f"{path}.nodeName", "", "must be either unset or set to a non-empty string")
    if spec.node_selector is not None:
        chosen.append("`nodeSelector`")
        yield from check_node_selector(f"{path}.nodeSelector", spec.node_selector, one_term=True)
    for name, flag in (("allNodes", spec.all_nodes), ("perDeviceNodeSelection", spec.per_device_node_selection)):
        if flag:
            chosen.append(f"`{name}`")
        elif flag is not None:
            yield invalid(f"{path}.{name}", flag, "must be either unset or set to true")
    rule = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
    if not chosen:
        yield required(path, rule)
    elif len(chosen) > 1:
        yield invalid(path, "{" + ", ".join(chosen) + "}", f"{rule}, but multiple fields are set")


def _check_counter_set(path: str, counter_set: schema.CounterSet) -> Errors:
    yield from check_required(f"{path}.name", counter_set.name)
    yield from _check_counters(f"{path}.counters", counter_set.counters)


def _check_counters(path: str, counters: dict[str, schema.Counter]) -> Errors:
    if not counters:
        yield required(path)
    elif len(counters) > MAX_COUNTERS:
        yield too_many(path, len(counters), MAX_COUNTERS)
    else:
        for name in counters:
            yield from check_label(path, name)


def _check_device(path: str, device: schema.Device, rules: SliceRules, per_device_nodes: bool) -> Errors:
    yield from check_label(f"{path}.name", device.name)
    yield from _check_sizes(path, device)
    for name, attribute in device.attributes.items():
        yield from _check_name(f"{path}.attributes", name, rules)
        yield from _check_attribute(f"{path}.attributes[{name}]", attribute)
    for name, capacity in device.capacity.items():
        yield from _check_name(f"{path}.capacity", name, rules)
        yield from _check_policy(f"{path}.capacity[{name}].requestPolicy", capacity, device)
    taints = f"{path}.taints"
    yield from check_list(taints, device.taints, rules.taints, lambda at, taint: check_taint(at, taint, rules))
    yield from check_set(
        f"{path}.consumesCounters",
        device.consumes_counters,
        rules.consumptions,
        _check_consumption,
        lambda consumption: consumption.counter_set,
    )
    yield from _check_device_nodes(path, device, rules, expected=per_device_nodes)
    yield from check_binding(path, device.binding_conditions, device.binding_failure_conditions)
    for name, mapping in device.node_allocatable_resource_mappings.items():
        at = f"{path}.nodeAllocatableResourceMappings[{name}]"
        yield from _check_native(at, name)
        if mapping.capacity_key is None and mapping.allocation_multiplier is None:
            yield required(at, "at least one of `allocationMultiplier` or `capacityKey` must be specified")
        yield from _check_mapping(at, mapping, device)
    for name, resource in device.node_allocatable_resources.items():
        at = f"{path}.nodeAllocatableResources[{name}]"
        yield from _check_native(at, name)
        yield from _check_node_allocatable(at, resource, device)


def _check_native(path: str, name: str) -> Errors:
    if name not in NATIVE_RESOURCES and not name.startswith("hugepages-"):
        yield invalid(path, name, "must be a node allocatable resource that is not an extended resource")


def _check_mapping(path: str, mapping: schema.AllocatableMapping, device: schema.Device) -> Errors:
    if mapping.capacity_key is not None and mapping.capacity_key not in device.capacity:
        yield invalid(f"{path}.capacityKey", mapping.capacity_key, "must be a capacity of the device")
    for field in ("allocationMultiplier", "capacityMultiplier", "deviceMultiplier"):
        value = schema.build_fields(mapping).get(field)
        if value is not None and parse_quantity(value) <= 0:
            yield invalid(f"{path}.{field}", value, "must be greater than zero")


def _check_node_allocatable(path: str, resource: schema.NodeAllocatable, device: schema.Device) -> Errors:
    mapping, overhead = resource.mapping, resource.overhead
    if mapping is None and overhead is None:
        yield required(path, "at least one of `mapping` or `overhead` must be specified")
    if mapping is not None:
        by_capacity = (mapping.capacity_key is not None, mapping.capacity_multiplier is not None)
        if by_capacity not in {(True, True), (False, False)} or any(by_capacity) == bool(mapping.device_multiplier):
            detail = "must have either `capacityKey` and `capacityMultiplier`, or `deviceMultiplier`"
            yield invalid(f"{path}.mapping", schema.build_fields(mapping), detail)
        yield from _check_mapping(f"{path}.mapping", mapping, device)
    if overhead is not None:
        given = schema.build_fields(overhead)
        if not given:
            yield required(f"{path}.overhead", "at least one of `perPod` or `perContainer` must be specified")
        for field, value in given.items():
            if parse_quantity(value) < 0:
                yield invalid(f"{path}.overhead.{field}", value, "must be greater than or equal to zero")


def _check_name(path: str, name: str, rules: SliceRules) -> Errors:
    yield from check_attribute_name(path, name)
    if rules.one_slash and name.count("/") > 1:
        yield invalid(path, name, "a qualified name must have at most one slash")


def _check_sizes(path: str, device: schema.Device) -> Errors:
    total = len(device.attributes) + len(device.capacity)
    if total > MAX_ATTRIBUTES:
        detail = f"the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES}"
        yield invalid(path, total, detail)
    values = sum(len(a.ints or a.bools or a.strings or a.versions or (0,)) for a in device.attributes.values())
    if values > MAX_ATTRIBUTE_VALUES:
        yield invalid(path, values, f"the total number of attribute values must not exceed {MAX_ATTRIBUTE_VALUES}")


def _check_attribute(path: str, attribute: schema.Attribute) -> Errors:
    values = [value for value in astuple(attribute) if value is not None]
    if len(values) == 1 and isinstance(values[0], int):
        return
    for name in ("ints", "bools", "strings", "versions") if () in values else ():
        if getattr(attribute, name) == ():
            yield invalid(f"{path}.{name}", [], "must not be empty if specified")
    for field, text in _each_text(attribute):
        if "version" in field and not SEMVER.fullmatch(text):
            yield invalid(f"{path}.{field}", text, "must be a string compatible with semver.org spec 2.0.0")
        if size(text) > MAX_VALUE_BYTES:
            yield too_long(f"{path}.{field}", MAX_VALUE_BYTES)
    if len(values) != 1:
        yield invalid(path, schema.build_fields(attribute) or "", "exactly one value must be specified")


def _each_text(attribute: schema.Attribute) -> list[tuple[str, str]]:
    single = [("string", attribute.string), ("version", attribute.version)]
    texts = [(field, text) for field, text in single if text is not None]
    texts += [(f"strings[{index}]", text) for index, text in enumerate(attribute.strings or ())]
    return texts + [(f"versions[{index}]", text) for index, text in enumerate(attribute.versions or ())]


def check_taint_rule(spec: schema.TaintRuleSpec, rules: SliceRules) -> Errors:
    """Everything wrong with a DeviceTaintRule's spec."""
    chosen = spec.device_selector or schema.DeviceSelector()
    for field, check in (("driver", check_driver), ("pool", check_pool), ("device", check_label)):
        if (name := getattr(chosen, field)) is not None:
            yield from check(f"spec.deviceSelector.{field}", name)
    yield from check_taint("spec.taint", spec.taint, rules)


def check_taint(path: str, taint: schema.Taint, rules: SliceRules) -> Errors:
    """A taint's key, value and effect."""
    yield from check_label_key(f"{path}.key", taint.key)
    if taint.value:
        yield from check_label_value(f"{path}.value", taint.value)
    if not taint.effect:
        yield required(f"{path}.effect")
    elif taint.effect not in rules.effects:
        yield unsupported(f"{path}.effect", taint.effect, rules.effects)


def _check_consumption(path: str, consumption: schema.Consumption) -> Errors:
    yield from check_required(f"{path}.counterSet", consumption.counter_set)
    yield from _check_counters(f"{path}.counters", consumption.counters)
    groups = consumption.compatibility_groups
    yield from check_set(f"{path}.compatibilityGroups", groups, MAX_GROUPS, _check_group, lambda group: group)


def _check_group(path: str, group: str) -> Errors:
    if not group:
        yield required(path)


def _check_device_nodes(path: str, device: schema.Device, rules: SliceRules, *, expected: bool) -> Errors:
    fields = {"nodeName": device.node_name, "nodeSelector": device.node_selector, "allNodes": device.all_nodes}
    chosen = [f"`{name}`" for name, value in fields.items() if value not in (None, "", False)]
    if not expected:
        if any(value is not None for value in fields.values()):
            yield invalid(
                path,
                None,
                "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true "
                "in the ResourceSlice spec",
            )
        return
    rule = (
        "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to "
        "true in the ResourceSlice spec"
    )
    if device.node_name == "":
        yield invalid(f"{path}.nodeName", "", "must not be empty")
    elif device.node_name is not None:
        yield from check_subdomain(f"{path}.nodeName", device.node_name)
    if device.node_selector is not None:
        yield from check_node_selector(f"{path}.nodeSelector", device.node_selector, one_term=rules.one_term)
    if device.all_nodes is False:
        yield invalid(f"{path}.allNodes", False, "must be either unset or set to true")
    if not chosen:
        yield required(path, rule)
    elif len(chosen) > 1:
        yield invalid(path, "{" + ", ".join(chosen) + "}", rule)


def check_binding(path: str, conditions: tuple[str, ...], failures: tuple[str, ...]) -> Errors:
    """Binding conditions and what says that binding failed: both or neither, and nothing twice."""
    for name, own, seen in (("bindingConditions", conditions, ()), ("bindingFailureConditions", failures, conditions)):
        yield from check_set(f"{path}.{name}", own, MAX_CONDITIONS, check_label_key, lambda text: text)
        for index, condition in enumerate(own):
            if condition in seen:
                detail = "bindingFailureConditions must not overlap with bindingConditions"
                yield invalid(f"{path}.{name}[{index}]", condition, detail)
    if bool(conditions) != bool(failures):
        names = ["bindingConditions", "bindingFailureConditions"]
        present, missing = names if conditions else reversed(names)
        yield invalid(f"{path}.{missing}", None, f"{missing} are required to use {present}")


def _check_policy(path: str, capacity: schema.Capacity, device: schema.Device) -> Errors:
    policy = capacity.request_policy
    if policy is None:
        return
    if not device.allow_multiple_allocations:
        yield forbidden(path, "allowMultipleAllocations must be true")
    elif policy.valid_values and policy.valid_range is not None:
        yield forbidden(
            path,
            'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time',
        )
    elif policy.valid_values:
        yield from _check_valid_values(path, capacity.value, policy)
    elif policy.valid_range is not None:
        yield from _check_valid_range(path, capacity.value, policy, policy.valid_range)


def _check_valid_values(path: str, whole: str, policy: schema.RequestPolicy) -> Errors:
    if policy.default is None:
        yield required(f"{path}.default", "required when validValues is defined")
        return
    path = f"{path}.validValues"
    if len(policy.valid_values) > MAX_VALID_VALUES:
        yield too_many(path, len(policy.valid_values), MAX_VALID_VALUES)
        return
    values = [parse_quantity(value) for value in policy.valid_values]
    for index, (text, value) in enumerate(zip(policy.valid_values, values, strict=True)):
        if index and value < values[index - 1]:
            yield invalid(f"{path}[{index}]", text, "values must be sorted in ascending order")
        # Two that are the same when rounded up to whole numbers are duplicates.
        if ceil(value) in map(ceil, values[:index]):
            yield duplicate(f"{path}[{index}]", str(ceil(value)))
        if value > parse_quantity(whole):
            yield invalid(f"{path}[{index}]", text, f"option is larger than capacity value: {whole}")
    if parse_quantity(policy.default) not in values:
        yield invalid(path, policy.default, "default value is not valid according to the requestPolicy")


def _check_valid_range(path: str, whole: str, policy: schema.RequestPolicy, valid: schema.ValidRange) -> Errors:
    if policy.default is None:
        yield required(f"{path}.default", "required when validRange is defined")
        return
    path = f"{path}.validRange"
    if valid.min is None:
        yield required(f"{path}.min", "required when validRange is defined")
        return
    default, low = parse_quantity(policy.default), parse_quantity(valid.min)
    if low > parse_quantity(whole):
        yield invalid(f"{path}.min", valid.min, f"min is larger than capacity value: {whole}")
    if default < low:
        yield invalid(f"{path}.min", policy.default, f"default is less than min: {valid.min}")
    if valid.max is not None:
        high = parse_quantity(valid.max)
        if low > high:
            yield invalid(f"{path}.max", valid.min, f"min is larger than max: {valid.max}")
        if high > parse_quantity(whole):
            yield invalid(f"{path}.max", valid.max, f"max is larger than capacity value: {whole}")
        if default > high:
            yield invalid(f"{path}.max", policy.default, f"default is more than max: {valid.max}")
    if valid.step is not None:
        bounds = [policy.default] if valid.max is None else [policy.default, valid.max]
        yield from _check_step(f"{path}.step", whole, valid.min, valid.step, bounds)


def _check_step(path: str, whole: str, low: str, step: str, bounds: Sequence[str]) -> Errors:
    if parse_quantity(step) <= 0:
        yield invalid(path, step, "must be greater than zero")
        return
    first = parse_quantity(low) + parse_quantity(step)
    if first > parse_quantity(whole):
        detail = f"one step {format_like(first, low)} is larger than capacity value: {whole}"
        yield invalid(path, step, detail)
    for bound in bounds:
        if (ceil(parse_quantity(bound)) - ceil(parse_quantity(low))) % ceil(parse_quantity(step)):
            yield invalid(path, bound, f"value is not a multiple of a given step ({step}) from ({low})")
