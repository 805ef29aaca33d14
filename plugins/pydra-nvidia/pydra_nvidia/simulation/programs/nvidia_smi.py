"""nvidia-smi, as far as backends and examples run it: the time slice, and what there is (`-L`).

It is a client of the simulated NVML like any other, so NVML's rules and faults hold. Only the time slice has no call
there. A fault with the op `nvidia_smi` strikes each GPU that it works on.
Source of options, words and statuses: nvidia-smi(1) of driver 580.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Mapping, Sequence

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.call_faults import act
from pydra_nvidia.simulation.library.library import Library
from pydra_nvidia.simulation.machine_state import View
from pydra_nvidia.simulation.machine_store import Machine
from pydra_nvidia.simulation.scenario_file import ScenarioFile
from pydra_nvidia.simulation.scenario_gpus import spell_bus_id

OP = "nvidia_smi"
TIME_SLICES = ("Default", "Short", "Medium", "Long")
VOLTA = 5

_INVALID, _OTHER = 2, 255
_STATUSES = {
    Code.NOT_SUPPORTED: (3, "Not Supported"),
    Code.NO_PERMISSION: (4, "Insufficient Permissions"),
    Code.NOT_FOUND: (6, "No devices were found"),
    Code.DRIVER_NOT_LOADED: (
        9,
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA"
        " driver is installed and running.",
    ),
    Code.GPU_IS_LOST: (15, "GPU is lost"),
}


class Ended(Exception):
    """The program ends with this status, having said this."""

    def __init__(self, status: int, words: str) -> None:
        self.status = status
        self.words = words
        super().__init__(words)


def check(code: int, what: str = "") -> None:
    """Raises Ended for every code but SUCCESS; `what` failed."""
    if code:
        status, reason = _STATUSES.get(Code(code), (_OTHER, Code(code).name.replace("_", " ").title()))
        raise Ended(status, f"{what}: {reason}" if what else reason)


def set_time_slice(machine: Machine, library: Library, uuid: str, word: str) -> str:
    """`compute-policy -i UUID --set-timeslice 2`."""
    if word not in ("0", "1", "2", "3"):
        raise Ended(_INVALID, f"Invalid timeslice value: {word}. Use 0 (default), 1 (short), 2 (medium), 3 (long).")
    check(library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(ctypes.c_void_p())))
    view = machine.read()
    address = spell_bus_id(view.boards[uuid].address)
    failed = f"Failed to set timeslice for GPU {address}"
    for fault in view.faults.draw(OP, view.boards[uuid].minor):
        check(Code[fault.code] if fault.do == "raise" else Code.SUCCESS, failed)
        act(fault)
    check(Code.SUCCESS if view.scenario.driver.privileged else Code.NO_PERMISSION, failed)
    check(Code.SUCCESS if view.boards[uuid].model.architecture >= VOLTA else Code.NOT_SUPPORTED, failed)
    with machine.change() as view:
        view.state.gpus[uuid].time_slice = int(word)
    return f"Successfully set timeslice to {TIME_SLICES[int(word)]} for GPU {address}.\nAll done."


def list_gpus(view: View) -> Iterator[str]:
    """`-L`: GPUs, and the MIG devices on them."""
    for index, uuid in enumerate(view.attached()):
        board, gpu = view.boards[uuid], view.state.gpus[uuid]
        if gpu.lost:
            yield f"Unable to determine the device handle for gpu {spell_bus_id(board.address)}: GPU is lost."
            continue
        yield f"GPU {index}: {board.model.name} (UUID: {uuid})"
        made = [(one, compute) for one in gpu.instances for compute in one.compute]
        for number, (instance, compute) in enumerate(made):
            profile = board.model.mig.profile(instance.profile) if board.model.mig else None
            name = profile.name if profile else ""
            name = name if profile and compute.slices == profile.slices else f"{compute.slices}c.{name}"
            yield f"  MIG {name:<12} Device {number:>2}: (UUID: {compute.uuid})"


def run(arguments: Sequence[str], facts: Mapping[str, str]) -> Iterator[str]:
    """What it says, line by line; raises Ended."""
    machine = Machine(ScenarioFile(facts["scenario"]), facts["state"])
    library = Library(machine)
    match arguments:
        case ["compute-policy", "-i", uuid, "--set-timeslice", word]:
            check(library.nvmlInitWithFlags(0))
            yield set_time_slice(machine, library, uuid, word)
        case [] | ["-L"]:
            check(library.nvmlInitWithFlags(0))
            yield from list_gpus(machine.read())
        case _:
            words = f"Invalid argument: {' '.join(arguments)}\nInvalid combination of input arguments."
            raise Ended(_INVALID, f"{words} Please run 'nvidia-smi -h' for help.")
    library.nvmlShutdown()


def main(facts: Mapping[str, str]) -> int:
    """Run it with this process's arguments; its status."""
    try:
        for line in run(sys.argv[1:], facts):
            print(line)  # noqa: T201 - it is a program
    except Ended as ended:
        print(ended.words)  # noqa: T201
        return ended.status
    return 0
