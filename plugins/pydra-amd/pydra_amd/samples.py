"""Numbers for metrics, of whole GPUs: how much is used, how warm, what has failed how often. Pure.

Names follow Prometheus: base units, `_total` for what only grows. What is not known is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydra import Sample, SampleKind
from pydra_amd.amdsmi.links_and_throttling import GpuReading
from pydra_amd.host.sensors import Sensors

_PERCENT = 100.0


def build_samples(
    device: str, sensors: Sensors, errors: Mapping[str, Mapping[str, int]], bad_pages: int | None, told: GpuReading
) -> Iterator[Sample]:
    """Of one GPU, whose name as a whole is `device`."""

    def counter(name: str, text: str, value: float, **labels: str) -> Sample:
        return Sample(name=name, value=value, help=text, kind=SampleKind.COUNTER, device=device, labels=labels)

    def gauge(name: str, text: str, value: float | None, **labels: str) -> Iterator[Sample]:
        if value is not None:
            yield Sample(name=name, value=float(value), help=text, device=device, labels=labels)

    used, total = sensors.memory_used, sensors.memory_total
    yield from gauge("memory_used_bytes", "Memory in use, with what the driver keeps for itself.", used)
    if used is not None and total is not None:
        yield from gauge("memory_free_bytes", "Memory that can be allocated.", total - used)
    for name, text, percent in (
        ("utilization_ratio", "Share of time in which the GPU computed.", sensors.busy),
        ("memory_utilization_ratio", "Share of time in which memory was read or written.", sensors.memory_busy),
    ):
        yield from gauge(name, text, None if percent is None else percent / _PERCENT)
    yield from gauge("power_watts", "Power drawn.", sensors.power)
    yield from gauge("power_limit_watts", "Power that may be drawn.", sensors.power_limit)
    for sensor, celsius in sensors.temperatures.items():
        yield from gauge("temperature_celsius", "Temperature, by sensor.", celsius, sensor=sensor)
    for block, counts in errors.items():
        for kind, count in counts.items():
            text = "Errors since the driver was loaded, by block; xgmi_wafl has those of xGMI links."
            yield counter("ecc_errors_total", text, count, block=block, error=kind)
    yield from gauge("bad_pages", "Pages of memory that are out of use.", bad_pages)
    for state in sorted(set(told.links)):
        yield from gauge("xgmi_links", "xGMI links, by state.", told.links.count(state), state=state)
    for cause, count in told.throttled.items():
        yield counter("throttled_total", "How often the firmware held clocks down, by cause.", count, cause=cause)
