"""What is measured and counted: temperature, power, clocks, utilisation, errors of memory and of the bus."""

from __future__ import annotations

from typing import Any

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.library.arguments import Refusal, fill, number, pointed, put
from pydra_nvidia.simulation.library.symbols import Call, gpu

UNCORRECTED, AGGREGATE = 1, 1
CLOCKS = ("graphics", "sm", "memory", "video")


@gpu("nvmlDeviceGetTemperature")
def _temperature(call: Call, sensor: Any, reference: Any) -> None:
    if number(sensor):
        raise Refusal(Code.INVALID_ARGUMENT)
    put(reference, call.gpu.gauges.temperature)


@gpu("nvmlDeviceGetPowerUsage")
def _power_usage(call: Call, reference: Any) -> None:
    put(reference, call.gpu.gauges.power)


@gpu("nvmlDeviceGetEnforcedPowerLimit")
def _power_limit(call: Call, reference: Any) -> None:
    put(reference, call.board.model.power_limit * 1000)


@gpu("nvmlDeviceGetTotalEnergyConsumption")
def _energy(call: Call, reference: Any) -> None:
    put(reference, call.gpu.gauges.power * 60)


@gpu("nvmlDeviceGetClockInfo")
def _clock(call: Call, kind: Any, reference: Any) -> None:
    if number(kind) >= len(CLOCKS):
        raise Refusal(Code.INVALID_ARGUMENT)
    put(reference, getattr(call.board.model.clocks, CLOCKS[number(kind)]))


@gpu("nvmlDeviceGetUtilizationRates")
def _utilization(call: Call, info: Any) -> None:
    _needs(not call.gpu.mig)  # the counters are of the whole GPU, which in MIG mode nobody has
    fill(info, gpu=call.gpu.gauges.utilization, memory=call.gpu.gauges.memory_utilization)


@gpu("nvmlDeviceGetPcieReplayCounter")
def _pcie_replays(call: Call, reference: Any) -> None:
    put(reference, call.gpu.counters.pcie_replays)


@gpu("nvmlDeviceGetCurrPcieLinkGeneration")
def _pcie_generation(call: Call, reference: Any) -> None:
    put(reference, call.board.model.pci.generation)


@gpu("nvmlDeviceGetCurrPcieLinkWidth")
def _pcie_width(call: Call, reference: Any) -> None:
    put(reference, call.board.model.pci.width)


@gpu("nvmlDeviceGetTotalEccErrors")
def _total_ecc_errors(call: Call, kind: Any, counter: Any, reference: Any) -> None:
    put(reference, ecc_errors(call, uncorrected=number(kind) == UNCORRECTED, aggregate=number(counter) == AGGREGATE))


def ecc_errors(call: Call, *, uncorrected: bool, aggregate: bool) -> int:
    """Errors of the GPU's memory; raises Refusal when it has no ECC."""
    _needs(call.board.model.ecc)
    counters = call.gpu.counters
    if aggregate:
        return counters.ecc_uncorrected if uncorrected else counters.ecc_corrected
    return counters.ecc_uncorrected_volatile if uncorrected else counters.ecc_corrected_volatile


@gpu("nvmlDeviceGetRemappedRows")
def _remapped_rows(call: Call, corrected: Any, uncorrected: Any, pending: Any, failed: Any) -> None:
    _needs(call.board.model.row_remapping)
    counters = call.gpu.counters
    put(corrected, counters.remapped_corrected)
    put(uncorrected, counters.remapped_uncorrected)
    put(pending, int(counters.remap_pending))
    put(failed, int(counters.remap_failed))


@gpu("nvmlDeviceGetRetiredPages")
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


@gpu("nvmlDeviceGetRetiredPagesPendingStatus")
def _retirement_pending(call: Call, reference: Any) -> None:
    _needs(call.board.model.page_retirement)
    put(reference, int(call.gpu.counters.retirement_pending))


def _needs(present: bool) -> None:
    if not present:
        raise Refusal(Code.NOT_SUPPORTED)
