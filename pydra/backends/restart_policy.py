"""When the process of a backend is replaced after it has ended."""

from __future__ import annotations

import msgspec


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
