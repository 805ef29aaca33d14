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
from pydra_nvidia.simulation.machine_store import Machine
from pydra_nvidia.simulation.scenario_file import ScenarioFile

OP = "nvidia_smi"
TIME_SLICES = ("Default", "Short", "Medium", "Long")
VOLTA = 5

_INVALID, _NOT_FOUND, _OTHER = 2, 6, 255
_STATUSES = {
    Code.NOT_SUPPORTED: (3, "Not Supported"),
    Code.NO_PERMISSION: (4, "Insufficient Permissions"),
    Code.DRIVER_NOT_LOADED: (9, "Driver Not Loaded"),
    Code.GPU_IS_LOST: (15, "GPU is lost"),
}
_NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running."
)
_USAGE = "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."


class Ended(Exception):
    """The program ends with this status, having said this."""

    def __init__(self, status: int, words: str) -> None:
        self.status = status
        self.words = words
        super().__init__(words)


class Smi:
    """One run, with the simulated NVML open."""

    def __init__(self, facts: Mapping[str, str]) -> None:
        self.machine = Machine(ScenarioFile(facts["scenario"]), facts["state"])
        self.library = Library(self.machine)

    def open(self) -> None:
        """nvmlInit; raises Ended."""
        if code := self.library.nvmlInitWithFlags(0):
            raise Ended(_STATUSES.get(Code(code), (_OTHER, ""))[0], _NO_DRIVER)

    def find(self, uuid: str) -> None:
        """The GPU; raises Ended."""
        handle = ctypes.c_void_p()
        code = self.library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle))
        if code == Code.GPU_IS_LOST:
            raise Ended(15, f"Unable to determine the device handle for GPU {uuid}: GPU is lost.")
        if code:
            raise Ended(_NOT_FOUND, "No devices were found")

    def set_time_slice(self, uuid: str, word: str) -> str:
        """`compute-policy -i UUID --set-timeslice 2`."""
        if word not in ("0", "1", "2", "3"):
            raise Ended(_INVALID, f"Invalid timeslice value: {word}. Use 0 (default), 1 (short), 2 (medium), 3 (long).")
        self.find(uuid)
        view = self.machine.read()
        for fault in view.faults.draw(OP, view.boards[uuid].minor):
            if fault.do == "raise":
                raise self._refuse(uuid, Code[fault.code])
            act(fault)
        if not view.scenario.driver.privileged:
            raise self._refuse(uuid, Code.NO_PERMISSION)
        if view.boards[uuid].model.architecture < VOLTA:
            raise self._refuse(uuid, Code.NOT_SUPPORTED)
        with self.machine.change() as view:
            view.state.gpus[uuid].time_slice = int(word)
        return f"Successfully set timeslice to {TIME_SLICES[int(word)]} for GPU {self._address(uuid)}.\nAll done."

    def list_gpus(self) -> Iterator[str]:
        """`-L`: GPUs, and the MIG devices on them."""
        view = self.machine.read()
        for index, uuid in enumerate(view.attached()):
            board, gpu = view.boards[uuid], view.state.gpus[uuid]
            if gpu.lost:
                yield f"Unable to determine the device handle for gpu {self._address(uuid)}: GPU is lost."
                continue
            yield f"GPU {index}: {board.model.name} (UUID: {uuid})"
            number = 0
            for instance in gpu.instances:
                profile = board.model.mig.profile(instance.profile) if board.model.mig else None
                for compute in instance.compute:
                    name = profile.name if profile else ""
                    name = name if profile and compute.slices == profile.slices else f"{compute.slices}c.{name}"
                    yield f"  MIG {name:<12} Device {number:>2}: (UUID: {compute.uuid})"
                    number += 1

    def _refuse(self, uuid: str, code: Code) -> Ended:
        status, reason = _STATUSES.get(code, (_OTHER, code.name.replace("_", " ").title()))
        words = f"Failed to set timeslice for GPU {self._address(uuid)}: {reason}"
        return Ended(status, f"{words}\nTerminating early due to previous errors.")

    def _address(self, uuid: str) -> str:
        """`00000000:0F:00.0`."""
        domain, _, rest = self.machine.read().boards[uuid].address.partition(":")
        return f"{domain:0>8}:{rest}".upper()


def run(arguments: Sequence[str], facts: Mapping[str, str]) -> Iterator[str]:
    """What it says, line by line; raises Ended."""
    smi = Smi(facts)
    match arguments:
        case ["compute-policy", "-i", uuid, "--set-timeslice", word]:
            smi.open()
            yield smi.set_time_slice(uuid, word)
        case [] | ["-L"]:
            smi.open()
            yield from smi.list_gpus()
        case _:
            raise Ended(_INVALID, f"Invalid argument: {' '.join(arguments)}\n{_USAGE}")
    smi.library.nvmlShutdown()


def main(facts: Mapping[str, str]) -> int:
    """Run it with this process's arguments; its status."""
    try:
        for line in run(sys.argv[1:], facts):
            print(line)  # noqa: T201 - it is a program
    except Ended as ended:
        print(ended.words)  # noqa: T201
        return ended.status
    return 0
