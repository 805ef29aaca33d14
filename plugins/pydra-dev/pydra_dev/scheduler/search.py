"""The scheduler's search for devices: which ones the claims of a pod get on a node. Pure.

Exhaustive, depth first, and the first solution is taken: claims and requests in their order, devices in the order of
pools, slices and devices. Within a request, devices are tried in growing order only. What the real allocator does and
one would not expect is done here too, and said where it is done: the same classes, slices and claims end in the same
allocation (`tests/data/allocations`). Source: the structured allocator of k8s.io/dynamic-resource-allocation,
Kubernetes 1.36.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from cel_expr_python import cel
from msgspec.structs import replace

from pydra_dev.api import schema
from pydra_dev.cel.environment import (
    CelFeatures,
    CompileError,
    EvaluationError,
    build_variables,
    compile_selector,
)
from pydra_dev.scheduler.allocation_result import Pick
from pydra_dev.scheduler.constraints import Constraint
from pydra_dev.scheduler.device_accounting import DeviceAccounting, InUse, Wish
from pydra_dev.scheduler.pools import Candidate, DeviceKey, PoolView
from pydra_dev.scheduler.selector_mismatch import suggest_name
from pydra_dev.scheduler.taints import find_taint

MAX_RESULTS = 32
MAX_SHOWN = 200
"""Characters of an expression in a message."""
MAX_TRIES = 100_000
"""Devices looked at in one allocation before the search gives up; the real scheduler does after 10 seconds."""


class AllocationError(Exception):
    """The claims cannot be allocated; the message says why. If not as below, the pod gets no other node either."""


class NodeAllocationError(AllocationError):
    """They cannot be allocated on this node, but perhaps on another one."""


class NamedClaim(msgspec.Struct, frozen=True):
    """A claim to allocate: `namespace/name` and its spec."""

    name: str
    spec: schema.ClaimSpec


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
    taints_everything: bool = False
    """A DeviceTaintRule without a selector is for every device, against its documentation (up to Kubernetes 1.37)."""


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
        self._books = DeviceAccounting(pools, in_use, both_names=features.both_names)
        self._constraints = [
            [Constraint(one, lists=features.compares_lists) for one in claim.spec.devices.constraints]
            for claim in claims
        ]
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
        if not self.wishes:  # claims without requests are allocated without devices
            return True
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

    def _plan_wish(self, index: int, name: str, wanted: schema.AnyRequest) -> Wish:
        wish = Wish(claim=index, name=name, wanted=wanted, count=wanted.count)
        self.selection.find_class(wish)
        if wanted.allocation_mode != "All":
            return wish
        devices: list[Candidate] = []
        for pool in self.pools:
            if pool.problem:
                raise AllocationError(
                    f"claim {self.claims[index].name}, request {name}: asks for all devices, but pool "
                    f"{pool.driver}/{pool.name} {pool.problem}"
                )
            devices += (
                one
                for one in pool.candidates
                if self.selection.find_mismatch(wish, one) is None and not self._books.find_shortage(wish, one)
            )
        return replace(wish, count=len(devices), devices=tuple(devices))

    def _choose(self, place: _Place) -> Iterator[_Place]:
        """The next places of the search, one for each choice that is possible here, made when it is yielded."""
        alternatives = self.wishes[place.request]
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
        if self.selection.find_mismatch(wish, candidate) is not None or self._books.find_shortage(wish, candidate):
            return False
        if self._books.find_incompatible(candidate) or not self._books.draw(candidate):
            return False
        if taint := find_taint(candidate.device, wish.wanted.tolerations):
            self._books.note_refusal(candidate, taint)
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
            or find_taint(candidate.device, wish.wanted.tolerations)
        )
        if obstacle:
            return obstacle
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
        self._claims, self._classes, self._cel = claims, classes, CelFeatures(lists=lists)
        self._found: dict[tuple[int, str, DeviceKey], Mismatch | None] = {}
        self._variables: dict[DeviceKey, cel.Activation] = {}

    def find_class(self, wish: Wish) -> schema.ClassSpec:
        """The class of a request; raises AllocationError when there is none."""
        name = wish.wanted.device_class_name
        found = self._classes.get(name)
        if found is None:
            raise NodeAllocationError(
                f"claim {self._claims[wish.claim].name}, request {wish.name}: device class {name} does not exist"
            )
        return found

    def find_mismatch(self, wish: Wish, candidate: Candidate) -> Mismatch | None:
        """Which selector does not select the device; None if all do. Raises AllocationError."""
        known = (wish.claim, wish.name, candidate.key)
        if known not in self._found:
            self._found[known] = self._evaluate(wish, candidate)
        return self._found[known]

    def _evaluate(self, wish: Wish, candidate: Candidate) -> Mismatch | None:
        name = wish.wanted.device_class_name
        owners = ((f"class {name}", self.find_class(wish).selectors), ("request", wish.wanted.selectors))
        for owner, selectors in owners:
            for index, selector in enumerate(selectors):
                if selector.cel is None:
                    raise self._error(wish, owner, f"selector #{index}: CEL expression empty")
                try:
                    compiled = compile_selector(selector.cel.expression, self._cel)
                    if not compiled.matches(self._read_variables(candidate)):
                        return _build_mismatch(owner, selector.cel.expression)
                except CompileError as error:
                    raise self._error(wish, owner, f"selector #{index}: CEL compile error: {error}") from error
                except EvaluationError as error:
                    meant = suggest_name(str(error), selector.cel.expression, candidate.driver, candidate.device)
                    problem = f"CEL runtime error: {error}{meant} (device {'/'.join(candidate.key)})"
                    raise self._error(wish, owner, f"selector #{index}: {problem}") from error
        return None if candidate.reachable else Mismatch("for other nodes")

    def _error(self, wish: Wish, owner: str, problem: str) -> AllocationError:
        subject = owner if owner != "request" else f"claim {self._claims[wish.claim].name}, request {wish.name}"
        return AllocationError(f"{subject}: {problem}")

    def _read_variables(self, candidate: Candidate) -> cel.Activation:
        found = self._variables.get(candidate.key)
        if found is None:
            found = self._variables[candidate.key] = build_variables(candidate.driver, candidate.device)
        return found


def _build_mismatch(owner: str, expression: str) -> Mismatch:
    shown = textwrap.shorten(expression, MAX_SHOWN, placeholder=" ...")
    return Mismatch(f"not selected by the {owner}: {shown}", expression)
