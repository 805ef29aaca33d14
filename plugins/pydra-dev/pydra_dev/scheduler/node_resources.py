"""What pods use of their node's own resources, such as its CPUs, also by their claims (KEP-5517). Pure.

The scheduler counts the requests of containers and what devices say in `nodeAllocatableResources` (in Kubernetes 1.36:
`nodeAllocatableResourceMappings`), and writes the latter into the pod's status, from which it is counted later.
Source: KEP-5517, Kubernetes 1.36 and 1.37.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction

import msgspec

from pydra_dev.api import schema
from pydra_dev.api.errors import JsonObject
from pydra_dev.api.quantity import BINARY, DECIMAL, format_quantity, parse_quantity
from pydra_dev.apiserver.slice_rules import NATIVE_RESOURCES
from pydra_dev.scheduler.consumable_capacity import find_amount
from pydra_dev.scheduler.pools import DeviceKey

FIELD = "nodeAllocatableResourceClaimStatuses"

Amounts = Mapping[str, Fraction]
"""By the name of the resource."""


class AccountError(Exception):
    """What a pod would use cannot be counted; the message says why."""


class ClaimUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod uses by one claim, and which of its containers name it; `mapping` is of the devices themselves."""

    claim: str
    containers: tuple[str, ...]
    mapping: Amounts
    per_pod: Amounts
    per_container: Amounts


def count_claim(
    name: str, allocation: schema.Allocation, containers: Sequence[str], devices: Mapping[DeviceKey, schema.Device]
) -> ClaimUse:
    """What a pod uses by an allocated claim; raises AccountError."""
    mapping, per_pod, per_container = (defaultdict[str, Fraction](Fraction) for _ in range(3))
    for result in allocation.devices.results:
        device = devices.get((result.driver, result.pool, result.device))
        if device is None:
            raise AccountError(f"device {result.device} of claim {name} is not in any ResourceSlice")
        if result.admin_access:
            continue
        for resource, one in _list_mappings(device):
            mapping[resource] += _count_mapping(result, one)
        for resource, entry in device.node_allocatable_resources.items():
            overhead = entry.overhead or schema.AllocatableOverhead()
            per_pod[resource] += parse_quantity(overhead.per_pod or 0)
            per_container[resource] += parse_quantity(overhead.per_container or 0)
    return ClaimUse(
        claim=name,
        containers=tuple(containers),
        mapping=_drop_zeros(mapping),
        per_pod=_drop_zeros(per_pod),
        per_container=_drop_zeros(per_container),
    )


def _list_mappings(device: schema.Device) -> Iterator[tuple[str, schema.AllocatableMapping]]:
    yield from device.node_allocatable_resource_mappings.items()
    for resource, one in device.node_allocatable_resources.items():
        if one.mapping is not None:
            yield resource, one.mapping


def _count_mapping(result: schema.Result, mapping: schema.AllocatableMapping) -> Fraction:
    given = (mapping.allocation_multiplier, mapping.capacity_multiplier, mapping.device_multiplier)
    multiplier = parse_quantity(next((one for one in given if one is not None), 1))
    if mapping.capacity_key is None:
        return multiplier
    if not result.consumed_capacity:
        raise AccountError(f"device {result.device} was allocated without a share of its {mapping.capacity_key}")
    consumed = {name: parse_quantity(amount) for name, amount in result.consumed_capacity.items()}
    return find_amount(consumed, mapping.capacity_key, result.driver) * multiplier


def build_status(uses: Iterable[ClaimUse], minor: int) -> list[JsonObject]:
    """The entries of the pod's status, in the order of the claims' names; none of a claim that uses nothing."""
    return [
        _build_entry(use, minor)
        for use in sorted(uses, key=lambda use: use.claim)
        if use.mapping or use.per_pod or use.per_container
    ]


def _build_entry(use: ClaimUse, minor: int) -> JsonObject:
    entry: JsonObject = {"resourceClaimName": use.claim}
    if use.containers:
        entry["containers"] = list(use.containers)
    mapping = {name: _format(name, amount) for name, amount in sorted(use.mapping.items())}
    if minor < 37:
        return entry | {"resources": mapping}
    if mapping:
        entry["mapping"] = [{"name": name, "quantity": amount} for name, amount in mapping.items()]
    fields = {"perPod": use.per_pod, "perContainer": use.per_container}
    if names := sorted({*use.per_pod, *use.per_container}):
        entry["overhead"] = [
            {"name": name}
            | {field: _format(name, amounts[name]) for field, amounts in fields.items() if name in amounts}
            for name in names
        ]
    return entry


def _format(resource: str, amount: Fraction) -> str:
    return format_quantity(amount, DECIMAL if resource == "cpu" else BINARY)


def explain_shortage(
    pod: JsonObject, entries: Sequence[JsonObject], *, node: JsonObject, others: Iterable[JsonObject]
) -> str:
    """Why the node has too little for the pod and these entries of its status; empty if it has enough."""
    wanted = _count_pod(pod["spec"], entries)
    whole = (pod["spec"].get("resources") or {}).get("requests") or {}
    for resource, amount in wanted.items():
        if resource in whole and parse_quantity(whole[resource]) < amount:
            return f"pod level request for {resource} is insufficient to cover {_format(resource, amount)}"
    used = add_amounts(*(_find_footprint(other["spec"], other["status"].get(FIELD) or ()) for other in others))
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    for resource, amount in _find_footprint(pod["spec"], entries).items():
        if resource in allocatable and amount > parse_quantity(allocatable[resource]) - used[resource]:
            free = _format(resource, parse_quantity(allocatable[resource]) - used[resource])
            return f"Insufficient {resource}: wants {_format(resource, amount)}, {free} are free"
    return ""


def _find_footprint(spec: JsonObject, entries: Iterable[JsonObject]) -> Amounts:
    """What the scheduler counts for a pod: what it says for the whole, or else the sum of everything."""
    return {**_count_pod(spec, entries), **_read_amounts((spec.get("resources") or {}).get("requests"))}


def _count_pod(spec: JsonObject, entries: Iterable[JsonObject]) -> Amounts:
    """What the containers and the claims use."""
    return add_amounts(count_containers(spec, _read_amounts), *map(_read_entry, entries))


def count_containers(spec: JsonObject, read: Callable[[JsonObject], Amounts]) -> Amounts:
    """The requests of a pod's containers, or the most while one of the init containers runs.

    `read` gives the amounts of the resources that are counted.
    """
    always: Amounts = {}
    peak: Amounts = {}
    for container in spec.get("initContainers") or ():
        running = add_amounts(always, read(_list_requests(container)))
        peak = _find_most(peak, running)
        if container.get("restartPolicy") == "Always":
            always = running
    return _find_most(peak, add_amounts(always, *(read(_list_requests(one)) for one in spec.get("containers") or ())))


def _find_most(one: Amounts, other: Amounts) -> Amounts:
    return {name: max(one.get(name, Fraction()), other.get(name, Fraction())) for name in {*one, *other}}


def _read_entry(entry: JsonObject) -> Amounts:
    mapping = {one["name"]: one["quantity"] for one in entry.get("mapping") or ()}
    overhead = entry.get("overhead") or ()
    containers = len(entry.get("containers") or ())
    each = {one["name"]: parse_quantity(one.get("perContainer", 0)) * containers for one in overhead}
    per_pod = {one["name"]: one.get("perPod", 0) for one in overhead}
    return add_amounts(*map(_read_amounts, (entry.get("resources"), mapping, per_pod)), each)


def add_amounts(*parts: Amounts) -> dict[str, Fraction]:
    """The sum for each resource."""
    total = defaultdict[str, Fraction](Fraction)
    for part in parts:
        for name, amount in part.items():
            total[name] += amount
    return total


def _drop_zeros(amounts: Amounts) -> Amounts:
    return {name: amount for name, amount in amounts.items() if amount}


def _list_requests(container: JsonObject) -> JsonObject:
    resources = container.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}


def _read_amounts(given: JsonObject | None) -> Amounts:
    found = {}
    for name, amount in (given or {}).items():
        with suppress(ValueError):  # a real API server refuses such a pod
            if name in NATIVE_RESOURCES or name.startswith("hugepages-"):
                found[name] = parse_quantity(amount)
    return found


def list_containers(pod: JsonObject, pod_claim: str) -> Sequence[str]:
    """The pod's containers that name the claim, init containers first, once for each time."""
    spec = pod["spec"]
    return [
        container["name"]
        for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
        for claim in (container.get("resources") or {}).get("claims") or ()
        if claim.get("name") == pod_claim
    ]
