"""The pools of devices as the allocator sees them from one node. Pure.

Source: `pools_*.go` of the structured allocator in k8s.io/dynamic-resource-allocation, Kubernetes 1.36.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

import msgspec
from msgspec.structs import replace

from pydra_dev.api import schema
from pydra_dev.api.errors import JsonObject
from pydra_dev.api.quantity import parse_quantity

DeviceKey = tuple[str, str, str]
"""Driver, pool and device."""

CounterKey = tuple[str, str]
"""Counter set and counter."""


class NamedSlice(msgspec.Struct, frozen=True):
    """A ResourceSlice: its name and spec."""

    name: str
    spec: schema.SliceSpec


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A device of a slice that the node can reach.

    `reachable`: whether it can reach the device too, where devices choose their nodes one by one. `local`: only this
    node can. `consumption` is what the device takes of its pool's counters.
    """

    driver: str
    pool: str
    device: schema.Device
    key: DeviceKey
    reachable: bool
    local: bool
    node_selector: schema.NodeSelector | None
    consumption: Mapping[CounterKey, Fraction]


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """One pool from one node; `problem` says why nothing is allocated from it.

    `counters` are the shared amounts; `consumption` is what each device of the pool takes of them, those of other
    nodes included. `groups` are the compatibility groups of each by counter set, if any device has some.
    """

    driver: str
    name: str
    candidates: tuple[Candidate, ...] = ()
    counters: Mapping[CounterKey, Fraction] = {}
    consumption: Mapping[DeviceKey, Mapping[CounterKey, Fraction]] = {}
    groups: Mapping[DeviceKey, Mapping[str, frozenset[str]]] = {}
    problem: str = ""


def add_taints(
    slices: Iterable[NamedSlice], rules: Sequence[schema.TaintRuleSpec], *, without_selector: bool = False
) -> list[NamedSlice]:
    """The slices with the taints that DeviceTaintRules give their devices.

    `without_selector`: a rule without a selector is for every device, not for none.
    """
    everything = schema.DeviceSelector() if without_selector else None
    chosen = [(selector, rule.taint) for rule in rules if (selector := rule.device_selector or everything) is not None]
    if not chosen:
        return list(slices)
    return [
        replace(
            one,
            spec=replace(one.spec, devices=tuple(_add_taints(one.spec, device, chosen) for device in one.spec.devices)),
        )
        for one in slices
    ]


def _add_taints(
    spec: schema.SliceSpec, device: schema.Device, rules: Sequence[tuple[schema.DeviceSelector, schema.Taint]]
) -> schema.Device:
    own = (spec.driver, spec.pool.name, device.name)
    taints = tuple(
        taint
        for chosen, taint in rules
        if all(
            wanted in {None, name}
            for wanted, name in zip((chosen.driver, chosen.pool, chosen.device), own, strict=True)
        )
    )
    return replace(device, taints=(*device.taints, *taints)) if taints else device


def build_pools(slices: Iterable[NamedSlice], node: JsonObject, *, groups: bool = True) -> tuple[PoolView, ...]:
    """The pools that have something for a node, in order of driver and name, those with binding conditions last.

    `groups`: compatibility groups are known (the feature gate DRADeviceCompatibilityGroups); a scheduler that does not
    know them takes nothing of a pool that has them.
    """
    by_pool: dict[tuple[str, str], list[NamedSlice]] = defaultdict(list)
    for one in sorted(slices, key=lambda one: one.name):
        by_pool[one.spec.driver, one.spec.pool.name].append(one)
    views = [
        _build_pool(driver, pool, members, node, groups=groups) for (driver, pool), members in sorted(by_pool.items())
    ]
    reachable = [view for view in views if view is not None]
    return tuple(sorted(reachable, key=_has_binding_conditions))


def _has_binding_conditions(view: PoolView) -> bool:
    return any(candidate.device.binding_conditions for candidate in view.candidates)


def _build_pool(
    driver: str, name: str, slices: Sequence[NamedSlice], node: JsonObject, *, groups: bool
) -> PoolView | None:
    relevant = [one.spec for one in slices if _is_relevant(one.spec, node)]
    if not relevant:
        return None
    newest = max(spec.pool.generation for spec in relevant)
    relevant = everything = [spec for spec in relevant if spec.pool.generation == newest]
    wanted = relevant[0].pool.resource_slice_count
    if len(relevant) != wanted:
        # The rest may be for other nodes. A newer generation that has nothing for this node replaces the pool, but
        # the scheduler sees it only here.
        if any(one.spec.pool.generation > newest for one in slices):
            return None
        everything = [one.spec for one in slices if one.spec.pool.generation == newest]
    if len(everything) != wanted:
        problem = f"is incomplete: {len(everything)} of {wanted} slices of generation {newest}"
        return PoolView(driver=driver, name=name, problem=problem)
    has_any_groups = any(
        one.compatibility_groups for spec in everything for device in spec.devices for one in device.consumes_counters
    )
    if has_any_groups and not groups:
        problem = "is incomplete: it has compatibility groups, which need the feature gate DRADeviceCompatibilityGroups"
        return PoolView(driver=driver, name=name, problem=problem)
    counters = {
        (counter_set.name, counter): parse_quantity(amount.value)
        for spec in relevant
        for counter_set in spec.shared_counters
        for counter, amount in counter_set.counters.items()
    }
    own = [spec for spec in relevant if not spec.shared_counters]
    invalid = _find_invalid(own, [*relevant, *everything], counters)
    if invalid:
        return PoolView(driver=driver, name=name, problem=invalid)
    return PoolView(
        driver=driver,
        name=name,
        candidates=tuple(candidate for spec in own for candidate in _build_candidates(spec, node)),
        counters=counters,
        groups={
            (driver, name, device.name): read_groups(device)
            for spec in everything
            for device in spec.devices
            if has_any_groups and device.consumes_counters
        },
        consumption={
            (driver, name, device.name): read_consumption(device)
            for spec in everything
            for device in spec.devices
            if device.consumes_counters
        },
    )


def read_consumption(device: schema.Device) -> Mapping[CounterKey, Fraction]:
    """What a device takes, by counter set and counter."""
    return {
        (consumption.counter_set, counter): parse_quantity(amount.value)
        for consumption in device.consumes_counters
        for counter, amount in consumption.counters.items()
    }


def read_groups(device: schema.Device) -> Mapping[str, frozenset[str]]:
    """The device's compatibility groups, by counter set."""
    return {one.counter_set: frozenset(one.compatibility_groups) for one in device.consumes_counters}


def _find_invalid(
    own: Sequence[schema.SliceSpec], everything: Sequence[schema.SliceSpec], counters: Mapping[CounterKey, Fraction]
) -> str:
    names = Counter(device.name for spec in own for device in spec.devices)
    shared = {id(spec): spec for spec in everything if spec.shared_counters}.values()
    sets = Counter(counter_set.name for spec in shared for counter_set in spec.shared_counters)
    for kind, counts in (("device", names), ("counter set", sets)):
        twice = next((name for name, count in counts.items() if count > 1), None)
        if twice is not None:
            return f"is invalid: {kind} {twice} appears more than once"
    for spec in everything:
        for device in spec.devices:
            unknown = next((key for key in read_consumption(device) if key not in counters), None)
            if unknown is not None:
                return f"is invalid: device {device.name} draws from unknown counter {'/'.join(unknown)}"
    return ""


def _is_relevant(spec: schema.SliceSpec, node: JsonObject) -> bool:
    if spec.shared_counters:
        return True  # whatever nodes it names: without its counters the pool cannot be used
    if spec.per_device_node_selection:
        return any(_reaches(device, node) for device in spec.devices)
    return _reaches(spec, node)


def _reaches(chosen: schema.SliceSpec | schema.Device, node: JsonObject) -> bool:
    if chosen.node_name is not None:
        return bool(chosen.node_name == node["metadata"]["name"])
    if chosen.node_selector is not None:
        return matches_node(chosen.node_selector, node)
    return bool(chosen.all_nodes)


def _build_candidates(spec: schema.SliceSpec, node: JsonObject) -> Iterator[Candidate]:
    for device in spec.devices:
        chosen = device if spec.per_device_node_selection else spec
        yield Candidate(
            driver=spec.driver,
            pool=spec.pool.name,
            device=device,
            key=(spec.driver, spec.pool.name, device.name),
            reachable=not spec.per_device_node_selection or _reaches(device, node),
            local=chosen.node_name is not None or bool(device.binds_to_node),
            node_selector=chosen.node_selector,
            consumption=read_consumption(device),
        )


def matches_node(selector: schema.NodeSelector, node: JsonObject) -> bool:
    """Whether any term of a node selector matches; an empty term matches nothing."""
    return any(_matches_term(term, node) for term in selector.node_selector_terms)


def _matches_term(term: schema.NodeTerm, node: JsonObject) -> bool:
    labels = node["metadata"].get("labels") or {}
    fields = {"metadata.name": node["metadata"]["name"]}
    requirements = [(one, labels) for one in term.match_expressions]
    requirements += [(one, fields) for one in term.match_fields]
    return bool(requirements) and all(_holds(one, values) for one, values in requirements)


def _holds(requirement: schema.Requirement, values: Mapping[str, str]) -> bool:
    value, listed, operator = values.get(requirement.key), requirement.values, requirement.operator
    if operator in {"In", "NotIn"}:
        return (value in listed) is (operator == "In")
    if operator in {"Exists", "DoesNotExist"}:
        return (value is not None) is (operator == "Exists")
    if value is None or not value.isdecimal():
        return False
    return int(value) > int(listed[0]) if operator == "Gt" else int(value) < int(listed[0])
