"""What is measured: temperature, power, clocks, utilisation and the link of the PCIe bus."""

from __future__ import annotations

from typing import Any

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.library.arguments import Refusal, fill, number, put
from pydra_nvidia.simulation.library.function_registry import Call, function, numbers

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
    if call.gpu.mig:  # the counters are of the whole GPU, which in MIG mode nobody has
        raise Refusal(Code.NOT_SUPPORTED)
    fill(info, gpu=call.gpu.gauges.utilization, memory=call.gpu.gauges.memory_utilization)
