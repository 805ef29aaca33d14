"""Numbers for metrics, read when somebody asks for them: how much is used, how warm, what has failed how often.

Names follow Prometheus: base units, `_total` for what only grows. What a GPU or driver does not report is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydra import Sample
from pydra_nvidia.device_names import gpu_name, mig_name
from pydra_nvidia.hardware_types import Gpu, Reading
from pydra_nvidia.nvml.errors import STALE, NvmlError
from pydra_nvidia.nvml.hung_queries import GpuQueries, SuspendedQueries
from pydra_nvidia.nvml.nvlink import read_link_errors
from pydra_nvidia.nvml.pynvml_library import Looks, Nvml, read_fields

_ERRORS = {"corrected": 0, "uncorrected": 1}
_RETIREMENTS = {"multiple_single_bit": 0, "double_bit": 1}
_MEMORY_TEMPERATURE = 82
_PERCENT = 100.0


class _Query(NamedTuple):
    """A sample that one function of NVML answers, in units of `unit`; what only grows is a counter."""

    name: str
    help: str
    function: str
    arguments: tuple[int, ...] = ()
    unit: float = 1.0
    labels: Mapping[str, str] = {}


_QUERIES = (
    _Query("temperature_celsius", "Temperature of the chip.", "nvmlDeviceGetTemperature", (0,)),
    _Query("power_watts", "Power drawn.", "nvmlDeviceGetPowerUsage", unit=1e-3),
    _Query("power_limit_watts", "Power that may be drawn.", "nvmlDeviceGetEnforcedPowerLimit", unit=1e-3),
    _Query(
        "energy_joules_total",
        "Energy used since the driver was loaded.",
        "nvmlDeviceGetTotalEnergyConsumption",
        unit=1e-3,
    ),
    *(
        _Query("clock_hertz", "Frequency of a clock.", "nvmlDeviceGetClockInfo", (number,), 1e6, {"clock": clock})
        for number, clock in enumerate(("graphics", "sm", "memory", "video"))
    ),
    *(
        _Query(
            "ecc_errors_total",
            "Memory errors, since the driver was loaded (volatile) or in the GPU's life (aggregate).",
            "nvmlDeviceGetTotalEccErrors",
            (number, since),
            labels={"error": error, "counter": counter},
        )
        for error, number in _ERRORS.items()
        for since, counter in enumerate(("volatile", "aggregate"))
    ),
    _Query("pcie_replays_total", "PCIe packets that were sent again.", "nvmlDeviceGetPcieReplayCounter"),
    _Query("pcie_link_generation", "PCIe generation of the link now.", "nvmlDeviceGetCurrPcieLinkGeneration"),
    _Query("pcie_link_width", "PCIe lanes of the link now.", "nvmlDeviceGetCurrPcieLinkWidth"),
)


def read_samples(nvml: Nvml, reading: Reading, queries: SuspendedQueries) -> tuple[Sample, ...]:
    """The numbers of all GPUs of the reading, and of their partitions; a GPU that fails has none."""
    samples: list[Sample] = []
    for gpu in reading.gpus:
        try:
            handle = nvml.find(gpu.uuid)
            asked = GpuQueries(queries, nvml, gpu.uuid)
            samples += (*_read_gpu(asked, handle, gpu), *_read_partitions(nvml, asked, gpu))
        except NvmlError as error:
            if error.code in STALE:
                raise
    return tuple(samples)


def _read_gpu(nvml: Looks, handle: Any, gpu: Gpu) -> Iterator[Sample]:
    name = gpu_name(gpu.minor)
    yield from _memory(nvml, handle, name)
    if gpu.mig is None or not gpu.mig.enabled:
        rates = nvml.look("nvmlDeviceGetUtilizationRates", handle, subject=name)
        if rates is not None:
            text = "Share of time in which memory was read or written."
            yield _sample("utilization_ratio", "Share of time in which a kernel ran.", name, rates.gpu / _PERCENT)
            yield _sample("memory_utilization_ratio", text, name, rates.memory / _PERCENT)
    for query in _QUERIES:
        value = nvml.look(query.function, handle, *query.arguments, subject=name)
        if value is not None:
            yield _sample(query.name, query.help, name, value * query.unit, query.labels)
    (temperature,) = read_fields(nvml, handle, (_MEMORY_TEMPERATURE,), subject=name)
    if temperature:  # 0 where the memory has no sensor
        yield _sample("memory_temperature_celsius", "Temperature of the memory.", name, temperature)
    yield from _replaced_memory(nvml, handle, name)
    if gpu.links is not None:
        yield _sample("nvlink_links_up", "NVLinks that carry traffic.", name, gpu.links.up)
        for kind, count in read_link_errors(nvml, handle, gpu).items():
            yield _sample("nvlink_errors_total", "Errors of all NVLinks, by kind.", name, count, {"kind": kind})


def _memory(nvml: Looks, handle: Any, name: str) -> Iterator[Sample]:
    memory = nvml.look("nvmlDeviceGetMemoryInfo", handle, subject=name)
    if memory is not None:
        yield _sample("memory_used_bytes", "Memory in use, with what the driver keeps for itself.", name, memory.used)
        yield _sample("memory_free_bytes", "Memory that can be allocated.", name, memory.free)


def _replaced_memory(nvml: Looks, handle: Any, name: str) -> Iterator[Sample]:
    """By rows; GPUs before Ampere have pages instead."""
    rows = nvml.look("nvmlDeviceGetRemappedRows", handle, subject=name)
    if rows is not None:
        for error, count in zip(_ERRORS, rows[:2], strict=True):
            yield _sample("remapped_rows_total", "Rows of memory replaced by spares.", name, count, {"error": error})
        yield _sample("row_remap_pending", "1 when a row waits for a reset to be replaced.", name, rows[2])
        yield _sample("row_remap_failed", "1 when a row could not be replaced.", name, rows[3])
        return
    for cause, number in _RETIREMENTS.items():
        pages = nvml.look("nvmlDeviceGetRetiredPages", handle, number, subject=name)
        if pages is not None:
            yield _sample("retired_pages_total", "Pages of memory out of use.", name, len(pages), {"cause": cause})


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


def _sample(name: str, text: str, device: str, value: float, labels: Mapping[str, str] = {}) -> Sample:
    return Sample(name=name, value=float(value), help=text, device=device, labels=labels)
