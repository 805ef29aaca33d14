"""Numbers of a measurement: medians, multiples of the floor, and a process's memory and CPU time."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Durations of one kind of call, in seconds."""

    name: str
    seconds: Sequence[float]

    @property
    def p50(self) -> float:
        """The median."""
        return median(self.seconds)

    @property
    def p95(self) -> float:
        """95 of 100 are shorter."""
        return self._quantile(20)

    @property
    def p99(self) -> float:
        """99 of 100 are shorter."""
        return self._quantile(100)

    def _quantile(self, parts: int) -> float:
        return quantiles(self.seconds, n=parts, method="inclusive")[-1] if len(self.seconds) > 1 else self.seconds[0]


async def time_call(call: Awaitable[object]) -> float:
    """Seconds that a call takes."""
    begin = time.perf_counter()
    await call
    return time.perf_counter() - begin


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a process holds, in MiB."""

    rss: float
    pss: float
    anonymous: float


def memory_of(pid: int) -> Memory:
    """Read from /proc/PID/smaps_rollup."""
    kib = {
        name.rstrip(":"): int(value)
        for name, value, *_ in (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    }
    return Memory(rss=kib["Rss"] / 1024, pss=kib["Pss"] / 1024, anonymous=kib["Anonymous"] / 1024)


def cpu_seconds(*pids: int) -> float:
    """User and system time of the processes so far."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def children_of(pid: int) -> list[int]:
    """The direct children of a process."""
    text = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    return [int(child) for child in text.split()]
