"""What is measured and counted: sensors, the PCIe link, errors of the memory, and values of fields, many at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.library.arguments import Refusal, fill, number, pointed, put
from pydra_nvidia.simulation.library.function_registry import Call, function, numbers, require

CLOCKS = ("graphics", "sm", "memory", "video")
UNCORRECTED, AGGREGATE = 1, 1
UNSIGNED_INT, UNSIGNED_LONG_LONG = 1, 3
Reader: TypeAlias = Callable[[Call, int], int]

numbers(
    "gpu",
    {
        "nvmlDeviceGetPowerUsage": lambda call: call.gpu.gauges.power,
        "nvmlDeviceGetEnforcedPowerLimit": lambda call: call.board.model.power_limit * 1000,
        "nvmlDeviceGetTotalEnergyConsumption": lambda call: call.gpu.gauges.power * 60,
        "nvmlDeviceGetPcieReplayCounter": lambda call: call.gpu.counters.pcie_replays,
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda call: call.board.model.pci.generation,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda call: call.board.model.pci.width,
        "nvmlDeviceGetSupportedEventTypes": lambda call: call.board.model.events,
        "nvmlDeviceGetRetiredPagesPendingStatus": lambda call: require(
            call.gpu.counters.retirement_pending if call.board.model.page_retirement else None
        ),
    },
)


@function("gpu", "nvmlDeviceGetTemperature")
def _temperature(call: Call, sensor: Any, reference: Any) -> None:
    if number(sensor):
        raise Refusal(Code.INVALID_ARGUMENT)
    put(reference, call.gpu.gauges.temperature)


@function("gpu", "nvmlDeviceGetClockInfo")
def _clock(call: Call, kind: Any, reference: Any) -> None:
    if number(kind) >= len(CLOCKS):
        raise Refusal(Code.INVALID_ARGUMENT)
    put(reference, getattr(call.board.model.clocks, CLOCKS[number(kind)]))


@function("gpu", "nvmlDeviceGetUtilizationRates")
def _utilization(call: Call, info: Any) -> None:
    if call.gpu.mig:  # the counters are of the whole GPU, which in MIG mode nobody has
        raise Refusal(Code.NOT_SUPPORTED)
    fill(info, gpu=call.gpu.gauges.utilization, memory=call.gpu.gauges.memory_utilization)


@function("gpu", "nvmlDeviceGetTotalEccErrors")
def _total_ecc_errors(call: Call, kind: Any, counter: Any, reference: Any) -> None:
    _needs(call.board.model.ecc)
    error = "uncorrected" if number(kind) == UNCORRECTED else "corrected"
    since = "" if number(counter) == AGGREGATE else "_volatile"
    put(reference, getattr(call.gpu.counters, f"ecc_{error}{since}"))


@function("gpu", "nvmlDeviceGetRemappedRows")
def _remapped_rows(call: Call, corrected: Any, uncorrected: Any, pending: Any, failed: Any) -> None:
    _needs(call.board.model.row_remapping)
    counters = call.gpu.counters
    put(corrected, counters.remapped_corrected)
    put(uncorrected, counters.remapped_uncorrected)
    put(pending, int(counters.remap_pending))
    put(failed, int(counters.remap_failed))


@function("gpu", "nvmlDeviceGetRetiredPages")
def _retired_pages(call: Call, cause: Any, count: Any, pages: Any) -> None:
    _needs(call.board.model.page_retirement)
    counters = call.gpu.counters
    found = counters.retired_double if number(cause) else counters.retired_single
    room = number(pointed(count))
    put(count, found)
    if pages is None or room < found:
        if found:
            raise Refusal(Code.INSUFFICIENT_SIZE)
        return
    for position in range(found):
        pages[position] = 0x1000 * (position + 1)


def _needs(present: bool) -> None:
    if not present:
        raise Refusal(Code.NOT_SUPPORTED)


@function("gpu", "nvmlDeviceGetFieldValues")
def _field_values(call: Call, count: Any, values: Any) -> None:
    array = pointed(values)
    now = time.time_ns() // 1000
    for position in range(number(count)):
        entry = array[position]
        entry.timestamp, entry.latencyUsec = now, 0
        try:
            entry.valueType, read = require(_FIELDS.get(entry.fieldId))
            entry.value.ullVal = read(call, entry.scopeId)
            entry.nvmlReturn = int(Code.SUCCESS)
        except Refusal as refusal:
            entry.nvmlReturn = int(refusal.code)


def _link(count: str) -> Reader:
    """A counter of the link `scope`; those of a simulated GPU are all of link 0."""

    def read(call: Call, scope: int) -> int:
        nvlink = call.board.model.nvlink
        if nvlink is None or scope >= nvlink.links:
            raise Refusal(Code.NOT_SUPPORTED)
        return int(getattr(call.gpu.counters, count)) if scope == 0 else 0

    return read


_FIELDS: Mapping[int, tuple[int, Reader]] = {
    82: (UNSIGNED_INT, lambda call, _scope: call.gpu.gauges.temperature if call.board.model.row_remapping else 0),
    161: (UNSIGNED_LONG_LONG, _link("nvlink_replays")),
    162: (UNSIGNED_LONG_LONG, _link("nvlink_recoveries")),
    163: (UNSIGNED_LONG_LONG, _link("nvlink_crc")),
    184: (UNSIGNED_INT, lambda call, _scope: int(require(call.board.model.mig).resetless)),
    230: (UNSIGNED_INT, lambda call, _scope: call.gpu.recovery),
}
"""Type and value of the fields that backends read, by the id in NVML_FI_DEV_*."""
