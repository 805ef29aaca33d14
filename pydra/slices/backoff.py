"""When the slices of a pool are written again: after changes, after what others do to them, and after errors."""

from __future__ import annotations

import math

import msgspec

from pydra.errors import Conflict, Invalid, KubeError, NotFound, Unavailable


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
        return max(now, self.last + min(self.pause * 2.0 ** min(over, 32), self.limit))

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
    longest = min(first * 2.0 ** min(failures - 1, 32), limit)
    if isinstance(error, Unavailable) and error.retry_after > longest:
        return error.retry_after, error.retry_after + longest
    return longest / 2, longest
