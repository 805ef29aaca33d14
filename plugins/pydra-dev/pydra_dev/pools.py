"""ResourceSlices as the allocator sees them from one node, and the result it writes into `status.allocation`. Pure.

Source: the structured allocator of k8s.io/dynamic-resource-allocation and the API reference, Kubernetes 1.36.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

import msgspec
from msgspec.structs import replace

from pydra_dev import schema
from pydra_dev.quantity import BINARY, format_quantity, parse_quantity
from pydra_dev.status import JsonObject

DeviceKey = tuple[str, str, str]
"""Driver, pool and device."""


class NamedSlice(msgspec.Struct, frozen=True):
    """A ResourceSlice: its name and spec."""

    name: str
    spec: schema.SliceSpec


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A device that the node can reach; `local`: only this node can."""

    driver: str
    pool: str
    device: schema.Device
    local: bool
    node_selector: JsonObject | None

    @property
    def key(self) -> DeviceKey:
        """The device's identity in the cluster."""
        return (self.driver, self.pool, self.device.name)


class PoolView(msgspec.Struct, frozen=True, kw_only=True):
    """One pool from one node; `problem` says why nothing may be allocated from it, empty when all is well.

    `counters` are the shared amounts by set and name; `consumption` is what each device of the
    pool draws from them, those of other nodes included.
    """

    driver: str
    name: str
    candidates: tuple[Candidate, ...]
    counters: Mapping[tuple[str, str], Fraction]
    consumption: Mapping[str, Mapping[tuple[str, str], Fraction]]
    problem: str = ""


def build_pools(slices: Iterable[NamedSlice], node: JsonObject) -> tuple[PoolView, ...]:
    """The pools that have something for a node, in order of driver and name, those with binding conditions last."""
    by_pool: dict[tuple[str, str], list[NamedSlice]] = defaultdict(list)
    for one in sorted(slices, key=lambda one: one.name):
        by_pool[one.spec.driver, one.spec.pool.name].append(one)
    views = [_build_pool(driver, pool, members, node) for (driver, pool), members in sorted(by_pool.items())]
    reachable = [view for view in views if view is not None]
    return tuple(sorted(reachable, key=_has_binding_conditions))


def _has_binding_conditions(view: PoolView) -> bool:
    return any(candidate.device.binding_conditions for candidate in view.candidates)


def _build_pool(driver: str, name: str, slices: Sequence[NamedSlice], node: JsonObject) -> PoolView | None:
    newest = max(one.spec.pool.generation for one in slices)
    current = [one.spec for one in slices if one.spec.pool.generation == newest]
    candidates = tuple(candidate for spec in current for candidate in _find_candidates(spec, node))
    if not candidates and not any(_reaches(spec, node) for spec in current):
        return None
    counters = {
        (counter_set.name, counter): parse_quantity(amount.value)
        for spec in current
        for counter_set in spec.shared_counters
        for counter, amount in counter_set.counters.items()
    }
    consumption = {device.name: read_consumption(device) for spec in current for device in spec.devices}
    return PoolView(
        driver=driver,
        name=name,
        candidates=candidates,
        counters=counters,
        consumption=consumption,
        problem=_find_problem(current, newest, counters, consumption),
    )


def read_consumption(device: schema.Device) -> Mapping[tuple[str, str], Fraction]:
    """What a device draws, by counter set and counter."""
    return {
        (consumption.counter_set, counter): parse_quantity(amount.value)
        for consumption in device.consumes_counters
        for counter, amount in consumption.counters.items()
    }


def _find_problem(
    current: Sequence[schema.SliceSpec],
    generation: int,
    counters: Mapping[tuple[str, str], Fraction],
    consumption: Mapping[str, Mapping[tuple[str, str], Fraction]],
) -> str:
    wanted = max(spec.pool.resource_slice_count for spec in current)
    if len(current) < wanted:
        return f"is incomplete: {len(current)} of {wanted} slices of generation {generation}"
    names = Counter(device.name for spec in current for device in spec.devices)
    sets = Counter(counter_set.name for spec in current for counter_set in spec.shared_counters)
    for kind, counts in (("device", names), ("counter set", sets)):
        twice = sorted(name for name, count in counts.items() if count > 1)
        if twice:
            return f"is invalid: {kind} {twice[0]} appears more than once"
    for device, drawn in sorted(consumption.items()):
        unknown = sorted(set(drawn) - set(counters))
        if unknown:
            return f"is invalid: device {device} draws from unknown counter {'/'.join(unknown[0])}"
    return ""


def _reaches(spec: schema.SliceSpec, node: JsonObject) -> bool:
    if spec.node_name is not None:
        return bool(spec.node_name == node["metadata"]["name"])
    if spec.node_selector is not None:
        return matches_node(spec.node_selector, node)
    return bool(spec.all_nodes)


def _find_candidates(spec: schema.SliceSpec, node: JsonObject) -> Iterable[Candidate]:
    whole = _reaches(spec, node)
    for device in spec.devices:
        if spec.per_device_node_selection:
            own = schema.SliceSpec(
                node_name=device.node_name, node_selector=device.node_selector, all_nodes=device.all_nodes
            )
            reachable = _reaches(own, node)
        else:
            own, reachable = spec, whole
        if reachable:
            yield Candidate(
                driver=spec.driver,
                pool=spec.pool.name,
                device=device,
                local=own.node_name is not None or bool(device.binds_to_node),
                node_selector=own.node_selector,
            )


def matches_node(selector: JsonObject, node: JsonObject) -> bool:
    """Whether any term of a node selector matches; an empty term matches nothing."""
    return any(_matches_term(term, node) for term in selector.get("nodeSelectorTerms") or ())


def _matches_term(term: JsonObject, node: JsonObject) -> bool:
    labels = node["metadata"].get("labels") or {}
    fields = {"metadata.name": node["metadata"]["name"]}
    requirements = [(one, labels) for one in term.get("matchExpressions") or ()]
    requirements += [(one, fields) for one in term.get("matchFields") or ()]
    return bool(requirements) and all(_holds(one, values) for one, values in requirements)


def _holds(requirement: JsonObject, values: Mapping[str, str]) -> bool:
    value, listed = values.get(requirement["key"]), requirement.get("values") or []
    operator = requirement["operator"]
    if operator in {"In", "NotIn"}:
        return (value in listed) is (operator == "In")
    if operator in {"Exists", "DoesNotExist"}:
        return (value is not None) is (operator == "Exists")
    if value is None or not value.isdecimal():
        return False
    return int(value) > int(listed[0]) if operator == "Gt" else int(value) < int(listed[0])


class Pick(msgspec.Struct, frozen=True, kw_only=True):
    """One device for one request (`req` or `req/sub`); `share` is what it takes of each capacity."""

    claim: int
    request: str
    wanted: schema.Request
    candidate: Candidate
    share: Mapping[str, Fraction]

    @property
    def admin(self) -> bool:
        """Admin access takes nothing from anybody."""
        return bool(self.wanted.admin_access)


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """A claim and everything picked for it, in the order of its requests."""

    spec: schema.ClaimSpec
    picks: tuple[Pick, ...]


def build_allocation(
    chosen: Chosen, *, classes: Mapping[str, schema.ClassSpec], node: JsonObject, build_uid: Callable[[], str]
) -> schema.Allocation:
    """The allocation of one claim: results, configuration and the nodes it is for."""
    return schema.Allocation(
        devices=schema.Results(
            results=tuple(_build_result(pick, build_uid) for pick in chosen.picks),
            config=tuple(_build_config(chosen, classes)),
        ),
        node_selector=_build_node_selector(chosen.picks, node["metadata"]["name"]),
    )


def _build_result(pick: Pick, build_uid: Callable[[], str]) -> schema.Result:
    candidate, device = pick.candidate, pick.candidate.device
    result = schema.Result(
        request=pick.request,
        driver=candidate.driver,
        pool=candidate.pool,
        device=device.name,
        admin_access=pick.wanted.admin_access,
        tolerations=pick.wanted.tolerations,
        binding_conditions=device.binding_conditions,
        binding_failure_conditions=device.binding_failure_conditions,
    )
    if not device.allow_multiple_allocations or pick.admin:
        return result
    consumed = {
        name: schema.Quantity(format_quantity(amount, BINARY if amount >= 1024 else "DecimalSI"))
        for name, amount in pick.share.items()
    }
    return replace(result, share_id=build_uid(), consumed_capacity=consumed)


def _build_config(chosen: Chosen, classes: Mapping[str, schema.ClassSpec]) -> list[schema.ClaimConfig]:
    """Each class's configuration once, for all its requests; then the claim's, for what was chosen."""
    requests: dict[str, list[str]] = {}
    for pick in chosen.picks:
        named = requests.setdefault(pick.wanted.device_class_name, [])
        if pick.request not in named:
            named.append(pick.request)
    configs = [
        schema.ClaimConfig(source="FromClass", requests=tuple(names), opaque=config.opaque)
        for class_name, names in requests.items()
        for config in classes[class_name].config
    ]
    picked = {pick.request for pick in chosen.picks}
    for config in chosen.spec.devices.config:
        if not config.requests:
            configs.append(replace(config, source="FromClaim"))
            continue
        kept = _keep_picked(config.requests, picked)
        if kept:
            configs.append(replace(config, source="FromClaim", requests=kept))
    return configs


def _keep_picked(names: Sequence[str], picked: set[str]) -> tuple[str, ...]:
    bases = {request.partition("/")[0] for request in picked}
    return tuple(name for name in names if name in picked or name in bases)


def _build_node_selector(picks: Sequence[Pick], node: str) -> JsonObject | None:
    if any(pick.candidate.local for pick in picks):
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        return {"nodeSelectorTerms": [{"matchFields": [field]}]}
    merged: dict[str, list[JsonObject]] = {}
    for pick in picks:
        for term in (pick.candidate.node_selector or {}).get("nodeSelectorTerms") or ():
            for part, requirements in term.items():
                known = merged.setdefault(part, [])
                known += [one for one in requirements if one not in known]
    return {"nodeSelectorTerms": [merged]} if merged else None
