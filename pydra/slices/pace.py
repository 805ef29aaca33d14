"""How soon to write again: at once when it happens rarely, ever slower when it goes on. Pure: the clock is given."""

from __future__ import annotations

import math

import msgspec

from pydra.errors import Conflict, Invalid, KubeError, NotFound, Unavailable


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """A limit on rounds of writes: `free` rounds at once, each further one after twice the pause, at most `limit`.

    After `quiet` seconds without a round, which must be more than `limit`, all is forgotten.
    """

    free: int
    pause: float
    limit: float
    quiet: float
    rounds: int = 0
    last: float = -math.inf

    def next_at(self, now: float) -> float:
        """When the next round may begin; `now` if at once."""
        over = self.rounds - self.free
        if over < 0 or now - self.last >= self.quiet:
            return now
        return max(now, self.last + min(self.pause * 2.0 ** min(over, 32), self.limit))

    def after(self, now: float) -> Pace:
        """The pace after a round at `now`."""
        rounds = 1 if now - self.last >= self.quiet else self.rounds + 1
        return msgspec.structs.replace(self, rounds=rounds, last=now)


REPAIR_PACE = Pace(free=3, pause=0.4, limit=60.0, quiet=300.0)
"""For undoing what others do to our slices: a wipe or an edit is mended at once, a fight costs a round a minute."""

PUBLISH_PACE = Pace(free=10, pause=0.2, limit=10.0, quiet=60.0)
"""For what the driver wants: hardware that flaps costs a round every ten seconds."""

_PAUSES: tuple[tuple[type[KubeError], float, float], ...] = (
    (Unavailable, 0.1, 2.0),  # an outage: back within a second or two of its end
    (Conflict, 0.05, 5.0),  # the cache is behind: its event is on the way
    (NotFound, 0.1, 2.0),  # the node is not registered yet, or a slice went before its event came
    (Invalid, 10.0, 300.0),  # the same again will be refused again, until the driver or the cluster changes
    (KubeError, 1.0, 60.0),  # forbidden, and the like: an admin has to act
)


def retry_pause(error: KubeError, failures: int) -> tuple[float, float]:
    """Between which seconds to wait, by chance, after `failures` (1 and more) in a row, the last with `error`."""
    first, limit = next((first, limit) for kind, first, limit in _PAUSES if isinstance(error, kind))
    longest = min(first * 2.0 ** min(failures - 1, 32), limit)
    if isinstance(error, Unavailable) and error.retry_after > longest:
        return error.retry_after, error.retry_after + longest
    return longest / 2, longest
