"""The scheduler's search for devices: which ones the claims of a pod get on a node. Pure.

Exhaustive, depth first, and the first solution is taken: claims and requests in their order, devices in the order of
pools, slices and devices. Within a request, devices are tried in growing order only. What the real allocator does and
one would not expect is done here too, and said where it is done: the same classes, slices and claims end in the same
allocation (`tests/data/allocations`). Source: the structured allocator of k8s.io/dynamic-resource-allocation,
Kubernetes 1.36.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import msgspec
from msgspec.structs import replace

from pydra_dev.api import schema
from pydra_dev.api.quantity import parse_quantity
from pydra_dev.cel.environment import CompileError, EvaluationError, Variables, build_variables, compile_selector
from pydra_dev.scheduler.allocation_result import Pick
from pydra_dev.scheduler.capacity import CapacityError, Share, find_amount, plan_share
from pydra_dev.scheduler.constraints import Constraint, build_constraints
from pydra_dev.scheduler.pools import Candidate, CounterKey, DeviceKey, PoolView, read_groups
from pydra_dev.scheduler.selector_mismatch import describe_values, suggest_name

MAX_RESULTS = 32
MAX_SHOWN = 200
"""Characters of an expression in a message."""
MAX_TRIES = 100_000
"""Devices looked at in one allocation before the search gives up; the real scheduler does after 10 seconds."""


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


class Wish(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request or subrequest to satisfy: `name` is `req` or `req/sub`; `count` devices, or all of `devices`."""

    claim: int
    name: str
    wanted: schema.Request
    count: int
    devices: tuple[Candidate, ...] | None = None


class _Place(msgspec.Struct, frozen=True):
    """A point of the search: which request, which of its alternatives, how many devices it has, where to go on."""

    request: int
    alternative: int = -1
    have: int = 0
    start: int = 0


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheduler can do, by its version and its feature gates."""

    lists: bool = False
    """Attributes may be lists (the feature gate DRAListTypeAttributes)."""
    compares_lists: bool = True
    """Constraints compare lists; the scheduler of 1.36 does not, even with the gate."""
    groups: bool = True
    """Compatibility groups are known (DRADeviceCompatibilityGroups)."""
    both_names: bool = False
    """Capacities may be requested with and without the driver's domain (Kubernetes 1.38)."""


DEFAULT_FEATURES = Features()


class Search:
    """One attempt to allocate the claims of a pod on a node; `run` it once.

    `candidates` are the devices in the order in which they are tried, `wishes` the alternatives of each request.
    `deadlock`, if there is no solution: the request that the search got to, and what was against each device there.
    """

    def __init__(
        self,
        claims: Sequence[NamedClaim],
        pools: Sequence[PoolView],
        classes: Mapping[str, schema.ClassSpec],
        in_use: InUse,
        features: Features,
    ) -> None:
        self.picks: list[Pick] = []
        self.claims, self.pools = claims, pools
        self.selection = Selection(claims, classes, lists=features.lists)
        self._books = Books(pools, in_use, both_names=features.both_names)
        self._constraints = [build_constraints(claim.spec, lists=features.compares_lists) for claim in claims]
        self.candidates = [one for pool in pools if not pool.problem for one in pool.candidates]
        self._counts = [0] * len(claims)
        self._tries = 0
        self._deepest = 0
        self._tried: Wish | None = None
        self.wishes: list[tuple[Wish, ...]] = []
        self.deadlock: tuple[Wish, tuple[str, ...]] | None = None

    def run(self) -> bool:
        """Find devices for every request and leave them in `picks`; raises AllocationError when there is a mistake."""
        for index, claim in enumerate(self.claims):
            self._plan(index, claim)
        # Each level is one choice, which its generator takes back when it is asked for the next one.
        levels = [self._choose(_Place(0))]
        while levels:
            place = next(levels[-1], None)
            if place is None:
                levels.pop()
                self._note_deadlock(len(levels))
            elif place.request == len(self.wishes):
                return True
            else:
                levels.append(self._choose(place))
        return False

    def _note_deadlock(self, depth: int) -> None:
        # Only the first time at each depth: it is to be explained, not counted.
        wish = self._tried
        if depth <= self._deepest or wish is None:
            return
        self._deepest = depth
        self.deadlock = wish, tuple(self.find_obstacle(wish, one) or "used before" for one in self.candidates)

    def _plan(self, index: int, claim: NamedClaim) -> None:
        fewest = 0
        for request in claim.spec.devices.requests or ():
            subs = [(f"{request.name}/{sub.name}", sub) for sub in request.first_available]
            wanted = [(request.name, request.exactly)] if request.exactly is not None else subs
            wishes = tuple(self._plan_wish(index, name, one) for name, one in wanted)
            self.wishes.append(wishes)
            fewest += min((wish.count for wish in wishes), default=0)
        if fewest > MAX_RESULTS:
            raise AllocationError(
                f"claim {claim.name}: number of requested devices {fewest} exceeds the claim limit of {MAX_RESULTS}"
            )

    def _plan_wish(self, index: int, name: str, wanted: schema.Request) -> Wish:
        wish = Wish(claim=index, name=name, wanted=wanted, count=wanted.count)
        self.selection.find_class(wish)
        if wanted.allocation_mode != "All":
            return wish
        for pool in self.pools:
            if pool.problem:
                raise AllocationError(
                    f"claim {self.claims[index].name}, request {name}: asks for all devices, but pool "
                    f"{pool.driver}/{pool.name} {pool.problem}"
                )
        devices = tuple(
            one
            for one in self.candidates
            if self.selection.selects(wish, one) and not self._books.find_shortage(wish, one)
        )
        return replace(wish, count=len(devices), devices=devices)

    def _choose(self, place: _Place) -> Iterator[_Place]:
        """The next places of the search, one for each choice that is possible here, made when it is yielded."""
        alternatives = self.wishes[place.request] if place.request < len(self.wishes) else ()
        if place.alternative < 0:
            yield from (replace(place, alternative=index) for index in range(len(alternatives)))
            return
        wish = self._tried = alternatives[place.alternative]
        # What exceeds the limit is not tried: a later alternative may need fewer devices.
        if place.have == 0 and (wish.count == 0 or self._counts[wish.claim] + wish.count > MAX_RESULTS):
            return
        done = place.have + 1 == wish.count
        devices = self.candidates if wish.devices is None else wish.devices[place.have : place.have + 1]
        for index in range(place.start, len(devices)):
            if not self._take(wish, devices[index]):
                continue
            start = index + 1 if wish.devices is None else 0
            yield _Place(place.request + 1) if done else replace(place, have=place.have + 1, start=start)
            self._untake()

    def _take(self, wish: Wish, candidate: Candidate) -> bool:
        """Give the device to the request, if nothing is against it."""
        self._tries += 1
        if self._tries > MAX_TRIES:
            raise AllocationError(f"no combination of devices found after {MAX_TRIES} attempts")
        if self._books.find_holder(wish, candidate):
            return False
        if not self.selection.selects(wish, candidate) or self._books.find_shortage(wish, candidate):
            return False
        if self._books.find_incompatible(candidate) or not self._books.draw(candidate):
            return False
        if taint := find_blocking_taint(candidate.device, wish.wanted.tolerations):
            self._books.note_refusal(candidate, f"tainted {format_taint(taint)}")
            return False
        added: list[Constraint] = []
        for constraint in self._constraints[wish.claim]:
            obstacle = constraint.find_obstacle(wish.name, candidate)
            if obstacle and wish.devices is not None:
                # A claim whose constraint forbids "all devices" is taken for a mistake, wherever the search is.
                raise AllocationError(
                    f"claim {self.claims[wish.claim].name}, request {wish.name}: cannot add device "
                    f"{'/'.join(candidate.key)} because a claim constraint would not be satisfied ({obstacle})"
                )
            if obstacle:
                for one in added:
                    one.remove(wish.name)
                self._books.note_refusal(candidate, f"against {obstacle}")
                return False
            constraint.add(wish.name, candidate)
            added.append(constraint)
        share = self._books.hold(wish, candidate)
        self._counts[wish.claim] += 1
        self.picks.append(
            Pick(claim=wish.claim, request=wish.name, wanted=wish.wanted, candidate=candidate, share=share)
        )
        return True

    def find_obstacle(self, wish: Wish, candidate: Candidate) -> str:
        """What is against the device for the request, beside what is picked; empty if nothing is."""
        obstacle = (
            self._books.find_holder(wish, candidate)
            or self._describe_mismatch(wish, candidate)
            or self._books.find_shortage(wish, candidate)
            or self._books.find_incompatible(candidate)
            or self._books.find_drained(candidate)
        )
        if obstacle:
            return obstacle
        taint = find_blocking_taint(candidate.device, wish.wanted.tolerations)
        if taint is not None:
            return f"tainted {format_taint(taint)}"
        found = (one.find_obstacle(wish.name, candidate) for one in self._constraints[wish.claim])
        return next((f"against {text}" for text in found if text), "")

    def _describe_mismatch(self, wish: Wish, candidate: Candidate) -> str:
        mismatch = self.selection.find_mismatch(wish, candidate)
        return mismatch.text if mismatch is not None else ""

    def _untake(self) -> None:
        pick = self.picks.pop()
        for constraint in self._constraints[pick.claim]:
            constraint.remove(pick.request)
        self._books.release(pick)
        self._counts[pick.claim] -= 1


class Mismatch(msgspec.Struct, frozen=True):
    """Why a device is not one that a request wants, and the expression that does not select it, if one does not."""

    text: str
    expression: str = ""


class Selection:
    """Which devices the selectors of classes and requests select; each pair is evaluated once, when it is needed.

    A selector that cannot be compiled, or evaluated for a device that is looked at, ends the whole allocation.
    """

    def __init__(
        self, claims: Sequence[NamedClaim], classes: Mapping[str, schema.ClassSpec], *, lists: bool = False
    ) -> None:
        self._claims, self._classes, self._lists = claims, classes, lists
        self._found: dict[tuple[int, str, DeviceKey], Mismatch | None] = {}
        self._variables: dict[DeviceKey, Variables] = {}

    def find_class(self, wish: Wish) -> schema.ClassSpec:
        """The class of a request; raises AllocationError when there is none."""
        name = wish.wanted.device_class_name
        found = self._classes.get(name)
        if found is None:
            raise AllocationError(
                f"claim {self._claims[wish.claim].name}, request {wish.name}: device class {name} does not exist"
            )
        return found

    def selects(self, wish: Wish, candidate: Candidate) -> bool:
        """Whether the device is one that the request wants; raises AllocationError."""
        return self.find_mismatch(wish, candidate) is None

    def find_mismatch(self, wish: Wish, candidate: Candidate) -> Mismatch | None:
        """Which selector does not select the device; None if all do. Raises AllocationError."""
        known = (wish.claim, wish.name, candidate.key)
        if known not in self._found:
            self._found[known] = self._evaluate(wish, candidate)
        return self._found[known]

    def describe_values(self, wish: Wish, candidate: Candidate) -> str:
        """What the device has of that which the selector reads that does not select it."""
        mismatch = self.find_mismatch(wish, candidate)
        return describe_values(mismatch.expression, candidate.driver, candidate.device) if mismatch is not None else ""

    def _evaluate(self, wish: Wish, candidate: Candidate) -> Mismatch | None:
        name = wish.wanted.device_class_name
        owners = ((f"class {name}", self.find_class(wish).selectors), ("request", wish.wanted.selectors))
        for owner, selectors in owners:
            for index, selector in enumerate(selectors):
                if selector.cel is None:
                    raise self._error(wish, owner, f"selector #{index}: CEL expression empty")
                try:
                    compiled = compile_selector(selector.cel.expression, lists=self._lists)
                    if not compiled.matches(self._read_variables(candidate)):
                        return _build_mismatch(owner, selector.cel.expression)
                except CompileError as error:
                    raise self._error(wish, owner, f"selector #{index}: CEL compile error: {error}") from error
                except EvaluationError as error:
                    meant = suggest_name(selector.cel.expression, candidate.driver, candidate.device)
                    problem = f"CEL runtime error: {error}{meant} (device {'/'.join(candidate.key)})"
                    raise self._error(wish, owner, f"selector #{index}: {problem}") from error
        return None if candidate.reachable else Mismatch("for other nodes")

    def _error(self, wish: Wish, owner: str, problem: str) -> AllocationError:
        subject = owner if owner != "request" else f"claim {self._claims[wish.claim].name}, request {wish.name}"
        return AllocationError(f"{subject}: {problem}")

    def _read_variables(self, candidate: Candidate) -> Variables:
        found = self._variables.get(candidate.key)
        if found is None:
            found = self._variables[candidate.key] = build_variables(candidate.driver, candidate.device)
        return found


def _build_mismatch(owner: str, expression: str) -> Mismatch:
    shown = textwrap.shorten(expression, MAX_SHOWN, placeholder=" ...")
    return Mismatch(f"not selected by the {owner}: {shown}", expression)


class Books:
    """What is held: devices, shares and counters, of allocated claims and in the solution that is being tried."""

    def __init__(self, pools: Sequence[PoolView], in_use: InUse, *, both_names: bool = False) -> None:
        self._both_names = both_names
        self._pools = {(pool.driver, pool.name): pool for pool in pools}
        self._in_use = in_use
        self._holders: dict[DeviceKey, set[int]] = defaultdict(set)
        self._shares: dict[DeviceKey, dict[str, Fraction]] = {}
        self._planned: dict[tuple[int, str, DeviceKey], Share | str] = {}
        # By the pool's name alone: where two drivers have pools of one name, the scheduler takes the counters of
        # the pool that it looks at first for those of both.
        self._available: dict[str, Mapping[CounterKey, Fraction]] = {}
        self._drawn: dict[str, dict[CounterKey, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
        # What picked devices have drawn, which is less: see `draw`.
        self._held: dict[str, dict[CounterKey, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
        self._refused: dict[DeviceKey, str] = {}

    def find_holder(self, wish: Wish, candidate: Candidate) -> str:
        """Who has the device, when the request cannot have it for that reason."""
        holders = self._holders.get(candidate.key, set())
        if wish.wanted.admin_access:
            return "already in this claim" if wish.claim in holders else ""
        if candidate.key in self._in_use.whole:
            return "in use"
        return "taken by another request of the pod" if holders else ""

    def find_shortage(self, wish: Wish, candidate: Candidate) -> str:
        """Which capacity the device does not have, or has no longer, for the request."""
        known = (wish.claim, wish.name, candidate.key)
        planned = self._planned.get(known)
        if planned is None:
            requested = wish.wanted.capacity.requests if wish.wanted.capacity is not None else {}
            try:
                planned = plan_share(candidate.device, requested, candidate.driver if self._both_names else "")
            except CapacityError as error:
                planned = str(error)
            self._planned[known] = planned
        if isinstance(planned, str):
            return planned
        used, taking = self._in_use.shared.get(candidate.key, {}), self._shares.get(candidate.key, {})
        if not used and not taking:
            return ""
        for name, amount in planned.items():
            whole = candidate.device.capacity[name].value
            taken = find_amount(used, name, candidate.driver) + taking.get(name, 0)
            if amount.value + taken > parse_quantity(whole):
                return f"has not enough {name} left: {amount.text} of {whole} is requested"
        return ""

    def find_incompatible(self, candidate: Candidate) -> str:
        """Which counter set is in use by devices that may not be used beside this one; empty if none is.

        All devices of a counter set must have a compatibility group in common, or none has one (KEP-5963).
        """
        known = self._pools[candidate.driver, candidate.pool].groups
        if not known or not candidate.consumption:
            return ""
        used = {key for key, holders in self._holders.items() if holders} | self._shares.keys()
        used |= self._in_use.whole | self._in_use.shared.keys()
        for counter_set, own in read_groups(candidate.device).items():
            beside = [known[key][counter_set] for key in used if counter_set in known.get(key, {})]
            if beside and (any(beside) or own) and not own.intersection(*beside):
                return f"not compatible with what is in use of {counter_set}"
        return ""

    def draw(self, candidate: Candidate) -> bool:
        """Take what the device needs of its pool's counters, unless there is not enough.

        What is taken here is not given back when a taint or constraint refuses the device afterwards, nor when a
        device that can be shared is: so does the scheduler, and later partitions of the pool may find too little.
        """
        if not candidate.consumption or self._is_drawn(candidate):
            return True
        if self._find_drained(candidate, self._drawn[candidate.pool]) is not None:
            return False
        _add(self._drawn[candidate.pool], candidate, 1)
        return True

    def _is_drawn(self, candidate: Candidate) -> bool:
        """Whether a device that can be shared has taken its counters already."""
        shared = self._in_use.shared.get(candidate.key) or candidate.key in self._shares
        return bool(candidate.device.allow_multiple_allocations and shared)

    def find_drained(self, candidate: Candidate) -> str:
        """Which counter has too little left for the device; empty if none."""
        if not candidate.consumption or self._is_drawn(candidate):
            return ""
        counter = self._find_drained(candidate, self._drawn[candidate.pool])
        if counter is None:
            return ""
        refused = self._find_drained(candidate, self._held[candidate.pool]) is None
        if refused and candidate.key in self._refused:
            return self._refused[candidate.key]
        why = " (kube-scheduler counts devices that it refused for a taint or constraint)" if refused else ""
        return f"short of counter {'/'.join(counter)}{why}"

    def note_refusal(self, candidate: Candidate, why: str) -> None:
        """Note why a device was refused after it had drawn its counters; the first reason is kept."""
        self._refused.setdefault(candidate.key, why)

    def _find_drained(self, candidate: Candidate, drawn: Mapping[CounterKey, Fraction]) -> CounterKey | None:
        takes = candidate.consumption
        return next(
            (
                counter
                for counter, left in self._find_available(candidate).items()
                if drawn.get(counter, 0) + takes.get(counter, 0) > left
            ),
            None,
        )

    def _find_available(self, candidate: Candidate) -> Mapping[CounterKey, Fraction]:
        found = self._available.get(candidate.pool)
        if found is None:
            pool = self._pools[candidate.driver, candidate.pool]
            found = self._available[candidate.pool] = count_left(pool, self._in_use)
        return found

    def hold(self, wish: Wish, candidate: Candidate) -> Share | None:
        """Note that the request has the device; the share that it takes of one that can be shared."""
        if not candidate.device.allow_multiple_allocations:
            self._holders[candidate.key].add(wish.claim)
            _add(self._held[candidate.pool], candidate, 1)
            return None
        share = self._planned[wish.claim, wish.name, candidate.key]
        assert not isinstance(share, str)
        taken = self._shares.setdefault(candidate.key, defaultdict(Fraction))
        for name, amount in share.items():
            taken[name] += amount.value
        return share

    def release(self, pick: Pick) -> None:
        """Take back what `hold` and `draw` noted for a device that was picked."""
        key = pick.candidate.key
        if pick.share is None:
            self._holders[key].discard(pick.claim)
            for drawn in (self._drawn, self._held):
                _add(drawn[pick.candidate.pool], pick.candidate, -1)
            return
        taken = self._shares.get(key, {})
        for name, amount in pick.share.items():
            taken[name] -= amount.value
        if pick.share and not any(taken.values()):
            self._shares.pop(key, None)


def count_left(pool: PoolView, in_use: InUse) -> dict[CounterKey, Fraction]:
    """What allocated claims leave of the pool's counters."""
    left = dict(pool.counters)
    for key, consumption in pool.consumption.items():
        if key in in_use.whole or key in in_use.shared:
            for counter, amount in consumption.items():
                left[counter] -= amount
    return left


def _add(drawn: dict[CounterKey, Fraction], candidate: Candidate, sign: int) -> None:
    for counter, amount in candidate.consumption.items():
        drawn[counter] += sign * amount


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


def format_taint(taint: schema.Taint) -> str:
    """`key=value:effect`, or `key:effect`."""
    return f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}"


def tolerates(toleration: schema.Toleration, taint: schema.Taint) -> bool:
    """Whether one toleration covers one taint."""
    if toleration.effect not in {"", taint.effect} or toleration.key not in {"", taint.key}:
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value
