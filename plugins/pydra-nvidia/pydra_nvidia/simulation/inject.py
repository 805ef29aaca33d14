"""Things that happen to the machine from outside, at run time: what an operator, an application or fate does.

Any process may use it; the others see it at their next call, and those that wait for events get one.

    inject = Injector(machine)
    inject.xid(minor=3, code=79)
    inject.lose(minor=3)
    inject.reboot()
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from pydra import PydraError
from pydra_nvidia.simulation.machine_state import Counters, Gauges, GpuState, Process, View
from pydra_nvidia.simulation.machine_store import Machine
from pydra_nvidia.simulation.machine_transitions import (
    make_instance,
    reboot,
    release_gpu,
    reload_driver,
    reset_gpu,
)
from pydra_nvidia.simulation.scenario_gpus import Board

_DEVICE = re.compile(r"gpu-(\d+)(-mig-.+)?")
XID, MIG_CHANGE, UNAVAILABLE, RECOVERY_ACTION = 0x8, 0x100, 0x4000, 0x8000
"""NVML's event types."""


class InjectionError(PydraError):
    """What should happen cannot: no such GPU, profile, or place."""

    reason = "InvalidInjection"


class InUse(InjectionError):
    """The driver refuses: it takes nothing away from processes that have the GPUs open."""

    reason = "InUse"


def lose_gpu(machine: Machine, view: View, board: Board) -> None:
    """The GPU falls off the bus: XID 79, and GPU_IS_LOST from every call. Within `Machine.change` only."""
    view.state.gpus[board.uuid].lost = True
    machine.record(view.state, board.uuid, XID, 79)
    if board.model.events & UNAVAILABLE:
        machine.record(view.state, board.uuid, UNAVAILABLE)


class Injector:
    """All take the GPU's minor number. What they change is seen by every process at its next call.

    What the driver refuses while a process has its GPUs open, as one does that has begun with NVML, raises InUse. With
    `force` it happens under them all the same, as no tool can do it, but a hypervisor, a defect or a hand can.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def xid(self, minor: int, code: int, *, gi: int | None = None, ci: int | None = None) -> None:
        """An XID event, of the GPU or of one of its instances."""
        with self._gpu(minor) as (view, board, _):
            self._machine.record(view.state, board.uuid, XID, code, gi=gi, ci=ci)

    def event(self, minor: int, kind: int) -> None:
        """Any other event, by NVML's type."""
        with self._gpu(minor) as (view, board, _):
            self._machine.record(view.state, board.uuid, kind, 0)

    def lose(self, minor: int) -> None:
        """The GPU falls off the bus: XID 79, and GPU_IS_LOST from every call."""
        with self._gpu(minor) as (view, board, _):
            lose_gpu(self._machine, view, board)

    def answer(self, minor: int) -> None:
        """The lost GPU answers again, without a reset: it has all that it had."""
        with self._gpu(minor) as (_, _, gpu):
            gpu.lost = False

    def reset(self, minor: int, *, force: bool = False) -> None:
        """A reset: the GPU is no longer lost, a pending mode comes into effect, and what was on it is gone."""
        with self._gpu(minor) as (view, board, gpu):
            self._require_idle(view, [board.uuid], f"GPU {minor} cannot be reset", force=force)
            reset_gpu(gpu)

    def count(self, minor: int, **counters: int) -> None:
        """Set counters of `machine_state.Counters`, such as `ecc_uncorrected_volatile=1, remap_pending=True`."""
        self._set(minor, lambda gpu: gpu.counters, Counters, counters)

    def measure(self, minor: int, **gauges: int) -> None:
        """Set what is measured, `machine_state.Gauges`."""
        self._set(minor, lambda gpu: gpu.gauges, Gauges, gauges)

    def recovery_action(self, minor: int, action: int) -> None:
        """NVML's field 230: 1 GPU reset, 2 reboot, ...; where the GPU has it, an event too, and XID 154."""
        with self._gpu(minor) as (view, board, gpu):
            gpu.recovery = action
            if board.model.events & RECOVERY_ACTION:
                self._machine.record(view.state, board.uuid, RECOVERY_ACTION, action)
                self._machine.record(view.state, board.uuid, XID, 154)

    def links_down(self, minor: int, links: Collection[int]) -> None:
        """These NVLinks are inactive, and no others."""
        with self._gpu(minor) as (_, _, gpu):
            gpu.links_down = sorted(links)

    def start_process(self, minor: int, pid: int, **fields: Any) -> None:
        """A process uses the GPU from now on; `fields` are those of `machine_state.Process`."""
        with self._gpu(minor) as (_, _, gpu):
            gpu.processes.append(Process(pid=pid, **fields))

    def end_process(self, minor: int, pid: int) -> None:
        """And no longer."""
        with self._gpu(minor) as (_, _, gpu):
            gpu.processes[:] = [one for one in gpu.processes if one.pid != pid]

    def unplug(self, minor: int) -> None:
        """The GPU is taken out. Sessions that knew it find it lost."""
        with self._gpu(minor) as (_, board, gpu):
            release_gpu(board, gpu)
            gpu.plugged, gpu.driver = False, ""

    def plug(self, minor: int) -> None:
        """It is put in, and the driver takes it; NVML has it from the next nvmlInit on."""
        with self._gpu(minor) as (_, _, gpu):
            gpu.plugged, gpu.driver, gpu.lost = True, "nvidia", False

    def create_mig(self, minor: int, profile: str, start: int) -> str:
        """Somebody else makes an instance, and a compute instance that fills it; returns the UUID."""
        with self._gpu(minor) as (view, board, gpu):
            kind = board.model.mig.named(profile) if board.model.mig and gpu.mig else None
            if kind is None or start not in kind.starts:
                raise InjectionError(f"GPU {minor} has no {profile} at {start} now")
            if any(start < one.start + one.size and one.start < start + kind.size for one in gpu.instances):
                raise InjectionError(f"the place {start} of GPU {minor} is taken")
            serial = self._machine.new_number(view.state)
            made = make_instance(board, gpu.instances, kind, start, serial=serial, compute=(kind.slices,))
            gpu.instances.append(made)
            self._machine.record(view.state, board.uuid, MIG_CHANGE)
            return made.compute[0].uuid

    def destroy_mig(self, minor: int, start: int) -> None:
        """Somebody else destroys the instance at this memory slice, with what runs on it."""
        with self._gpu(minor) as (view, board, gpu):
            found = next((one for one in gpu.instances if one.start == start), None)
            if found is None:
                raise InjectionError(f"GPU {minor} has no instance at {start}")
            gpu.instances.remove(found)
            gpu.processes[:] = [one for one in gpu.processes if one.gi != found.id]
            self._machine.record(view.state, board.uuid, MIG_CHANGE)

    def set_mig_mode(self, minor: int, enabled: bool, *, force: bool = False) -> None:
        """Somebody else switches the mode, with all that it takes; instances are gone."""
        with self._gpu(minor) as (view, board, gpu):
            if board.model.mig is None:
                raise InjectionError(f"GPU {minor} cannot be partitioned")
            self._require_idle(view, [board.uuid], f"GPU {minor} cannot change its MIG mode", force=force)
            gpu.mig_pending = enabled
            reset_gpu(gpu)
            self._machine.record(view.state, board.uuid, MIG_CHANGE)

    def unload_driver(self, *, force: bool = False) -> None:
        """rmmod nvidia."""
        with self._machine.change() as view:
            self._unload(view, force=force)
            view.state.driver = "unloaded"

    def load_driver(self, version: str = "", *, force: bool = False) -> None:
        """modprobe nvidia; with a version, the driver was replaced by it, and libraries loaded before do not fit."""
        with self._machine.change() as view:
            if view.state.driver == "loaded":
                self._unload(view, force=force)
            else:
                reload_driver(view)
            view.state.driver = "loaded"
            view.state.version = version or view.state.version

    def restart_fabric_manager(self, *, cold: bool = False) -> None:
        """Fabric Manager ends and starts: in its restart mode, or `cold`, which resets all links."""
        with self._machine.change() as view:
            view.state.fabric.clear()
            view.state.fabric_starts += 1
            view.state.fabric_phase = "normal" if cold else "waiting"

    def reboot(self) -> None:
        """All that is volatile is gone: instances, processes, drivers bound, events, the MIG mode that is not kept."""
        with self._machine.change() as view:
            self._machine.forget_clients()
            self._machine.empty_run()
            reboot(view)

    def _unload(self, view: View, *, force: bool) -> None:
        self._require_idle(view, view.attached(), "module nvidia cannot be removed", force=force)
        self._machine.forget_clients()
        reload_driver(view)

    def _require_idle(self, view: View, uuids: Collection[str], what: str, *, force: bool) -> None:
        """A process with NVML open has all GPUs open, once it has asked about them."""
        pids = {process.pid for uuid in uuids for process in view.state.gpus[uuid].processes} | set(
            self._machine.clients()
        )
        if pids and not force:
            listed = ", ".join(map(str, sorted(pids)))
            raise InUse(f"{what}: it is in use, by the processes {listed}")

    @contextmanager
    def _gpu(self, minor: int) -> Iterator[tuple[View, Board, GpuState]]:
        with self._machine.change() as view:
            board = next((one for one in view.boards.values() if one.minor == minor), None)
            if board is None:
                known = ", ".join(map(str, sorted(one.minor for one in view.boards.values()))) or "none"
                raise InjectionError(f"no GPU has the minor number {minor}; there are {known}")
            yield view, board, view.state.gpus[board.uuid]

    def _set(self, minor: int, where: Callable[[GpuState], Any], kind: type, values: dict[str, int]) -> None:
        known = {field.name: field.type for field in msgspec.structs.fields(kind)}
        if unknown := sorted(set(values) - set(known)):
            raise InjectionError(f"there is no {unknown[0]}; there are {', '.join(sorted(known))}")
        try:
            values = {name: msgspec.convert(value, known[name], strict=False) for name, value in values.items()}
        except msgspec.ValidationError as error:
            raise InjectionError(str(error)) from error
        with self._gpu(minor) as (_, _, gpu):
            for name, value in values.items():
                setattr(where(gpu), name, value)


class UnhealthyFiles:
    """Files `unhealthy/DEVICE` in the machine's directory, by which the page of `pydra dev` breaks and repairs devices.

    The GPU of a device with a file has fallen off the bus; a reset repairs it when none of its devices has one.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._directory = os.path.join(machine.path, "unhealthy")
        self._names: Sequence[str] = ()
        os.makedirs(self._directory, exist_ok=True)

    def follow(self) -> None:
        """Look whether there are other files now."""
        names = os.listdir(self._directory)
        if names == self._names:
            return
        self._names = names
        minors = {int(found[1]) for found in map(_DEVICE.fullmatch, names) if found}
        with self._machine.change() as view:
            for board in view.boards.values():
                gpu = view.state.gpus[board.uuid]
                was, gpu.has_unhealthy_file = gpu.has_unhealthy_file, board.minor in minors
                if gpu.has_unhealthy_file and not was:
                    lose_gpu(self._machine, view, board)
                elif was and not gpu.has_unhealthy_file:
                    reset_gpu(gpu)
