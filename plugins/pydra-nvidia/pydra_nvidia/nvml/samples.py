"""Numbers for metrics, read when somebody asks for them: how much is used, how warm, what has failed how often.

Names follow Prometheus: base units, `_total` for what only grows. What a GPU or driver does not tell is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydra import Sample, SampleKind
from pydra_nvidia.devices import gpu_name, mig_name
from pydra_nvidia.hardware_types import Gpu, Reading
from pydra_nvidia.nvml.errors import STALE, NvmlError
from pydra_nvidia.nvml.library import Looks, Nvml, read_fields
from pydra_nvidia.nvml.nvlink import read_link_errors
from pydra_nvidia.nvml.suspended_queries import SuspendedQueries

_CLOCKS = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}
_ERRORS = {"corrected": 0, "uncorrected": 1}
_COUNTERS = {"volatile": 0, "aggregate": 1}
_RETIREMENTS = {"multiple_single_bit": 0, "double_bit": 1}
_MEMORY_TEMPERATURE = 82
_PERCENT = 100.0
_MILLI = 1000.0


def read_samples(nvml: Nvml, reading: Reading, queries: SuspendedQueries) -> tuple[Sample, ...]:
    """The numbers of all GPUs of the reading, and of their partitions; a GPU that fails has none."""
    samples: list[Sample] = []
    for gpu in reading.gpus:
        try:
            handle = nvml.find(gpu.uuid)
            asked = queries.of(nvml, gpu.uuid)
            samples += (*_read_gpu(asked, handle, gpu), *_read_partitions(nvml, asked, gpu))
        except NvmlError as error:
            if error.code in STALE:
                raise
    return tuple(samples)


def _read_gpu(nvml: Looks, handle: Any, gpu: Gpu) -> Iterator[Sample]:
    name = gpu_name(gpu.minor)
    yield from _memory(nvml, handle, name)
    yield from _activity(nvml, handle, gpu, name)
    yield from _errors(nvml, handle, name)
    yield from _pcie(nvml, handle, name)
    if gpu.links is not None:
        yield _gauge("nvlink_links_up", "NVLinks that carry traffic.", name, gpu.links.up)
        for kind, count in read_link_errors(nvml, handle, gpu).items():
            yield _counter("nvlink_errors_total", "Errors of all NVLinks, by kind.", name, count, {"kind": kind})


def _memory(nvml: Looks, handle: Any, name: str) -> Iterator[Sample]:
    memory = nvml.look("nvmlDeviceGetMemoryInfo", handle, subject=name)
    if memory is not None:
        yield _gauge("memory_used_bytes", "Memory in use, with what the driver keeps for itself.", name, memory.used)
        yield _gauge("memory_free_bytes", "Memory that can be allocated.", name, memory.free)


def _activity(nvml: Looks, handle: Any, gpu: Gpu, name: str) -> Iterator[Sample]:
    if gpu.mig is None or not gpu.mig.enabled:
        rates = nvml.look("nvmlDeviceGetUtilizationRates", handle, subject=name)
        if rates is not None:
            yield _gauge("utilization_ratio", "Share of time in which a kernel ran.", name, rates.gpu / _PERCENT)
            yield _gauge(
                "memory_utilization_ratio",
                "Share of time in which memory was read or written.",
                name,
                rates.memory / _PERCENT,
            )
    temperature = nvml.look("nvmlDeviceGetTemperature", handle, 0, subject=name)
    yield from _told("temperature_celsius", "Temperature of the chip.", name, temperature)
    (memory_temperature,) = read_fields(nvml, handle, (_MEMORY_TEMPERATURE,), subject=name)
    if memory_temperature:  # 0 where the memory has no sensor
        yield _gauge("memory_temperature_celsius", "Temperature of the memory.", name, memory_temperature)
    power = nvml.look("nvmlDeviceGetPowerUsage", handle, subject=name)
    yield from _told("power_watts", "Power drawn.", name, power, _MILLI)
    limit = nvml.look("nvmlDeviceGetEnforcedPowerLimit", handle, subject=name)
    yield from _told("power_limit_watts", "Power that may be drawn.", name, limit, _MILLI)
    energy = nvml.look("nvmlDeviceGetTotalEnergyConsumption", handle, subject=name)
    if energy is not None:
        yield _counter("energy_joules_total", "Energy used since the driver was loaded.", name, energy / _MILLI)
    for kind, number in _CLOCKS.items():
        megahertz = nvml.look("nvmlDeviceGetClockInfo", handle, number, subject=name)
        if megahertz is not None:
            yield _gauge("clock_hertz", "Frequency of a clock.", name, megahertz * 1e6, {"clock": kind})


def _errors(nvml: Looks, handle: Any, name: str) -> Iterator[Sample]:
    for error, error_number in _ERRORS.items():
        for counter, counter_number in _COUNTERS.items():
            count = nvml.look("nvmlDeviceGetTotalEccErrors", handle, error_number, counter_number, subject=name)
            if count is not None:
                yield _counter(
                    "ecc_errors_total",
                    "Memory errors, since the driver was loaded (volatile) or in the GPU's life (aggregate).",
                    name,
                    count,
                    {"error": error, "counter": counter},
                )
    rows = nvml.look("nvmlDeviceGetRemappedRows", handle, subject=name)
    if rows is not None:
        for error, count in zip(_ERRORS, rows[:2], strict=True):
            yield _counter("remapped_rows_total", "Rows of memory replaced by spares.", name, count, {"error": error})
        yield _gauge("row_remap_pending", "1 when a row waits for a reset to be replaced.", name, rows[2])
        yield _gauge("row_remap_failed", "1 when a row could not be replaced.", name, rows[3])
        return
    for cause, number in _RETIREMENTS.items():
        pages = nvml.look("nvmlDeviceGetRetiredPages", handle, number, subject=name)
        if pages is not None:
            yield _counter("retired_pages_total", "Pages of memory out of use.", name, len(pages), {"cause": cause})


def _pcie(nvml: Looks, handle: Any, name: str) -> Iterator[Sample]:
    replays = nvml.look("nvmlDeviceGetPcieReplayCounter", handle, subject=name)
    if replays is not None:
        yield _counter("pcie_replays_total", "PCIe packets that were sent again.", name, replays)
    generation = nvml.look("nvmlDeviceGetCurrPcieLinkGeneration", handle, subject=name)
    yield from _told("pcie_link_generation", "PCIe generation of the link now.", name, generation)
    width = nvml.look("nvmlDeviceGetCurrPcieLinkWidth", handle, subject=name)
    yield from _told("pcie_link_width", "PCIe lanes of the link now.", name, width)


def _read_partitions(nvml: Nvml, asked: Looks, gpu: Gpu) -> Iterator[Sample]:
    """Compute instances of one GPU instance share its memory, so that the first speaks for all."""
    if gpu.mig is None:
        return
    names = {profile.id: profile.name for profile in gpu.mig.profiles}
    for instance in gpu.mig.instances:
        if not instance.compute or instance.profile not in names:
            continue
        name = mig_name(gpu.minor, names[instance.profile], instance.profile, instance.placement.start)
        handle = nvml.find_known(instance.compute[0].uuid)
        if handle is not None:  # else it is gone since the reading, or comes with the next
            yield from _memory(asked, handle, name)


def _told(name: str, text: str, device: str, value: float | None, divisor: float = 1.0) -> Iterator[Sample]:
    if value is not None:
        yield _gauge(name, text, device, value / divisor)


def _gauge(name: str, text: str, device: str, value: float, labels: Mapping[str, str] | None = None) -> Sample:
    return Sample(name=name, value=float(value), help=text, device=device, labels=labels or {})


def _counter(name: str, text: str, device: str, value: float, labels: Mapping[str, str] | None = None) -> Sample:
    return Sample(name=name, value=float(value), help=text, kind=SampleKind.COUNTER, device=device, labels=labels or {})
