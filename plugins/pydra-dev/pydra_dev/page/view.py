"""What the page shows, as values: devices and counters of each pool, claims with their pods, one claim or device. Pure.

What a device is worth to a claim is the scheduler's to say: these functions ask its search, and decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Literal

import msgspec
from msgspec.structs import replace

from pydra.diagnosis.explain import Judgements
from pydra_dev.api.errors import JsonObject
from pydra_dev.api.pod_fields import claim_names
from pydra_dev.api.quantity import format_like
from pydra_dev.apiserver.tables import describe_claim, describe_pod
from pydra_dev.kubelet.observations import Called
from pydra_dev.output.descriptions import Refusal, describe_step, full_name, group_refusals, read_values
from pydra_dev.scheduler.device_accounting import DeviceAccounting, InUse, count_left
from pydra_dev.scheduler.pools import Candidate, CounterKey, DeviceKey, NamedSlice, PoolView, build_pools
from pydra_dev.scheduler.taints import find_taint, format_taint

PREFERRED = "free, and would be taken if the claim were allocated now"
Use = Literal["free", "held", "shared", "blocked"]


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device: `shared` has room for more claims, `blocked` is available only when counters are free again.

    `obstacle` is what is blocking it. `broken`: a taint keeps claims from it that do not tolerate that.
    """

    key: DeviceKey
    use: Use
    claims: tuple[str, ...]
    obstacle: str
    taints: tuple[str, ...]
    broken: bool
    health: str


class Counter(msgspec.Struct, frozen=True, kw_only=True):
    """One counter of a set, in the units of its slice; `part` is what claims have of it, from 0 to 1."""

    name: str
    used: str
    total: str
    part: float


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A counter set and the devices that draw from it; without a name, devices that draw from none."""

    name: str
    counters: tuple[Counter, ...]
    devices: tuple[Device, ...]


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """One pool; `problem` says why nothing is allocated from it."""

    driver: str
    name: str
    problem: str
    groups: tuple[Group, ...]


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer of a claim; `message` says why it is not scheduled."""

    namespace: str
    name: str
    status: str
    message: str


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """One claim; `call` is how the kubelet's last call for it ended."""

    namespace: str
    name: str
    state: str
    devices: tuple[DeviceKey, ...]
    pods: tuple[Pod, ...]
    call: str
    failed: bool


class ClaimPage(msgspec.Struct, frozen=True, kw_only=True):
    """All about one claim: its spec, what each request has, and why it does not have the other devices.

    `problem` is a mistake in the claim or its class, and then there are no refusals.
    """

    claim: Claim
    spec: JsonObject
    results: tuple[tuple[str, DeviceKey], ...]
    refusals: tuple[Refusal, ...]
    problem: str
    specs: tuple[tuple[str, str], ...] = ()


class DevicePage(msgspec.Struct, frozen=True, kw_only=True):
    """All about one device: capacities, attributes and what it takes of counters, by short name."""

    device: Device
    values: Mapping[str, str]


def build_shown_pools(
    slices: Sequence[NamedSlice],
    *,
    node: JsonObject,
    in_use: InUse,
    claims: Iterable[JsonObject],
    health: Mapping[DeviceKey, str],
) -> tuple[Pool, ...]:
    """Every pool that the node reaches."""
    pools = build_pools(slices, node)
    usage = _Usage(in_use, DeviceAccounting(pools, in_use), _list_holders(claims), health)
    texts = _read_counter_texts(slices)
    return tuple(_build_pool(pool, usage, texts) for pool in pools)


class _Usage(msgspec.Struct, frozen=True):
    in_use: InUse
    books: DeviceAccounting
    holders: Mapping[DeviceKey, tuple[str, ...]]
    health: Mapping[DeviceKey, str]


def _build_pool(pool: PoolView, usage: _Usage, texts: Mapping[tuple[str, str, CounterKey], str]) -> Pool:
    left = count_left(pool, usage.in_use)
    sets: dict[str, list[Device]] = {name: [] for name, _ in left}
    for one in pool.candidates:
        name = next((name for name, _ in one.consumption), "")
        sets.setdefault(name, []).append(_build_device(one, usage))
    groups = tuple(
        Group(
            name=name,
            devices=tuple(devices),
            counters=tuple(
                _build_counter(key[1], texts[pool.driver, pool.name, key], pool.counters[key], left[key])
                for key in left
                if key[0] == name
            ),
        )
        for name, devices in sets.items()
    )
    return Pool(driver=pool.driver, name=pool.name, problem=pool.problem, groups=groups)


def _build_counter(name: str, text: str, total: Fraction, left: Fraction) -> Counter:
    used = total - left
    return Counter(name=name, used=format_like(used, text), total=text, part=float(used / total) if total else 0.0)


def _build_device(one: Candidate, usage: _Usage) -> Device:
    obstacle = ""
    use: Use = "held" if one.key in usage.in_use.whole else "shared" if one.key in usage.in_use.shared else "free"
    if use == "free" and (obstacle := usage.books.find_drained(one)):
        use = "blocked"
    return Device(
        key=one.key,
        use=use,
        claims=usage.holders.get(one.key, ()),
        obstacle=obstacle,
        taints=tuple(map(format_taint, one.device.taints)),
        broken=bool(find_taint(one.device, ())),
        health=usage.health.get(one.key, ""),
    )


def _list_holders(claims: Iterable[JsonObject]) -> dict[DeviceKey, tuple[str, ...]]:
    """The claims of each device, also those with admin access."""
    holders: dict[DeviceKey, tuple[str, ...]] = {}
    for claim in claims:
        for _, key in _list_results(claim):
            holders[key] = (*holders.get(key, ()), full_name(claim))
    return holders


def _list_results(claim: JsonObject) -> Iterator[tuple[str, DeviceKey]]:
    allocation = claim.get("status", {}).get("allocation") or {}
    for one in allocation.get("devices", {}).get("results") or ():
        yield one["request"], (one["driver"], one["pool"], one["device"])


def _read_counter_texts(slices: Iterable[NamedSlice]) -> dict[tuple[str, str, CounterKey], str]:
    """How the slices write each counter's amount."""
    return {
        (one.spec.driver, one.spec.pool.name, (counter_set.name, name)): str(counter.value)
        for one in slices
        for counter_set in one.spec.shared_counters
        for name, counter in counter_set.counters.items()
    }


def build_claims(
    claims: Iterable[JsonObject], pods: Sequence[JsonObject], calls: Mapping[str, Called]
) -> tuple[Claim, ...]:
    """Every claim, oldest first."""
    ordered = sorted(claims, key=lambda claim: (claim["metadata"]["creationTimestamp"], full_name(claim)))
    return tuple(_build_claim(claim, pods, calls) for claim in ordered)


def _build_claim(claim: JsonObject, pods: Sequence[JsonObject], calls: Mapping[str, Called]) -> Claim:
    namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
    call = calls.get(full_name(claim))
    told = describe_step(call) if call is not None else None
    return Claim(
        namespace=namespace,
        name=name,
        state=describe_claim(claim),
        devices=tuple(key for _, key in _list_results(claim)),
        pods=tuple(
            _build_pod(pod)
            for pod in pods
            if pod["metadata"]["namespace"] == namespace and name in claim_names(pod).values()
        ),
        call="\n".join((told.headline, *(told.details if call and call.error else ()))) if told else "",
        failed=call is not None and bool(call.error),
    )


def _build_pod(pod: JsonObject) -> Pod:
    conditions = pod.get("status", {}).get("conditions") or ()
    waiting = (one for one in conditions if one["type"] == "PodScheduled" and one["status"] == "False")
    return Pod(
        namespace=pod["metadata"]["namespace"],
        name=pod["metadata"]["name"],
        status=describe_pod(pod),
        message=next((one.get("message", "") for one in waiting), ""),
    )


def build_claim_page(claim: Claim, obj: JsonObject, reviews: Judgements) -> ClaimPage:
    """A claim with the scheduler's reviews of every device, as it would decide now."""
    results = tuple(_list_results(obj))
    others = [one for one in reviews.devices if (one.request, one.device) not in results]
    return ClaimPage(
        claim=claim,
        spec=obj["spec"],
        results=results,
        refusals=group_refusals(replace(one, picked=False, reason=PREFERRED) if one.picked else one for one in others),
        problem=reviews.problem,
    )


def build_device_page(device: Device, slices: Iterable[JsonObject]) -> DevicePage:
    """A device with what its slice says of it."""
    driver, pool, name = device.key
    found: Iterator[JsonObject] = (
        one
        for spec in (obj["spec"] for obj in slices)
        if (spec["driver"], spec["pool"]["name"]) == (driver, pool)
        for one in spec.get("devices") or ()
        if one["name"] == name
    )
    values = read_values(next(found, {}))
    values.pop("taints", None)  # they are with the device, those of DeviceTaintRules too
    return DevicePage(device=device, values=values)
