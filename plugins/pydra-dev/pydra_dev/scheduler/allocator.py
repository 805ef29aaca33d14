"""Allocates the claims of a pod on a node, or says for each device why not. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction

from pydra.diagnosis.explain import Judgement, Judgements
from pydra_dev.api import schema
from pydra_dev.api.errors import JsonObject
from pydra_dev.api.quantity import parse_quantity
from pydra_dev.scheduler.allocation_result import build_allocation
from pydra_dev.scheduler.device_accounting import InUse, Wish
from pydra_dev.scheduler.pools import Candidate, DeviceKey, NamedSlice, build_pools
from pydra_dev.scheduler.search import (
    DEFAULT_FEATURES,
    AllocationError,
    Features,
    Mismatch,
    NamedClaim,
    NodeAllocationError,
    Search,
)
from pydra_dev.scheduler.selector_mismatch import describe_values

__all__ = ["AllocationError", "InUse", "NamedClaim", "NodeAllocationError", "allocate", "read_in_use", "review_devices"]


def read_in_use(statuses: Iterable[schema.ClaimStatus]) -> InUse:
    """What allocated claims hold; admin access holds nothing."""
    whole: set[DeviceKey] = set()
    shared: dict[DeviceKey, dict[str, Fraction]] = {}
    for status in statuses:
        for result in status.allocation.devices.results if status.allocation is not None else ():
            key = (result.driver, result.pool, result.device)
            if result.admin_access:
                continue
            if result.share_id is None:
                whole.add(key)
                continue
            amounts = shared.setdefault(key, {})
            for name, amount in result.consumed_capacity.items():
                amounts[name] = amounts.get(name, Fraction(0)) + parse_quantity(amount)
    return InUse(whole=frozenset(whole), shared=shared)


def allocate(
    claims: Sequence[NamedClaim],
    *,
    node: JsonObject,
    slices: Iterable[NamedSlice],
    classes: Mapping[str, schema.ClassSpec],
    in_use: InUse,
    build_uid: Callable[[], str],
    features: Features = DEFAULT_FEATURES,
) -> tuple[schema.Allocation, ...]:
    """One allocation per claim; raises AllocationError.

    `build_uid` makes share ids.
    """
    search = Search(claims, build_pools(slices, node, groups=features.groups), classes, in_use, features)
    if not search.run():
        raise NodeAllocationError(_explain(search))
    return tuple(
        build_allocation(
            claim.spec,
            [pick for pick in search.picks if pick.claim == index],
            classes=classes,
            node=node,
            build_uid=build_uid,
        )
        for index, claim in enumerate(claims)
    )


def review_devices(
    claims: Sequence[NamedClaim],
    *,
    node: JsonObject,
    slices: Iterable[NamedSlice],
    classes: Mapping[str, schema.ClassSpec],
    in_use: InUse,
    features: Features = DEFAULT_FEATURES,
) -> Judgements:
    """For each request, or each of its alternatives, every device that the node reaches; raises AllocationError.

    A reason is what is against the device beside what the search has picked; without a solution it has picked nothing.
    """
    search = Search(claims, build_pools(slices, node, groups=features.groups), classes, in_use, features)
    problem = "" if search.run() else _explain(search)
    picked = {(pick.claim, pick.request, pick.candidate.key) for pick in search.picks}
    found = tuple(
        _review(search, wish, one, is_picked=(wish.claim, wish.name, one.key) in picked)
        for wishes in search.wishes
        for wish in wishes
        for one in search.candidates
    )
    return Judgements(devices=found, problem=problem)


def _review(search: Search, wish: Wish, candidate: Candidate, *, is_picked: bool) -> Judgement:
    reason = "" if is_picked else _find_obstacle(search, wish, candidate)
    mismatch = _find_mismatch(search, wish, candidate)
    values = describe_values(mismatch.expression, candidate.driver, candidate.device) if mismatch is not None else ""
    return Judgement(request=wish.name, device=candidate.key, reason=reason, picked=is_picked, values=values)


def _find_obstacle(search: Search, wish: Wish, candidate: Candidate) -> str:
    """What is against the device, above all that it is none which is wanted: nobody waits then until it is free."""
    mismatch = _find_mismatch(search, wish, candidate)
    return mismatch.text if mismatch is not None else search.find_obstacle(wish, candidate)


def _find_mismatch(search: Search, wish: Wish, candidate: Candidate) -> Mismatch | None:
    """Why the device is not wanted; a selector that fails for a device that the search passed over ends nothing."""
    try:
        return search.selection.find_mismatch(wish, candidate)
    except AllocationError as error:
        return Mismatch(str(error))


def _explain(search: Search) -> str:
    """Why there is no solution, in words for the pod's owner."""
    for wishes in search.wishes:
        texts = [_explain_wish(search, wish) for wish in wishes]
        if texts and all(texts):
            return f"claim {search.claims[wishes[0].claim].name}, " + "; ".join(texts)
    names = ", ".join(claim.name for claim in search.claims)
    text = f"the requests of {names} cannot be satisfied together"
    if search.deadlock is None:
        return text
    wish, obstacles = search.deadlock
    return f"{text}: request {wish.name} finds no device beside those before it ({_count(obstacles)})"


def _explain_wish(search: Search, wish: Wish) -> str:
    """Why the request cannot be satisfied even alone; empty if it can."""
    obstacles = [_find_obstacle(search, wish, one) for one in search.candidates]
    matching = [
        obstacle
        for obstacle, one in zip(obstacles, search.candidates, strict=True)
        if _find_mismatch(search, wish, one) is None
    ]
    free, everything = matching.count(""), wish.devices is not None
    if 0 < len(matching) == free if everything else free >= wish.count:
        return ""
    amount = "all devices" if everything else f"{wish.count} device{'s' if wish.count > 1 else ''}"
    text = f"request {wish.name}: wants {amount} of class {wish.wanted.device_class_name}, "
    text += f"of {len(matching)} that match {free} are available"
    listed = _count(obstacle for obstacle in obstacles if obstacle)
    problems = "; ".join(f"pool {p.driver}/{p.name} {p.problem}" for p in search.pools if p.problem)
    return text + (f" ({listed})" if listed else "") + (f"; {problems}" if problems else "")


MAX_LISTED = 5
"""Different reasons in one message."""


def _count(obstacles: Iterable[str]) -> str:
    counted = Counter(obstacles).most_common()
    listed = [f"{count} {obstacle}" for obstacle, count in counted[:MAX_LISTED]]
    more = sum(count for _, count in counted[MAX_LISTED:])
    return ", ".join([*listed, f"{more} for other reasons"] if more else listed)
