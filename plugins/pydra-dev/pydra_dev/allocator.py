"""First-fit allocation of a pod's claims on one node. Pure.

Devices are tried in the order of pools, slices and devices, with backtracking, and the first combination that
satisfies every request, constraint, counter and share is taken. Devices are not scored, and a selector that
`expressions` cannot evaluate is refused by name. Source: the structured allocator of
k8s.io/dynamic-resource-allocation, Kubernetes 1.36.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from math import ceil

import msgspec

from pydra_dev import schema
from pydra_dev.expressions import EvaluationError, UnsupportedExpressionError, compile_expression
from pydra_dev.pools import Candidate, Chosen, DeviceKey, NamedSlice, Pick, PoolView, build_allocation, build_pools
from pydra_dev.quantity import parse_quantity
from pydra_dev.status import JsonObject


def satisfies_constraints(constraints: Sequence[schema.Constraint], picks: Sequence[Pick]) -> bool:
    """Whether the picks of one claim keep all its constraints."""
    return all(_holds(constraint, picks) for constraint in constraints)


def covers(requests: Sequence[str], request: str) -> bool:
    """Whether a list of request names (empty: all) includes a request; a request includes its subrequests."""
    return not requests or request in requests or request.partition("/")[0] in requests


def _holds(constraint: schema.Constraint, picks: Sequence[Pick]) -> bool:
    concerned = [pick for pick in picks if covers(constraint.requests, pick.request)]
    name = constraint.match_attribute or constraint.distinct_attribute or ""
    found = [_read_values(pick, name) for pick in concerned]
    if any(values is None for values in found):
        return False
    values = [one for one in found if one is not None]
    if constraint.match_attribute is not None:
        return not values or bool(frozenset.intersection(*values))
    return sum(map(len, values)) == len(frozenset[Hashable]().union(*values))


def _read_values(pick: Pick, name: str) -> frozenset[Hashable] | None:
    """The attribute's values, each with its type; a scalar is a list of one."""
    attributes = pick.candidate.device.attributes
    domain, _, identifier = name.partition("/")
    attribute = attributes.get(name)
    if attribute is None and domain == pick.candidate.driver:
        attribute = attributes.get(identifier)
    if attribute is None:
        return None
    typed = schema.build_fields(attribute)
    return frozenset(
        (type_.rstrip("s"), value)
        for type_, values in typed.items()
        for value in (values if isinstance(values, list) else [values])
    )


def plan_share(device: schema.Device, requested: Mapping[str, str]) -> Mapping[str, Fraction] | None:
    """What the request takes of every capacity of the device; None when the device cannot give it.

    What is not asked for is taken by the policy's default, or whole.
    """
    if set(requested) - set(device.capacity):
        return None
    share: dict[str, Fraction] = {}
    for name, capacity in device.capacity.items():
        asked = parse_quantity(requested[name]) if name in requested else None
        amount = _round(capacity, asked)
        if amount is None or amount > parse_quantity(capacity.value):
            return None
        share[name] = amount
    return share


def _round(capacity: schema.Capacity, asked: Fraction | None) -> Fraction | None:
    policy = capacity.request_policy
    default = parse_quantity(policy.default) if policy is not None and policy.default is not None else None
    if asked is None:
        return parse_quantity(capacity.value) if default is None else default
    if policy is None or asked == default:
        return asked
    if policy.valid_values:
        fitting = [value for value in map(parse_quantity, policy.valid_values) if value >= asked]
        return min(fitting, default=None)
    return asked if policy.valid_range is None else _round_to_range(policy.valid_range, asked)


def _round_to_range(valid: schema.ValidRange, asked: Fraction) -> Fraction | None:
    low = parse_quantity(valid.min) if valid.min is not None else Fraction(0)
    amount = max(asked, low)
    if valid.step is not None:
        step = parse_quantity(valid.step)
        amount = low + ceil((amount - low) / step) * step
    if valid.max is not None and amount > parse_quantity(valid.max):
        return None
    return amount


MAX_RESULTS = 32
MAX_STEPS = 10_000
"""Candidates looked at in one allocation before the search gives up."""


class AllocationError(Exception):
    """The claims cannot be allocated on this node; the message says why."""


class NamedClaim(msgspec.Struct, frozen=True):
    """A claim to allocate: `namespace/name` and its spec."""

    name: str
    spec: schema.ClaimSpec


class InUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster's claims hold: whole devices, and shares of others."""

    whole: frozenset[DeviceKey]
    shared: Mapping[DeviceKey, Mapping[str, Fraction]]


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    """One request of one claim: what would satisfy it, best first."""

    claim: int
    alternatives: tuple[_Alternative, ...]


class _Alternative(msgspec.Struct, frozen=True, kw_only=True):
    request: str
    wanted: schema.Request
    candidates: tuple[Candidate, ...]


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
) -> tuple[schema.Allocation, ...]:
    """One allocation per claim; raises AllocationError. `build_uid` makes share ids."""
    for claim in claims:
        _refuse_too_many(claim)
    pools = build_pools(slices, node)
    search = _Search(pools, in_use, claims)
    steps = [step for index, claim in enumerate(claims) for step in _plan_steps(index, claim, pools, classes)]
    picks = search.solve(steps, ())
    if picks is None:
        raise AllocationError(search.explain(steps))
    chosen = [Chosen(spec=claim.spec, picks=tuple(p for p in picks if p.claim == i)) for i, claim in enumerate(claims)]
    return tuple(build_allocation(one, classes=classes, node=node, build_uid=build_uid) for one in chosen)


def _refuse_too_many(claim: NamedClaim) -> None:
    # A request with alternatives counts with its smallest; "all" counts as the one device it needs at least.
    fewest = [
        min((one.count or 1 for one in ((request.exactly,) if request.exactly else request.first_available)), default=0)
        for request in claim.spec.devices.requests or ()
    ]
    if sum(fewest) > MAX_RESULTS:
        raise AllocationError(
            f"claim {claim.name} asks for {sum(fewest)} devices, a claim can be given at most {MAX_RESULTS}"
        )


def _plan_steps(
    index: int, claim: NamedClaim, pools: Sequence[PoolView], classes: Mapping[str, schema.ClassSpec]
) -> Iterator[_Step]:
    for request in claim.spec.devices.requests or ():
        subs = [(f"{request.name}/{sub.name}", sub) for sub in request.first_available]
        wanted = [(request.name, request.exactly)] if request.exactly is not None else subs
        yield _Step(
            claim=index,
            alternatives=tuple(
                _Alternative(request=name, wanted=one, candidates=_select(claim, name, one, pools, classes))
                for name, one in wanted
            ),
        )


def _select(
    claim: NamedClaim,
    name: str,
    request: schema.Request,
    pools: Sequence[PoolView],
    classes: Mapping[str, schema.ClassSpec],
) -> tuple[Candidate, ...]:
    """The devices that the class and the request both select, whether free or not."""
    if request.device_class_name not in classes:
        raise AllocationError(
            f"claim {claim.name}, request {name}: the DeviceClass {request.device_class_name!r} does not exist"
        )
    selectors = (*classes[request.device_class_name].selectors, *request.selectors)
    try:
        tests = [compile_expression(selector.cel.expression) for selector in selectors if selector.cel is not None]
        if request.allocation_mode == "All":
            _refuse_problems(claim, name, pools)
        return tuple(
            candidate
            for pool in pools
            if not pool.problem
            for candidate in pool.candidates
            if all(test(candidate.driver, candidate.device) for test in tests)
        )
    except (UnsupportedExpressionError, EvaluationError) as error:
        raise AllocationError(f"claim {claim.name}, request {name}: {error}") from error


def _refuse_problems(claim: NamedClaim, name: str, pools: Sequence[PoolView]) -> None:
    for pool in pools:
        if pool.problem:
            raise AllocationError(f"claim {claim.name}, request {name}: pool {pool.driver}/{pool.name} {pool.problem}")


class _Search:
    """Depth-first over the steps; what is picked so far is a tuple, so that going back costs nothing."""

    def __init__(self, pools: Sequence[PoolView], in_use: InUse, claims: Sequence[NamedClaim]) -> None:
        self._pools = {(pool.driver, pool.name): pool for pool in pools}
        self._in_use = in_use
        self._claims = claims
        self._steps_left = MAX_STEPS

    def solve(self, steps: Sequence[_Step], picks: tuple[Pick, ...]) -> tuple[Pick, ...] | None:
        """The first picks that satisfy every step, or None."""
        if not steps:
            return picks
        step, rest = steps[0], steps[1:]
        for alternative in step.alternatives:
            for extended in self._choose(step.claim, alternative, picks):
                found = self.solve(rest, extended)
                if found is not None:
                    return found
        return None

    def _choose(self, claim: int, alternative: _Alternative, picks: tuple[Pick, ...]) -> Iterator[tuple[Pick, ...]]:
        everything = alternative.wanted.allocation_mode == "All"
        count = len(alternative.candidates) if everything else alternative.wanted.count
        if count == 0 or count + sum(pick.claim == claim for pick in picks) > MAX_RESULTS:
            return
        yield from self._extend(claim, alternative, picks, count, 0)

    def _extend(
        self, claim: int, alternative: _Alternative, picks: tuple[Pick, ...], count: int, first: int
    ) -> Iterator[tuple[Pick, ...]]:
        if count == 0:
            yield picks
            return
        everything = alternative.wanted.allocation_mode == "All"
        for index in range(first, len(alternative.candidates)):
            candidate = alternative.candidates[index]
            # A shared device may be given several times; any other one only in growing order.
            again = bool(candidate.device.allow_multiple_allocations) and not everything
            pick = self._fit(claim, alternative, candidate, picks)
            if pick is not None:
                following = index if again else index + 1
                yield from self._extend(claim, alternative, (*picks, pick), count - 1, following)
            if everything:
                return

    def _fit(self, claim: int, alternative: _Alternative, candidate: Candidate, picks: tuple[Pick, ...]) -> Pick | None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise AllocationError(f"no combination of devices found after {MAX_STEPS} attempts")
        obstacle, pick = self.examine(claim, alternative, candidate, picks)
        return pick if not obstacle else None

    def examine(
        self, claim: int, alternative: _Alternative, candidate: Candidate, picks: tuple[Pick, ...]
    ) -> tuple[str, Pick]:
        """Why the candidate cannot be picked beside the others (empty: it can), and the pick it would be."""
        wanted, device = alternative.wanted, candidate.device
        asked = wanted.capacity.requests if wanted.capacity is not None else {}
        share = plan_share(device, asked)
        pick = Pick(claim=claim, request=alternative.request, wanted=wanted, candidate=candidate, share=share or {})
        if not self._is_free(pick, picks):
            return "in use", pick
        if share is None:
            return "without the capacity asked for", pick
        if not self._counters_suffice(pick, picks):
            return "whose shared counters are used up", pick
        taint = find_blocking_taint(device, wanted.tolerations)
        if taint is not None:
            return f"tainted {taint.key}:{taint.effect}", pick
        constraints = self._claims[claim].spec.devices.constraints
        if not satisfies_constraints(constraints, [*(p for p in picks if p.claim == claim), pick]):
            return "against a constraint", pick
        return "", pick

    def _is_free(self, pick: Pick, picks: Sequence[Pick]) -> bool:
        key, device = pick.candidate.key, pick.candidate.device
        same = [other for other in picks if other.candidate.key == key]
        if pick.admin:
            return all(other.claim != pick.claim for other in same)
        if key in self._in_use.whole:
            return False
        holders = [other for other in same if not other.admin]
        used = self._in_use.shared.get(key)
        if not device.allow_multiple_allocations:
            return used is None and not holders
        return all(
            (used or {}).get(name, Fraction(0)) + sum((other.share[name] for other in holders), amount)
            <= parse_quantity(device.capacity[name].value)
            for name, amount in pick.share.items()
        )

    def _counters_suffice(self, pick: Pick, picks: Sequence[Pick]) -> bool:
        pool = self._pools[pick.candidate.driver, pick.candidate.pool]
        drawn = pool.consumption[pick.candidate.device.name]
        allocated = {*self._in_use.whole, *self._in_use.shared, *(other.candidate.key for other in picks)}
        if not drawn or pick.candidate.key in allocated:
            return True
        names = [name for driver, own, name in allocated if (driver, own) == (pool.driver, pool.name)]
        return all(
            amount + sum((pool.consumption.get(name, {}).get(counter, Fraction(0)) for name in names), Fraction(0))
            <= pool.counters[counter]
            for counter, amount in drawn.items()
        )

    def explain(self, steps: Sequence[_Step]) -> str:
        """Why there is no solution, in words for the pod's owner."""
        for step in steps:
            texts = [self._explain_alternative(step.claim, alternative) for alternative in step.alternatives]
            if texts and all(texts):
                return f"claim {self._claims[step.claim].name}, " + "; ".join(texts)
        names = ", ".join(claim.name for claim in self._claims)
        return f"the requests of {names} cannot be satisfied together"

    def _explain_alternative(self, claim: int, alternative: _Alternative) -> str:
        wanted = alternative.wanted
        examine = partial(self.examine, claim, alternative)
        obstacles = Counter(examine(candidate, ())[0] for candidate in alternative.candidates)
        free = obstacles.pop("", 0)
        everything = wanted.allocation_mode == "All"
        enough = free == len(alternative.candidates) > 0 if everything else free >= wanted.count
        shared = any(candidate.device.allow_multiple_allocations for candidate in alternative.candidates)
        if enough or (shared and free):
            return ""
        amount = "all devices" if everything else f"{wanted.count} device{'s' if wanted.count > 1 else ''}"
        text = f"request {alternative.request}: wants {amount} of class {wanted.device_class_name}, "
        text += f"of {len(alternative.candidates)} that match {free} can be had"
        listed = ", ".join(f"{count} {obstacle}" for obstacle, count in sorted(obstacles.items()))
        problems = "; ".join(f"pool {p.driver}/{p.name} {p.problem}" for p in self._pools.values() if p.problem)
        return text + (f" ({listed})" if listed else "") + (f"; {problems}" if problems else "")


def find_blocking_taint(
    device: schema.Device,
    tolerations: Sequence[schema.Toleration],
    effects: frozenset[str] = frozenset({"NoSchedule", "NoExecute"}),
) -> schema.Taint | None:
    """The first taint with one of these effects that nothing tolerates."""
    return next(
        (
            taint
            for taint in device.taints
            if taint.effect in effects and not any(tolerates(toleration, taint) for toleration in tolerations)
        ),
        None,
    )


def tolerates(toleration: schema.Toleration, taint: schema.Taint) -> bool:
    """Whether one toleration covers one taint."""
    if toleration.effect not in {"", taint.effect} or toleration.key not in {"", taint.key}:
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value
