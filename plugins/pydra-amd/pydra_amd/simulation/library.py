"""The native library of a simulated machine, below AMD's real Python package.

It reads its answers from files beside the machine's tree, which stand for faults of the hardware:

    library/version                     26.0.0
    library/lacks                       functions that the library does not have, one on each line
    library/fails                       `amdsmi_init 34`: what a function answers, one on each line; with an address
                                        behind it, about this GPU only
    library/hangs                       functions that do not return as long as they are here, one on each line
    library/0000:05:00.0/links          UUDXUUUX: the states of the xGMI links
    library/0000:05:00.0/throttled      how often the socket was too hot
    library/0000:05:00.0/events         names of events, one on each line; each is reported once
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from pydra_amd.amdsmi.library import NATIVE
from pydra_amd.host.kfd import GENERATION, PROCESSES
from pydra_amd.models import PARTITIONS, WHOLE
from pydra_amd.simulation.machine_types import MACHINE_TYPES, MachineType
from pydra_amd.simulation.tree import read_modes

SUCCESS, INVALID, NOT_SUPPORTED, NOT_INIT, NO_DATA = 0, 1, 2, 32, 40

_LINKS = {"D": 0, "U": 1, "X": 2}
_EVENTS = {"THERMAL_THROTTLE": 2, "GPU_PRE_RESET": 3, "GPU_POST_RESET": 4}


def import_amdsmi(root: str, scenario: str) -> Any:
    """AMD's package over the library of the machine whose tree is at `root`. Raises as its import does."""
    library = NativeLibrary(root, MACHINE_TYPES[scenario])
    before = ctypes.CDLL

    def open_library(name: Any, *arguments: Any, **options: Any) -> Any:
        return library if NATIVE in str(name) else before(name, *arguments, **options)

    others = {name: sys.modules.pop(name) for name in [*sys.modules] if name.partition(".")[0] == "amdsmi"}
    # The package has no other way in.
    ctypes.CDLL = open_library  # type: ignore[assignment, misc]
    try:
        return importlib.import_module("amdsmi")
    finally:
        ctypes.CDLL = before  # type: ignore[misc]
        for name in [*sys.modules]:
            if name.partition(".")[0] == "amdsmi":
                del sys.modules[name]
        sys.modules.update(others)


class _Function:
    """A function of the library, which the package gives types."""

    def __init__(self, work: Callable[..., int]) -> None:
        self._work = work
        self.restype: Any = None
        self.argtypes: Any = None

    def __call__(self, *arguments: Any) -> int:
        return self._work(*arguments)


class NativeLibrary:
    """Functions by their C names; one that is not written below answers that it is not supported."""

    def __init__(self, root: str, machine: MachineType) -> None:
        self._root = root
        self._machine = machine
        self._open = 0
        self._generation = ""
        self._watched: set[int] = set()

    def __getattr__(self, name: str) -> _Function:
        if not name.startswith("amdsmi_") or name in self._lines("lacks"):
            raise AttributeError(f"{NATIVE}: undefined symbol: {name}")
        work: Callable[..., int] = getattr(type(self), f"_{name}", _refuse)

        def call(*arguments: Any) -> int:
            while name in self._lines("hangs"):
                time.sleep(0.01)
            for line in self._lines("fails"):
                function, code, *only = line.split()
                if function == name and (not only or self._find(arguments[0]) in only):
                    return int(code)
            if name not in {"amdsmi_init", "amdsmi_get_lib_version"} and not self._open:
                return NOT_INIT
            # What a function writes to comes by reference.
            return work(self, *(getattr(one, "_obj", one) for one in arguments))

        return _Function(call)

    def _amdsmi_init(self, _flags: Any) -> int:
        self._open += 1
        self._generation = self._read_generation()
        return SUCCESS

    def _amdsmi_shut_down(self) -> int:
        self._open -= 1
        return SUCCESS

    def _amdsmi_get_lib_version(self, version: Any) -> int:
        version.major, version.minor, version.release = map(int, (self._read("version") or "26.0.0").split("."))
        version.build = ctypes.pointer(ctypes.c_char(b"s"))
        return SUCCESS

    def _amdsmi_get_socket_handles(self, count: Any, handles: Any) -> int:
        return _give(count, handles, range(1, len(self._machine.buses) + 1))

    def _amdsmi_get_processor_handles(self, socket: Any, count: Any, handles: Any) -> int:
        mode = read_modes(self._root)[socket.value - 1]
        partitions = PARTITIONS[self._machine.model.xccs][mode] if mode != WHOLE else 1
        first = socket.value << 8
        return _give(count, handles, range(first, first + partitions))

    def _amdsmi_get_gpu_device_bdf(self, handle: Any, bdf: Any) -> int:
        address = bdf.struct_amdsmi_bdf_t
        address.function_number = handle.value & 0x7
        address.bus_number = self._machine.buses[(handle.value >> 8) - 1]
        return SUCCESS

    def _amdsmi_get_gpu_xgmi_link_status(self, handle: Any, status: Any) -> int:
        if not self._machine.hive:
            return NOT_SUPPORTED
        if self._is_stale():
            return INVALID
        states = self._read(f"{self._find(handle)}/links") or "U" * (len(self._machine.buses) - 1) + "X"
        status.total_links = len(states)
        for number, state in enumerate(states):
            status.status[number] = _LINKS[state]
        return SUCCESS

    def _amdsmi_get_gpu_metrics_info(self, handle: Any, metrics: Any) -> int:
        if self._is_stale():
            return INVALID
        ctypes.memset(ctypes.addressof(metrics), 0xFF, ctypes.sizeof(metrics))  # all that is not known
        metrics.ppt_residency_acc = 0
        metrics.socket_thm_residency_acc = int(self._read(f"{self._find(handle)}/throttled") or 0)
        return SUCCESS

    def _amdsmi_init_gpu_event_notification(self, handle: Any) -> int:
        os.makedirs(f"{self._root}/sys/{PROCESSES}", exist_ok=True)
        if not self._watched:  # a link, which leads nowhere when the process has ended, however that was
            with contextlib.suppress(FileExistsError):  # of one with this pid that was killed
                os.symlink(f"/proc/{os.getpid()}", f"{self._root}/sys/{PROCESSES}/{os.getpid()}")
        self._watched.add(handle.value)
        return SUCCESS

    def _amdsmi_set_gpu_event_notification_mask(self, _handle: Any, _mask: Any) -> int:
        return SUCCESS

    def _amdsmi_stop_gpu_event_notification(self, handle: Any) -> int:
        self._watched.discard(handle.value)
        if not self._watched:
            os.unlink(f"{self._root}/sys/{PROCESSES}/{os.getpid()}")
        return SUCCESS

    def _amdsmi_get_gpu_event_notification(self, milliseconds: Any, count: Any, found: Any) -> int:
        until = time.monotonic() + milliseconds.value / 1000
        while not (events := [*self._take_events()]):
            if time.monotonic() > until:
                return NO_DATA
            time.sleep(0.01)
        for number, (handle, event) in enumerate(events):
            found[number].processor_handle = handle
            found[number].event = event
        count.value = len(events)
        return SUCCESS

    def _take_events(self) -> Iterator[tuple[int, int]]:
        for handle in sorted(self._watched):
            path = f"{self._folder}/{self._machine.addresses[(handle >> 8) - 1]}/events"
            try:
                os.rename(path, f"{path}.told")
            except FileNotFoundError:
                continue
            with open(f"{path}.told", encoding="utf-8") as file:
                yield from ((handle, _EVENTS[line.strip()]) for line in file)

    def _is_stale(self) -> bool:
        """A handle from before a change of a mode."""
        return self._generation != self._read_generation()

    def _find(self, handle: Any) -> str:
        number: int = handle.value >> 8
        return self._machine.addresses[number - 1]

    @property
    def _folder(self) -> str:
        return os.path.join(os.path.dirname(self._root), "library")

    def _read_generation(self) -> str:
        with open(f"{self._root}/sys/{GENERATION}", encoding="utf-8") as file:
            return file.read()

    def _read(self, name: str) -> str:
        try:
            with open(f"{self._folder}/{name}", encoding="utf-8") as file:
                return file.read().strip()
        except FileNotFoundError:
            return ""

    def _lines(self, name: str) -> list[str]:
        return self._read(name).splitlines()


def _refuse(_library: NativeLibrary, *_arguments: Any) -> int:
    return NOT_SUPPORTED


def _give(count: Any, handles: Any, values: range) -> int:
    """How many there are, and they themselves where there is room for them."""
    count.value = len(values)
    if handles:
        for number, value in enumerate(values):
            handles[number] = value
    return SUCCESS
