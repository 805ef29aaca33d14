"""Numbers for metrics: how many CPUs devices have, who has them, and how busy those of claims are."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from pydra import HeldClaim, Sample
from pydra_cpu.busy_time import CpuTime, find_busy_share
from pydra_cpu.claim_plan import read_shares
from pydra_cpu.cpu_list import parse_cpu_list
from pydra_cpu.hardware_types import Cpu


class CpuTimes(msgspec.Struct, frozen=True):
    """Two readings of the time of CPUs, the last two."""

    before: Mapping[int, CpuTime] = {}
    after: Mapping[int, CpuTime] = {}


def build_samples(
    devices: Mapping[str, Sequence[Cpu]], held: Sequence[HeldClaim], pool: Collection[int], times: CpuTimes
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
        busy = find_busy_share(times.before, times.after, own & given)
        if busy is not None:
            text = "Share of the time since the last reading in which the CPUs of claims were busy."
            yield Sample(name="claimed_cpus_busy_ratio", device=name, value=busy, help=text)
