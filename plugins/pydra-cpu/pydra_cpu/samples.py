"""Numbers for metrics: how many CPUs devices have, and how many of them claims have."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pydra import Sample
from pydra_cpu.hardware_types import Cpu


def build_samples(devices: Mapping[str, tuple[Cpu, ...]], taken: Collection[int]) -> list[Sample]:
    """Return the numbers of all devices."""
    samples = []
    for name, cpus in devices.items():
        claimed = sum(cpu.id in taken for cpu in cpus)
        samples.append(Sample(name="cpus", device=name, value=len(cpus), help="CPUs that are online and not reserved."))
        samples.append(Sample(name="claimed_cpus", device=name, value=claimed, help="CPUs that claims have."))
    return samples
