"""When the slices of a pool are written again: after changes, after what others do to them, and after errors."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable

import anyio
import msgspec

from pydra.backoff import find_pause
from pydra.errors import Conflict, Invalid, KubeError, NotFound, Unavailable

log = logging.getLogger(__name__)

BATCH_SECONDS = 0.1
"""Waiting time for further events: deleting all slices is one event each, and they are restored in one round."""
RECONCILE_PERIOD = 600.0
"""How often everything is compared even if nothing has changed."""
GATE_PERIOD = 600.0
"""How often a server is asked what it accepts of what the pool needs: gates change when it is upgraded or restarted."""


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Limits rounds of writes: `free` rounds at once, each further one after twice the pause, at most `limit`.

    It starts over after `quiet` seconds without a round, which must be more than `limit`.
    """

    free: int
    pause: float
    limit: float
    quiet: float
    rounds: int = 0
    last: float = -math.inf

    def next_at(self, now: float) -> float:
        """Return when the next round may begin; `now` if at once."""
        over = self.rounds - self.free
        if over < 0 or now - self.last >= self.quiet:
            return now
        return max(now, self.last + find_pause(over + 1, first=self.pause, cap=self.limit))

    def after(self, now: float) -> Backoff:
        """Return the backoff after a round at `now`."""
        rounds = 1 if now - self.last >= self.quiet else self.rounds + 1
        return msgspec.structs.replace(self, rounds=rounds, last=now)


REPAIRS = Backoff(free=3, pause=0.4, limit=60.0, quiet=300.0)
"""For undoing what others do to our slices: at once, but if they persist, once a minute."""

PUBLISHES = Backoff(free=10, pause=0.2, limit=10.0, quiet=60.0)
"""For changes of the pool: hardware that flaps causes a round every ten seconds."""

DEFERRALS = Backoff(free=1, pause=60.0, limit=600.0, quiet=3600.0)
"""For writing although an instance that started later has written: it may have ended since."""

_PAUSES: tuple[tuple[type[KubeError], float, float], ...] = (
    (Unavailable, 0.1, 2.0),  # an outage: publish within a second or two of its end
    (Conflict, 0.05, 5.0),  # the cache is behind: its event is on the way
    (NotFound, 0.1, 2.0),  # the node is not registered yet, or a slice went before its event came
    (Invalid, 10.0, 300.0),  # it will be refused again, until the driver or the cluster changes
    (KubeError, 1.0, 60.0),  # forbidden, and the like: an admin has to act
)


def retry_pause(error: KubeError, failures: int) -> tuple[float, float]:
    """Return the range in seconds of the random pause after `failures` (1 or more) in a row, the last with `error`."""
    first, limit = next((first, limit) for kind, first, limit in _PAUSES if isinstance(error, kind))
    longest = find_pause(failures, first=first, cap=limit)
    if isinstance(error, Unavailable) and error.retry_after > longest:
        return error.retry_after, error.retry_after + longest
    return longest / 2, longest


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Periods and limits of a WriteSchedule; `uniform` chooses the pause after an error within its range."""

    repairs: Backoff = REPAIRS
    deferrals: Backoff = DEFERRALS
    batch_delay: float = BATCH_SECONDS
    gate_period: float = GATE_PERIOD
    uniform: Callable[[float, float], float] = random.uniform


class WriteSchedule:
    """When a reconciler compares its slices again, and when it asks the server again what it accepts.

    Nothing is due before the first `note_new_pool`.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._repairs = timing.repairs
        self._publishes = PUBLISHES
        self._deferrals = timing.deferrals
        self._deferred_until = -math.inf
        self._not_before = -math.inf  # after an error
        self._failures = 0
        self._due = math.inf
        self._ask_due = math.inf
        self._wake = anyio.Event()

    @property
    def is_deferred(self) -> bool:
        """Whether an instance that started later may publish."""
        return anyio.current_time() < self._deferred_until

    def look_now(self) -> None:
        """Compare as soon as possible."""
        self._look(anyio.current_time())

    def note_new_pool(self) -> None:
        """Note that something else is wanted, whatever failed before."""
        self._failures, self._not_before = 0, -math.inf
        self._look(self._publishes.next_at(anyio.current_time()))

    def note_foreign_change(self) -> None:
        """Note that something other than this reconciler changed a slice."""
        now = anyio.current_time()
        self._look(max(now + self._timing.batch_delay, self._repairs.next_at(now)))

    def ask_server_now(self) -> None:
        """Ask the server at the next comparison."""
        self._ask_due = -math.inf

    def ask_server_later(self) -> None:
        """Ask the server after the usual period."""
        self._ask_due = anyio.current_time() + self._timing.gate_period

    def note_round(self, *, repair: bool) -> None:
        """Note a round of writes: for a new pool, or a `repair` of what was published."""
        now = anyio.current_time()
        if repair:
            self._repairs = self._repairs.after(now)
        else:
            self._publishes = self._publishes.after(now)

    def note_success(self) -> None:
        """Note a comparison without an error."""
        self._failures = 0

    def note_failure(self, error: KubeError) -> float:
        """Note an error of the server; return the seconds until the next comparison."""
        self._failures += 1
        pause = self._timing.uniform(*retry_pause(error, self._failures))
        now = anyio.current_time()
        self._not_before = now + pause
        self._look(max(self._not_before, self._repairs.next_at(now)))
        return pause

    def defer(self) -> None:
        """Stop writing while an instance that started later publishes; try again later, since it may have ended."""
        if self.is_deferred:
            return
        now = anyio.current_time()
        self._deferrals = self._deferrals.after(now)
        self._deferred_until = self._deferrals.next_at(now)
        log.info(
            "an instance of the agent that started later publishes the devices; this one waits %.0f s",
            self._deferred_until - now,
        )

    async def wait(self) -> bool:
        """Wait for the next comparison; return whether the server is to be asked before it."""
        while True:
            due = min(self._due, self._ask_due)
            pause = max(due, self._not_before, self._deferred_until) - anyio.current_time()
            if pause <= 0:
                break
            self._wake = anyio.Event()
            with anyio.move_on_after(pause if pause < math.inf else None):
                await self._wake.wait()
        now = anyio.current_time()
        self._due = now + RECONCILE_PERIOD
        asks_server = now >= self._ask_due
        if asks_server:
            self._ask_due = math.inf
        return asks_server

    def _look(self, when: float) -> None:
        self._due = min(self._due, when)
        self._wake.set()
