"""Opens a simulated machine: its files below the state directory, and the driver in it that reacts to what is written.

Files that are there already are left alone: a mode that was set stays set, and what somebody removed stays removed.
"""

from __future__ import annotations

import errno
import os
import tempfile

from pydra import PydraError
from pydra_amd.host.amdgpu import COMPUTE
from pydra_amd.host.filesystem import Roots, Tree
from pydra_amd.host.kfd import PROCESSES
from pydra_amd.settings import Settings
from pydra_amd.simulation.faults import FALL, KEEP, STALE, take_fault
from pydra_amd.simulation.machine_types import MACHINE_TYPES, MachineType
from pydra_amd.simulation.tree import build_tree, read_modes, write_file, write_topology


class ScenarioError(PydraError):
    """There is no such scenario, or no place for its files."""

    reason = "InvalidScenario"


def open_machine(settings: Settings) -> Tree:
    """The tree of the machine of `settings.scenario`, made if it is not there yet. Raises ScenarioError."""
    machine = MACHINE_TYPES.get(settings.scenario)
    if machine is None:
        raise ScenarioError(f"there is no scenario {settings.scenario}; bundled are: {', '.join(MACHINE_TYPES)}")
    state = default_state() if settings.state == Settings().state else settings.state
    root = os.path.join(os.path.realpath(state), "tree")
    try:
        if not os.path.exists(root):
            build_tree(root, machine)
    except OSError as error:
        raise ScenarioError(
            f"cannot write the simulated machine to {root}: {error.strerror}; set PYDRA_AMD_STATE to a directory of "
            "your own"
        ) from error
    return Tree(Roots(sys=f"{root}/sys", dev=f"{root}/dev"), Driver(root, machine).react)


def default_state() -> str:
    """Where the machine's files are when nobody says where."""
    return os.path.join(tempfile.gettempdir(), f"pydra-amd-{os.getuid()}")


class Driver:
    """The driver amdgpu of a machine: what it does when it is told something."""

    def __init__(self, root: str, machine: MachineType) -> None:
        self._root = root
        self._machine = machine

    def react(self, path: str, text: str) -> None:
        """After a write to a file below /sys. Raises OSError as the kernel does; the file is then as it was."""
        folder, name = os.path.split(path)
        if name == COMPUTE:
            self._set_compute_mode(path, self._machine.addresses.index(os.path.basename(folder)), text.strip().lower())

    def _set_compute_mode(self, path: str, gpu: int, mode: str) -> None:
        modes = read_modes(self._root)
        fault = take_fault(self._root, self._machine.addresses[gpu])
        refusal = getattr(errno, fault, 0)
        if fault == FALL:
            with open(os.path.join(os.path.dirname(path), "config"), "wb") as file:
                file.write(b"\xff" * 64)
            refusal = errno.ENODEV
        elif self._is_used():
            refusal = errno.EBUSY
        elif mode not in self._machine.compute_modes:
            refusal = errno.EINVAL
        if refusal or fault == KEEP:
            write_file(path, modes[gpu].upper())
        if refusal:
            raise OSError(refusal, os.strerror(refusal))
        if fault in (KEEP, STALE):
            return
        write_topology(self._root, self._machine, [*modes[:gpu], mode, *modes[gpu + 1 :]])
        write_file(path, mode.upper())

    def _is_used(self) -> bool:
        """Whether a process that runs has the driver open."""
        folder = f"{self._root}/sys/{PROCESSES}"
        return os.path.isdir(folder) and any(os.path.exists(f"/proc/{pid}") for pid in os.listdir(folder))
