"""The library object: sessions, versions, handles, and how a call goes through faults and checks to its function."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from pydra_nvidia.nvml.errors import Code
from pydra_nvidia.simulation.call_faults import Fault, act
from pydra_nvidia.simulation.inject import XID, UnhealthyFiles, lose_gpu
from pydra_nvidia.simulation.library import devices, events, memory_and_processes, mig, nvlink, telemetry
from pydra_nvidia.simulation.library.arguments import Refusal, handle, number, put
from pydra_nvidia.simulation.library.function_registry import SYMBOLS, Call, Kind, Symbol, Target, function, texts
from pydra_nvidia.simulation.machine_state import View
from pydra_nvidia.simulation.machine_store import Machine

TOPICS = (devices, events, memory_and_processes, mig, nvlink, telemetry)
"""Their functions are in SYMBOLS once they are imported."""

NO_GPUS_FLAG = 1
_FITS: dict[Kind, tuple[str, ...]] = {
    "gpu": ("gpu",),
    "device": ("gpu", "mig"),
    "instance": ("instance",),
    "compute": ("compute",),
}


class Session(msgspec.Struct):
    """What nvmlInit began: the GPUs that were there then, in NVML's order."""

    uuids: tuple[str, ...]
    boot: int
    loaded: int
    client: str


class Library:
    """libnvidia-ml of the driver that is installed when it is made. Its functions are its attributes."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.session: Session | None = None
        self.version = machine.read().driver_version()
        self.sets: dict[int, events.EventSet] = {}
        self._unhealthy_files = UnhealthyFiles(machine)
        self._targets: dict[int, Target] = {}
        self._addresses: dict[Target, int] = {}
        self._next = 0x7F0000000000 + id(self) % 0x1000 * 0x10000
        self._mutex = threading.RLock()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        missing = self.machine.read().scenario.driver.missing
        if not name.startswith("nvml") or any(fnmatchcase(name, pattern) for pattern in missing):
            raise AttributeError(name)
        symbol = SYMBOLS.get(name) or Symbol("system", _not_supported)

        def function(*arguments: Any) -> int:
            return self._call(name, symbol, arguments)

        return function

    def address(self, target: Target) -> int:
        """The handle of the target: the same as long as the session lives, and never that of another."""
        with self._mutex:
            if (address := self._addresses.get(target)) is None:
                self._next += 0x10
                address = self._addresses[target] = self._next
                self._targets[address] = target
            return address

    def open(self, view: View, flags: int) -> None:
        """nvmlInitWithFlags; raises Refusal."""
        if view.state.driver != "loaded":
            raise Refusal(Code.DRIVER_NOT_LOADED)
        if view.driver_version() != self.version:
            raise Refusal(Code.LIB_RM_VERSION_MISMATCH)
        if not view.attached() and not flags & NO_GPUS_FLAG:
            raise Refusal(Code.NOT_FOUND)
        with self._mutex:
            if self.session is not None and self._is_live(self.session, view):
                return
            self._end()
            client = self.machine.join()
            counted = [uuid for uuid in view.attached() if view.scenario.driver.counts_lost or not view.is_lost(uuid)]
            self.session = Session(tuple(counted), view.state.boot, view.state.loaded, client)

    def close(self) -> None:
        """nvmlShutdown; raises Refusal."""
        with self._mutex:
            if self.session is None:
                raise Refusal(Code.UNINITIALIZED)
            self._end()

    def others(self) -> int:
        """How many other processes have NVML open."""
        return sum(1 for pid in self.machine.clients() if pid != os.getpid())

    def check(self, view: View) -> Session:
        """The session; raises Refusal when there is none, or when the driver went away under it."""
        if self.session is None or not self._is_live(self.session, view):
            raise Refusal(Code.UNINITIALIZED)
        return self.session

    def target(self, argument: Any, kind: Kind) -> Target:
        """What a handle stands for; raises Refusal for one of another session or kind."""
        target = self._targets.get(handle(argument))
        if target is None or target.kind not in _FITS[kind]:
            raise Refusal(Code.INVALID_ARGUMENT)
        return target

    def _is_live(self, session: Session, view: View) -> bool:
        state = view.state
        known = view.boards.keys() >= set(session.uuids)  # a scenario that was edited may have fewer
        return known and state.driver == "loaded" and (session.boot, session.loaded) == (state.boot, state.loaded)

    def _end(self) -> None:
        session, self.session = self.session, None
        if session is not None:
            self.machine.leave(session.client)
        self._targets.clear()
        self._addresses.clear()
        self.sets.clear()

    def _call(self, name: str, symbol: Symbol, arguments: tuple[Any, ...]) -> int:
        self._unhealthy_files.follow()
        view = self.machine.read()
        call = Call(self, view)
        last: Fault | None = None
        try:
            target = None
            if symbol.session:
                self.check(view)
            if symbol.kind != "system":
                target = self.target(arguments[0], symbol.kind)
            if view.faults.find(name):
                last = self._strike(name, symbol, view, target, arguments)
                call.view = view = self.machine.read()
            if target is not None:
                call.resolve(view, target)
                arguments = arguments[1:]
            if symbol.root and not view.scenario.driver.privileged:
                raise Refusal(Code.NO_PERMISSION)
            symbol.work(call, *arguments)
        except Refusal as refusal:
            return int(refusal.code)
        finally:
            if last is not None:
                act(last)
        return int(Code.SUCCESS)

    def _strike(
        self, name: str, symbol: Symbol, view: View, target: Target | None, arguments: tuple[Any, ...]
    ) -> Fault | None:
        """Let the faults happen; returns the one that strikes when the call has done its work."""
        uuid = target.uuid if target else symbol.finds(self, view, arguments) if symbol.finds else None
        last = None
        for fault in view.faults.draw(name, view.boards[uuid].minor if uuid else None):
            match fault.do:
                case "raise":
                    raise Refusal(Code[fault.code])
                case "drop-reply":
                    last = fault
                case "lost" | "xid":
                    self._hurt(fault, [uuid] if uuid else list(view.attached()))
                case _:
                    act(fault)
        return last

    def _hurt(self, fault: Fault, uuids: list[str]) -> None:
        with self.machine.change() as view:
            for uuid in uuids:
                if fault.do == "lost":
                    lose_gpu(self.machine, view, view.boards[uuid])
                else:
                    self.machine.record(view.state, uuid, XID, fault.xid)


def _not_supported(_call: Call, *_arguments: Any) -> None:
    raise Refusal(Code.NOT_SUPPORTED)


@function("system", "nvmlInitWithFlags", session=False)
def _init_with_flags(call: Call, flags: Any) -> None:
    call.library.open(call.view, number(flags))


@function("system", "nvmlShutdown", session=False)
def _shutdown(call: Call) -> None:
    call.library.close()


@function("system", "nvmlSystemGetCudaDriverVersion", session=False)
def _cuda_version(call: Call, reference: Any) -> None:
    put(reference, call.view.scenario.driver.cuda)


texts("system", {"nvmlSystemGetDriverVersion": lambda call: call.view.driver_version()})
