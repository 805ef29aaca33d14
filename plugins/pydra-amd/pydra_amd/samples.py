"""Numbers for metrics, of whole GPUs: how much is used, how warm, what has failed how often. Pure.

Names follow Prometheus: base units, `_total` for what only grows. What is not known is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydra import Sample
from pydra_amd.amdsmi.links_and_throttling import GpuReading
from pydra_amd.host.sensors import Sensors

_PERCENT = 100.0


def build_samples(
    device: str, sensors: Sensors, errors: Mapping[str, Mapping[str, int]], bad_pages: int | None, reading: GpuReading
) -> Iterator[Sample]:
    """Of one GPU, whose name as a whole is `device`."""

    def sample(name: str, text: str, value: float, **labels: str) -> Sample:
        return Sample(name=name, value=float(value), help=text, device=device, labels=labels)

    used, total = sensors.memory_used, sensors.memory_total
    free = total - used if used is not None and total is not None else None
    for name, text, found in (
        ("memory_used_bytes", "Memory in use, with what the driver keeps for itself.", used),
        ("memory_free_bytes", "Memory that can be allocated.", free),
        ("utilization_ratio", "Share of time in which the GPU computed.", _share(sensors.busy)),
        ("memory_utilization_ratio", "Share of time in which memory was read or written.", _share(sensors.memory_busy)),
        ("power_watts", "Power drawn.", sensors.power),
        ("power_limit_watts", "Power that may be drawn.", sensors.power_limit),
        ("bad_pages", "Pages of memory that are out of use.", bad_pages),
    ):
        if found is not None:
            yield sample(name, text, found)
    for sensor, celsius in sensors.temperatures.items():
        yield sample("temperature_celsius", "Temperature, by sensor.", celsius, sensor=sensor)
    for block, counts in errors.items():
        for kind, count in counts.items():
            text = "Errors since the driver was loaded, by block; xgmi_wafl has those of xGMI links."
            yield sample("ecc_errors_total", text, count, block=block, error=kind)
    for state in sorted(set(reading.links)):
        yield sample("xgmi_links", "xGMI links, by state.", reading.links.count(state), state=state)
    for cause, count in reading.throttled.items():
        text = "How often the firmware held clocks down, by cause."
        yield sample("throttled_total", text, count, cause=cause)


def _share(percent: float | None) -> float | None:
    return None if percent is None else percent / _PERCENT
