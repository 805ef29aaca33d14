"""The driver amdgpu of a simulated machine, which reacts to what is written to its files."""

from __future__ import annotations

import errno
import os
from itertools import product

from pydra_amd.host.amdgpu import BOUND, COMPUTE, MEMORY
from pydra_amd.host.driver_reload import MODULE, DriverModule, DriverReloadFailed
from pydra_amd.host.kfd import PROCESSES
from pydra_amd.models import AMDGPU
from pydra_amd.simulation.machine_types import MACHINE_TYPES, MachineType
from pydra_amd.simulation.mode_and_driver_faults import FALL, KEEP, MODULE_FAULTS, SLOW, STALE, take_fault
from pydra_amd.simulation.tree import read_memory, read_modes, read_text, write_file, write_memory, write_topology
from pydra_pci import Tree
from pydra_pci.simulation.kernel import Listener


class Driver(Listener):
    """The driver amdgpu of a machine: how it reacts to writes."""

    def __init__(self, root: str, machine: MachineType) -> None:
        self._root = root
        self._machine = machine

    def react(self, path: str, text: str) -> None:
        """After a write to a file below /sys. Raises OSError as the kernel does; the file is then as it was."""
        folder, name = os.path.split(path)
        if name in (COMPUTE, MEMORY):
            gpu = self._machine.addresses.index(os.path.basename(folder))
            change = self._set_compute_partition if name == COMPUTE else self._request_memory_mode
            change(path, gpu, text.strip().lower())

    def finish(self) -> None:
        """End what a process had begun that was killed, as a kernel does."""
        memory = read_memory(self._root)[0] if self._machine.mode else ""
        for gpu, address in enumerate(self._machine.addresses if memory else ()):
            folder, known = f"{self._root}/sys/bus/pci/devices/{address}", read_modes(self._root)[gpu]
            if read_text(f"{folder}/{MEMORY}").lower() != memory:
                write_file(f"{folder}/{MEMORY}", memory.upper())
            if (mode := read_text(f"{folder}/{COMPUTE}").lower()) != known:
                self._give_mode(gpu, mode if mode in self._machine.list_compute_modes(memory) else known)

    def moved(self, address: str, driver: str) -> None:
        """A GPU that the driver gets has the mode in which it starts."""
        if driver == AMDGPU and self._machine.mode:
            memory, _ = read_memory(self._root)
            self._give_mode(self._machine.addresses.index(address), self._machine.list_compute_modes(memory)[0])

    def is_used(self) -> bool:
        """Whether a process that runs has the driver open."""
        folder = f"{self._root}/sys/{PROCESSES}"
        return os.path.isdir(folder) and any(os.path.exists(f"/proc/{pid}") for pid in os.listdir(folder))

    def unload(self) -> None:
        """What the driver shows is gone. Raises OSError."""
        if self.is_used() or read_text(f"{self._root}/sys/{MODULE}/refcnt") != "0":
            raise OSError(errno.EBUSY, "Module amdgpu is in use.")
        os.makedirs(f"{self._root}/unloaded", exist_ok=True)
        for name, path in self._shown().items():
            os.rename(path, f"{self._root}/unloaded/{name}")

    def begin_loading(self) -> None:
        """The kernel has the module, and no GPU yet."""
        place = self._shown()["module"]
        os.rename(f"{self._root}/unloaded/module", place)
        write_file(f"{place}/initstate", "coming")

    def load(self, *, keeps: bool) -> None:
        """Show it again, with the memory mode that was requested, unless the GPUs keep theirs."""
        shown = self._shown()
        for name in [one for one in shown if os.path.exists(f"{self._root}/unloaded/{one}")]:
            if name == "bound" and self._machine.mode:
                self._take_memory_mode(keeps=keeps)
            os.rename(f"{self._root}/unloaded/{name}", shown[name])
        write_file(f"{shown['module']}/initstate", "live")

    def _shown(self) -> dict[str, str]:
        """What comes with the driver, in the order of coming: it counts as loaded when all of it is there."""
        return {
            "dev": f"{self._root}/dev",
            "kfd": f"{self._root}/sys/class/kfd",
            "bound": f"{self._root}/sys/{BOUND}",
            "module": f"{self._root}/sys/{MODULE}",
        }

    def _take_memory_mode(self, *, keeps: bool) -> None:
        present, requested = read_memory(self._root)
        if keeps or present == requested:
            write_memory(self._root, present, present)
            return
        compute, *others = self._machine.list_compute_modes(requested)
        files = {
            COMPUTE: compute,
            MEMORY: requested,
            "available_compute_partition": ", ".join([compute, *others]),
        }
        for address, (name, text) in product(self._machine.addresses, files.items()):
            write_file(f"{self._root}/sys/bus/pci/devices/{address}/{name}", text.upper())
        write_topology(self._root, self._machine, [compute] * len(self._machine.buses))
        write_memory(self._root, requested, requested)

    def _request_memory_mode(self, path: str, gpu: int, mode: str) -> None:
        present, _ = read_memory(self._root)
        fault = take_fault(self._root, self._machine.addresses[gpu])
        refusal = getattr(errno, fault, 0 if mode in self._machine.memory_modes else errno.EINVAL)
        write_file(path, present.upper())
        if refusal:
            raise OSError(refusal, os.strerror(refusal))
        if mode != present:  # to ask for the present mode takes no request back
            write_memory(self._root, present, mode)

    def _set_compute_partition(self, path: str, gpu: int, mode: str) -> None:
        modes = read_modes(self._root)
        fault = take_fault(self._root, self._machine.addresses[gpu])
        refusal = getattr(errno, fault, 0)
        if fault == FALL:
            with open(os.path.join(os.path.dirname(path), "config"), "wb") as file:
                file.write(b"\xff" * 64)
            refusal = errno.ENODEV
        elif self.is_used():
            refusal = errno.EBUSY
        elif mode not in self._machine.list_compute_modes(read_memory(self._root)[0]):
            refusal = errno.EINVAL
        if refusal or fault == KEEP:
            write_file(path, modes[gpu].upper())
        if refusal:
            raise OSError(refusal, os.strerror(refusal))
        if fault in (KEEP, STALE):
            return
        self._give_mode(gpu, mode)

    def _give_mode(self, gpu: int, mode: str) -> None:
        modes = read_modes(self._root)
        write_topology(self._root, self._machine, [*modes[:gpu], mode, *modes[gpu + 1 :]])
        write_file(f"{self._root}/sys/bus/pci/devices/{self._machine.addresses[gpu]}/{COMPUTE}", mode.upper())


class SimulatedModule(DriverModule):
    """The module amdgpu of a simulated machine."""

    def __init__(self, tree: Tree, scenario: str) -> None:
        super().__init__(tree)
        self._root = os.path.dirname(tree.roots.sys)
        self._driver = Driver(self._root, MACHINE_TYPES[scenario])

    async def unload(self) -> None:
        """As modprobe -r."""
        self._meet_fault("modprobe -r amdgpu")
        try:
            self._driver.unload()
        except OSError as error:
            raise DriverReloadFailed(f"modprobe -r amdgpu failed with 1: modprobe: FATAL: {error.strerror}") from error

    async def load(self) -> None:
        """As modprobe."""
        fault = self._meet_fault("modprobe amdgpu")
        if fault == SLOW:
            self._driver.begin_loading()
            raise DriverReloadFailed("modprobe amdgpu did not end within 177 s")
        self._driver.load(keeps=fault == KEEP)

    def _meet_fault(self, command: str) -> str:
        fault = take_fault(self._root, MODULE_FAULTS)
        if code := getattr(errno, fault, 0):
            text = "FATAL: Module amdgpu is in use." if code == errno.EBUSY else f"ERROR: {os.strerror(code)}"
            raise DriverReloadFailed(f"{command} failed with 1: modprobe: {text}")
        return fault
