"""What a server of MPS is to the simulated machine: a process that uses the daemon's devices."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from pydra_nvidia.simulation.machine import Machine, View
from pydra_nvidia.simulation.scenario_file import ScenarioFile
from pydra_nvidia.simulation.state import GpuState, Process
from pydra_nvidia.simulation.tree.sync import build_tree

NAME = "nvidia-cuda-mps-server"


def occupy(devices: Sequence[str], facts: Mapping[str, Any]) -> str:
    """Use them, all when none is named; why that cannot be, empty when it can."""
    machine = _open(facts)
    with machine.change() as view:
        used = [_find(view, device) for device in devices or view.attached()]
        if None in used:
            return f"no such device: {devices[used.index(None)]}"
        for place in used:
            assert place is not None
            gpu, gi, ci = place
            gpu.processes.append(Process(pid=os.getpid(), name=NAME, memory=30, kind="mps", gi=gi, ci=ci))
    return ""


def release(facts: Mapping[str, Any]) -> None:
    """Use them no longer."""
    with _open(facts).change() as view:
        for gpu in view.state.gpus.values():
            gpu.processes[:] = [one for one in gpu.processes if one.pid != os.getpid()]


def _open(facts: Mapping[str, Any]) -> Machine:
    machine = Machine(ScenarioFile(facts["scenario"]), facts["state"])
    build_tree(facts["tree"], machine)
    return machine


def _find(view: View, device: str) -> tuple[GpuState, int | None, int | None] | None:
    for uuid in view.attached():
        gpu = view.state.gpus[uuid]
        if uuid == device:
            return gpu, None, None
        for instance in gpu.instances:
            for compute in instance.compute:
                if compute.uuid == device:
                    return gpu, instance.id, compute.id
    return None
