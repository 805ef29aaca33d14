"""How long calls of a backend may take, and when its process is replaced."""

from __future__ import annotations

import msgspec


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """How long a call may take in seconds, waiting for a restart included; `connect` from spawning to the first call.

    Calls for claims are not listed: their callers set the deadline. `restore` and `inherit` have that of `discover`.
    """

    connect: float
    discover: float
    measure: float = 10.0


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a process that ended is replaced: `first`, doubled each time up to `cap`, `first` again after `healthy`.

    `crashes` is how often a claim may crash its backend's process before it is quarantined. No process is started while
    `unkillable` of them cannot be killed; every `unkillable_look` seconds the supervisor looks whether one has ended.
    """

    first: float = 0.2
    cap: float = 30.0
    healthy: float = 60.0
    crashes: int = 2
    unkillable: int = 3
    unkillable_look: float = 5.0

    def delay(self, failures: int) -> float:
        """Return the seconds before the start that follows `failures` ends in a row (at least 1)."""
        return min(self.cap, self.first * 2.0 ** min(failures - 1, 30))
