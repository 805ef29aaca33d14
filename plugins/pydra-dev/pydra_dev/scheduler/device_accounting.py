"""What of shared counters and capacities allocations take, and what is left. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction

import msgspec

from pydra_dev.api import schema
from pydra_dev.api.quantity import parse_quantity
from pydra_dev.scheduler.allocation_result import Pick
from pydra_dev.scheduler.consumable_capacity import CapacityError, Share, find_amount, plan_share
from pydra_dev.scheduler.pools import Candidate, CounterKey, DeviceKey, PoolView, read_groups


class DeviceAccounting:
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
        return "taken for the pod already" if holders else ""

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
        taken = self._shares.get(key)
        if taken is None:  # shares of nothing: the first to be taken back ended them all
            return
        for name, amount in pick.share.items():
            taken[name] -= amount.value
        if pick.share and not any(taken.values()):
            del self._shares[key]


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


class InUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster's claims hold: whole devices, and shares of others."""

    whole: frozenset[DeviceKey]
    shared: Mapping[DeviceKey, Mapping[str, Fraction]]


class Wish(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A request or subrequest to satisfy: `name` is `req` or `req/sub`; `count` devices, or all of `devices`."""

    claim: int
    name: str
    wanted: schema.AnyRequest
    count: int
    devices: tuple[Candidate, ...] | None = None
