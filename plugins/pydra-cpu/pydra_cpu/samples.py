"""Numbers for metrics: how many CPUs devices have, who has them, and how busy those of claims are.

Source: Linux, Documentation/filesystems/proc.rst, /proc/stat.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from pydra import HeldClaim, Sample
from pydra_cpu.claim_plan import read_shares
from pydra_cpu.cpu_list import parse_cpu_list
from pydra_cpu.hardware_types import Cpu

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


def build_samples(
    devices: Mapping[str, Sequence[Cpu]],
    held: Sequence[HeldClaim],
    pool: Collection[int],
    before: Mapping[int, CpuTime],
    after: Mapping[int, CpuTime],
) -> Iterator[Sample]:
    """Yield the numbers of all devices; `pool` has the CPUs of containers without a claim."""
    shares = [[share for share in read_shares(one.plan) if share is not None] for one in held]
    taken = [{cpu for share in one for cpu in parse_cpu_list(share.taken)} for one in shares]
    given = {cpu for one in shares for share in one for cpu in parse_cpu_list(share.cpus)}
    claimed = set().union(*taken)
    for name, cpus in devices.items():
        own = {cpu.id for cpu in cpus}
        for sample, value, text in (
            ("cpus", len(own), "CPUs that are online and not reserved."),
            ("claimed_cpus", len(own & claimed), "CPUs that claims have."),
            ("shared_cpus", len(own.intersection(pool)), "CPUs that containers without a claim run on."),
            ("claims", sum(not own.isdisjoint(one) for one in taken), "Claims that have CPUs."),
        ):
            yield Sample(name=sample, device=name, value=value, help=text)
        busy = find_busy_share(before, after, own & given)
        if busy is not None:
            text = "Share of the time since the last reading in which the CPUs of claims were busy."
            yield Sample(name="claimed_cpus_busy_ratio", device=name, value=busy, help=text)
