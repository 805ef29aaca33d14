"""How busy CPUs are, from the kernel's account of their time.

Source: Linux, Documentation/filesystems/proc.rst, /proc/stat.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import msgspec

_ROW = re.compile(r"^cpu(\d{1,5}) +([\d ]+)$", re.MULTILINE)
_COLUMNS = 8
"""user, nice, system, idle, iowait, irq, softirq, steal; guests are counted as user, too."""
_IDLE = (3, 4)


class CpuTime(msgspec.Struct, frozen=True):
    """The time of a CPU since the node's start, in ticks."""

    busy: int
    total: int


def parse_cpu_times(text: str) -> Mapping[int, CpuTime]:
    """The times of CPUs that are online, as /proc/stat has them; those that cannot be read are left out."""
    times: dict[int, CpuTime] = {}
    for row in _ROW.finditer(text):
        ticks = [int(one) for one in row[2].split()[:_COLUMNS]]
        if len(ticks) > max(_IDLE):
            times[int(row[1])] = CpuTime(sum(ticks) - sum(ticks[place] for place in _IDLE), sum(ticks))
    return times


def find_busy_share(before: Mapping[int, CpuTime], after: Mapping[int, CpuTime], cpus: Collection[int]) -> float | None:
    """The share of these CPUs' time between two readings in which they were busy; None if that is not known."""
    both = [(before[cpu], after[cpu]) for cpu in cpus if cpu in before and cpu in after]
    # A counter of the kernel may go back by a tick.
    total = sum(max(0, new.total - old.total) for old, new in both)
    busy = sum(max(0, new.busy - old.busy) for old, new in both)
    return min(busy / total, 1.0) if total else None
