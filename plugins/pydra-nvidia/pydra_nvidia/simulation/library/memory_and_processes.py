"""Memory, and the processes that have it, with their names."""

from __future__ import annotations

from functools import partial
from typing import Any

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.call_faults import NO_INSTANCE
from pydra_nvidia.simulation.library.arguments import Refusal, fill, number, pointed, put
from pydra_nvidia.simulation.library.function_registry import Call, function
from pydra_nvidia.simulation.machine_state import Process

MIB = 1 << 20


@function("device", "nvmlDeviceGetMemoryInfo")
def _memory_info(call: Call, info: Any) -> None:
    total, reserved, used = _memory(call)
    fill(info, total=total, free=total - reserved - used, used=used + reserved)


def _memory(call: Call) -> tuple[int, int, int]:
    """Total, reserved and used, in bytes."""
    model = call.board.model
    used = sum(process.memory for process in _processes(call)) * MIB
    if call.instance is not None and model.mig is not None:
        profile = model.mig.profile(call.instance.profile)
        assert profile is not None
        return profile.memory * MIB, 0, min(used, profile.memory * MIB)
    free = (model.memory - model.reserved) * MIB
    return model.memory * MIB, model.reserved * MIB, min(free, used + call.gpu.gauges.memory_used * MIB)


def _processes(call: Call) -> list[Process]:
    if call.instance is None or call.compute is None:
        return call.gpu.processes
    place = call.instance.id, call.compute.id
    return [process for process in call.gpu.processes if (process.gi, process.ci) == place]


def _list(kind: str, call: Call, count: Any, array: Any) -> None:
    found = [process for process in _processes(call) if process.kind == kind]
    room = number(pointed(count))
    put(count, len(found))
    if len(found) > room:
        raise Refusal(Code.INSUFFICIENT_SIZE)
    for position, process in enumerate(found):
        entry = pointed(array)[position] if not hasattr(array, "__getitem__") else array[position]
        entry.pid, entry.usedGpuMemory = process.pid, process.memory * MIB
        entry.gpuInstanceId = NO_INSTANCE if process.gi is None else process.gi
        entry.computeInstanceId = NO_INSTANCE if process.ci is None else process.ci


for name, process_kind in (("Compute", "compute"), ("Graphics", "graphics"), ("MPSCompute", "mps")):
    function("device", f"nvmlDeviceGet{name}RunningProcesses_v3")(partial(_list, process_kind))


@function("system", "nvmlSystemGetProcessName")
def _process_name(call: Call, pid: Any, buffer: Any, _size: Any) -> None:
    for state in call.view.state.gpus.values():
        for process in state.processes:
            if process.pid == number(pid):
                return put(buffer, process.name.encode())
    raise Refusal(Code.NOT_FOUND)
