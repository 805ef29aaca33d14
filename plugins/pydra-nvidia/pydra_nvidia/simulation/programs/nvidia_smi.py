"""nvidia-smi, as far as backends run it: compute mode, persistence mode, time slice, and what there is.

It is a client of the simulated NVML like any other, so NVML's rules and faults hold. Only the time slice has no call
there. A fault with the op `nvidia_smi` strikes each GPU that it works on.
Source of options, words and statuses: nvidia-smi(1) of driver 580.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.faults import act
from pydra_nvidia.simulation.library.library import Library
from pydra_nvidia.simulation.machine import Machine
from pydra_nvidia.simulation.scenario_file import ScenarioFile

OP = "nvidia_smi"
COMPUTE_MODES = {"DEFAULT": 0, "EXCLUSIVE_THREAD": 1, "PROHIBITED": 2, "EXCLUSIVE_PROCESS": 3}
PERSISTENCE_MODES = {"DISABLED": 0, "ENABLED": 1}
TIME_SLICES = ("Default", "Short", "Medium", "Long")
VOLTA = 5

_INVALID, _NOT_FOUND, _OTHER = 2, 6, 255
_STATUSES = {
    Code.NOT_SUPPORTED: (3, "Not Supported"),
    Code.NO_PERMISSION: (4, "Insufficient Permissions"),
    Code.NOT_FOUND: (_NOT_FOUND, "Not Found"),
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
        self._version = facts["version"]

    def open(self) -> None:
        """nvmlInit; raises Ended."""
        code = self.library.nvmlInitWithFlags(0)
        if code == Code.LIB_RM_VERSION_MISMATCH:
            words = f"Driver/library version mismatch\nNVML library version: {self._version}"
            raise Ended(18, f"Failed to initialize NVML: {words}")
        if code:
            raise Ended(_STATUSES.get(Code(code), (_OTHER, ""))[0], _NO_DRIVER)

    def chosen(self, words: str | None) -> list[tuple[str, Any]]:
        """UUIDs and handles of the GPUs that -i names: indices, UUIDs or PCI addresses; all without it."""
        view = self.machine.read()
        attached = view.attached()
        named = words.split(",") if words is not None else [str(index) for index in range(len(attached))]
        return [self._find(word.strip()) for word in named]

    def call(self, name: str, *arguments: Any) -> int:
        """The code of a call."""
        return int(getattr(self.library, name)(*arguments))

    def address(self, uuid: str) -> str:
        """`00000000:0F:00.0`."""
        domain, _, rest = self.machine.read().boards[uuid].address.partition(":")
        return f"{domain:0>8}:{rest}".upper()

    def strike(self, uuid: str) -> None:
        """Let the faults of the scenario happen; raises Ended."""
        view = self.machine.read()
        for fault in view.faults.draw(OP, view.boards[uuid].minor):
            if fault.do == "raise":
                raise self.refusal(fault.code, f"Unable to work on GPU {self.address(uuid)}", Code[fault.code])
            act(fault)

    def refusal(self, _what: str, words: str, code: int) -> Ended:
        """What an NVML code means here."""
        status, reason = _STATUSES.get(Code(code), (_OTHER, Code(code).name.replace("_", " ").title()))
        return Ended(status, f"{words}: {reason}\nTerminating early due to previous errors.")

    def _find(self, word: str) -> tuple[str, Any]:
        handle = ctypes.c_void_p()
        if word.isdecimal():
            code = self.call("nvmlDeviceGetHandleByIndex_v2", int(word), ctypes.byref(handle))
        elif word.startswith("GPU-"):
            code = self.call("nvmlDeviceGetHandleByUUID", word.encode(), ctypes.byref(handle))
        else:
            code = self.call("nvmlDeviceGetHandleByPciBusId_v2", word.encode(), ctypes.byref(handle))
        if code == Code.GPU_IS_LOST:
            raise Ended(15, f"Unable to determine the device handle for GPU {word}: GPU is lost.")
        if code:
            raise Ended(_NOT_FOUND, "No devices were found")
        buffer = ctypes.create_string_buffer(96)
        self.call("nvmlDeviceGetUUID", handle, buffer, 96)
        return buffer.value.decode(), handle


def set_compute_mode(smi: Smi, uuid: str, handle: Any, word: str) -> str:
    """`-c DEFAULT`, or its number."""
    mode = _parse(word, COMPUTE_MODES)
    name = next(name for name, number in COMPUTE_MODES.items() if number == mode)
    before = ctypes.c_uint()
    smi.call("nvmlDeviceGetComputeMode", handle, ctypes.byref(before))
    if code := smi.call("nvmlDeviceSetComputeMode", handle, mode):
        raise smi.refusal(name, f"Unable to set the compute mode for GPU {smi.address(uuid)}", code)
    if before.value == mode:
        return f"Compute mode is already set to {name} for GPU {smi.address(uuid)}."
    return f"Set compute mode to {name} for GPU {smi.address(uuid)}."


def set_persistence_mode(smi: Smi, uuid: str, handle: Any, word: str) -> str:
    """`-pm 0`, or its name."""
    mode = _parse(word, PERSISTENCE_MODES)
    name = ("Disabled", "Enabled")[mode]
    before = ctypes.c_uint()
    smi.call("nvmlDeviceGetPersistenceMode", handle, ctypes.byref(before))
    if code := smi.call("nvmlDeviceSetPersistenceMode", handle, mode):
        raise smi.refusal(name, f"Unable to set persistence mode for GPU {smi.address(uuid)}", code)
    if before.value == mode:
        return f"Persistence mode is already {name} for GPU {smi.address(uuid)}."
    return f"{name} persistence mode for GPU {smi.address(uuid)}."


def set_time_slice(smi: Smi, uuid: str, _handle: Any, word: str) -> str:
    """`compute-policy --set-timeslice 2`."""
    if word not in ("0", "1", "2", "3"):
        raise Ended(_INVALID, f"Invalid timeslice value: {word}. Use 0 (default), 1 (short), 2 (medium) or 3 (long).")
    where = f"Failed to set timeslice for GPU {smi.address(uuid)}"
    view = smi.machine.read()
    if not view.scenario.driver.privileged:
        raise smi.refusal(word, where, Code.NO_PERMISSION)
    if view.boards[uuid].model.architecture < VOLTA:
        raise smi.refusal(word, where, Code.NOT_SUPPORTED)
    with smi.machine.change() as view:
        view.state.gpus[uuid].time_slice = int(word)
    return f"Successfully set timeslice to {TIME_SLICES[int(word)]} for GPU {smi.address(uuid)}."


def list_time_slice(smi: Smi, uuid: str, _handle: Any, _word: str) -> str:
    """`compute-policy -l`."""
    slices = smi.machine.read().state.gpus[uuid].time_slice
    return f"GPU {smi.address(uuid)}: Timeslice: {TIME_SLICES[slices]}"


def list_gpus(smi: Smi) -> Iterator[str]:
    """`-L`: GPUs, and the MIG devices on them."""
    view = smi.machine.read()
    for index, uuid in enumerate(view.attached()):
        board, gpu = view.boards[uuid], view.state.gpus[uuid]
        if gpu.lost:
            yield f"Unable to determine the device handle for gpu {smi.address(uuid)}: GPU is lost."
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


def describe_version(smi: Smi, version: str) -> str:
    """`--version`."""
    cuda = smi.machine.read().scenario.driver.cuda
    driver = smi.machine.read().driver_version()
    return (
        f"NVIDIA-SMI version  : {version}\n"
        f"NVML version        : {'.'.join(version.split('.')[:2])}\n"
        f"DRIVER version      : {driver}\n"
        f"CUDA Version        : {cuda // 1000}.{cuda % 1000 // 10}"
    )


def run(arguments: Sequence[str], facts: Mapping[str, str]) -> Iterator[str]:
    """What it says, line by line; raises Ended."""
    smi = Smi(facts)
    words = list(arguments)
    policy = bool(words) and words[0] == "compute-policy"
    actions = _POLICIES if policy else _MODES
    chosen, wanted = _read(words[1:] if policy else words, actions)
    if "--version" in wanted:
        smi.open()
        yield describe_version(smi, facts["version"])
        return
    smi.open()
    try:
        if "-L" in wanted or not wanted:
            yield from list_gpus(smi)
            return
        for uuid, handle in smi.chosen(chosen):
            smi.strike(uuid)
            for option, value in wanted.items():
                yield actions[option](smi, uuid, handle, value)
        yield "All done."
    finally:
        smi.library.nvmlShutdown()


_MODES: Mapping[str, Callable[[Smi, str, Any, str], str]] = {"-c": set_compute_mode, "-pm": set_persistence_mode}
_POLICIES: Mapping[str, Callable[[Smi, str, Any, str], str]] = {
    "--set-timeslice": set_time_slice,
    "-l": list_time_slice,
}
_LONG = {"--compute-mode": "-c", "--persistence-mode": "-pm", "--id": "-i", "--list": "-l", "--list-gpus": "-L"}
_ALONE = ("-L", "-l", "--version")


def _read(words: list[str], actions: Mapping[str, object]) -> tuple[str | None, dict[str, str]]:
    """What -i names, and the options with their values; raises Ended."""
    chosen: str | None = None
    wanted: dict[str, str] = {}
    left = iter(words)
    for word in left:
        name, given, value = word.partition("=")
        option = _LONG.get(name, name)
        if option in _ALONE and not given:
            wanted[option] = ""
            continue
        if option != "-i" and option not in actions:
            raise Ended(_INVALID, f"Invalid argument: {word}\n{_USAGE}")
        value = value if given else next(left, "")
        if not value:
            raise Ended(_INVALID, _USAGE)
        if option == "-i":
            chosen = value
        else:
            wanted[option] = value
    if any(option not in actions and option not in ("-L", "--version") for option in wanted):
        raise Ended(_INVALID, _USAGE)
    return chosen, wanted


def _parse(word: str, modes: Mapping[str, int]) -> int:
    mode = int(word) if word.isdecimal() else modes.get(word.upper())
    if mode is None or mode not in modes.values():
        raise Ended(_INVALID, f"Invalid argument: {word}\n{_USAGE}")
    return mode


def main(facts: Mapping[str, str]) -> int:
    """Run it with this process's arguments; its status."""
    try:
        for line in run(sys.argv[1:], facts):
            print(line)  # noqa: T201 - it is a program
    except Ended as ended:
        print(ended.words)  # noqa: T201
        return ended.status
    return 0
