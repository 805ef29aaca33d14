"""Numbers for metrics, of whole GPUs: how much is used, how warm, what has failed how often.

Names follow Prometheus: base units, `_total` for what only grows. What a GPU does not have, and what cannot be read
now, is left out.
Source: the kernel's Documentation/gpu/amdgpu/thermal.rst.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydra import Sample
from pydra_amd.amdsmi.links_and_throttling import GpuReading
from pydra_amd.devices import name_gpu
from pydra_amd.hardware_types import Gpu
from pydra_amd.host.amdgpu import BOUND
from pydra_amd.host.ras import read_bad_pages, read_errors
from pydra_pci import Tree

_PERCENT, _MICRO, _MILLI = 100.0, 1e6, 1e3


def read_samples(tree: Tree, gpu: Gpu, reading: GpuReading) -> Iterator[Sample]:
    """Of one GPU, all its partitions together; `reading` is what the library reports. Blocks."""
    folder = tree.sys(f"{BOUND}/{gpu.address}")
    monitor = next((f"{folder}/hwmon/{name}" for name in tree.names(f"{folder}/hwmon")), "")

    def sample(name: str, text: str, value: float, **labels: str) -> Sample:
        return Sample(name=name, value=float(value), help=text, device=name_gpu(gpu), labels=labels)

    def read(path: str, unit: float = 1.0) -> float | None:
        number = tree.read(path)
        return int(number) / unit if re.fullmatch(r"-?\d{1,20}", number) else None

    total = read(f"{folder}/mem_info_vram_total")  # 0: it has none of its own
    used = read(f"{folder}/mem_info_vram_used") if total else None
    power = read(f"{monitor}/power1_average", _MICRO)
    for name, text, found in (
        ("memory_used_bytes", "Memory in use, with what the driver keeps for itself.", used),
        ("memory_free_bytes", "Memory that can be allocated.", total - used if total and used is not None else None),
        ("utilization_ratio", "Share of time in which the GPU computed.", read(f"{folder}/gpu_busy_percent", _PERCENT)),
        (
            "memory_utilization_ratio",
            "Share of time in which memory was read or written.",
            read(f"{folder}/mem_busy_percent", _PERCENT),
        ),
        ("power_watts", "Power drawn.", read(f"{monitor}/power1_input", _MICRO) if power is None else power),
        ("power_limit_watts", "Power that may be drawn.", read(f"{monitor}/power1_cap", _MICRO)),
        ("bad_pages", "Pages of memory that are out of use.", read_bad_pages(tree, gpu.address)),
    ):
        if found is not None:
            yield sample(name, text, found)
    labels = [name for name in tree.names(monitor) if re.fullmatch(r"temp\d+_label", name)]
    inputs = {tree.read(f"{monitor}/{name}"): f"{monitor}/{name.removesuffix('label')}input" for name in labels}
    for sensor, path in inputs.items():
        if sensor and (celsius := read(path, _MILLI)) is not None:
            yield sample("temperature_celsius", "Temperature, by sensor.", celsius, sensor=sensor)
    for block, counts in read_errors(tree, gpu.address).items():
        for kind, count in counts.items():
            text = "Errors since the driver was loaded, by block; xgmi_wafl has those of xGMI links."
            yield sample("ecc_errors_total", text, count, block=block, error=kind)
    for state in sorted(set(reading.links)):
        yield sample("xgmi_links", "xGMI links, by state.", reading.links.count(state), state=state)
    for cause, count in reading.throttled.items():
        text = "How often the firmware held clocks down, by cause."
        yield sample("throttled_total", text, count, cause=cause)
