"""What is measured and counted: temperature, power, clocks, utilisation, errors of memory and of the bus."""

from __future__ import annotations

from typing import Any

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.library.arguments import Refusal, fill, number, pointed, put
from pydra_nvidia.simulation.library.symbols import Call, function, numbers, require

UNCORRECTED, AGGREGATE = 1, 1
CLOCKS = ("graphics", "sm", "memory", "video")


numbers(
    "gpu",
    {
        "nvmlDeviceGetPowerUsage": lambda call: call.gpu.gauges.power,
        "nvmlDeviceGetEnforcedPowerLimit": lambda call: call.board.model.power_limit * 1000,
        "nvmlDeviceGetTotalEnergyConsumption": lambda call: call.gpu.gauges.power * 60,
        "nvmlDeviceGetPcieReplayCounter": lambda call: call.gpu.counters.pcie_replays,
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda call: call.board.model.pci.generation,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda call: call.board.model.pci.width,
        "nvmlDeviceGetRetiredPagesPendingStatus": lambda call: require(
            call.gpu.counters.retirement_pending if call.board.model.page_retirement else None
        ),
        "nvmlDeviceGetSupportedEventTypes": lambda call: call.board.model.events,
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
    _needs(not call.gpu.mig)  # the counters are of the whole GPU, which in MIG mode nobody has
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
