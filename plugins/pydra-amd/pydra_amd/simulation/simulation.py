"""Opens a simulated machine: its files below the state directory, and the kernel and driver that react to writes.

Existing files are not changed: a mode that was set stays set, and what somebody removed stays removed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pydra_amd.settings import Settings
from pydra_amd.simulation.amdgpu_driver import Driver
from pydra_amd.simulation.machine_types import MACHINE_TYPES
from pydra_amd.simulation.mode_and_driver_faults import take_fault
from pydra_amd.simulation.tree import write_files
from pydra_pci import Roots, Tree
from pydra_pci.simulation.kernel import PciKernel
from pydra_pci.simulation.machine_tree import default_state, find_machine, open_tree

DRIVER_IDS = {"amdgpu": "pci:v00001002d*sv*sd*bc12sc00i*"}
"""What the driver takes of itself, when a function is free."""


def open_simulation(settings: Settings) -> Tree:
    """The tree of the machine of `settings.scenario`, made if it is not there yet. Raises ScenarioError."""
    machine = find_machine(settings.scenario, MACHINE_TYPES)
    state = default_state("pydra-amd") if settings.state == Settings().state else settings.state
    root = open_tree(state, lambda draft: write_files(draft, machine), variable="PYDRA_AMD_STATE")
    driver = Driver(root, machine)
    kernel = PciKernel(f"{root}/sys", f"{root}/dev", DRIVER_IDS, driver)

    lock = threading.Lock()

    def react(path: str, text: str) -> None:
        with lock, _exclude_processes(root):  # the files are its memory, and claims are prepared side by side
            do(path, text)

    def do(path: str, text: str) -> None:
        driver.react(path, text)
        if (address := _find_bound(path, text)) and (code := getattr(errno, take_fault(root, address), 0)):
            raise OSError(code, os.strerror(code))
        kernel.wrote(path, text)

    with _exclude_processes(root):
        driver.finish()
    return Tree(Roots(sys=f"{root}/sys", dev=f"{root}/dev", proc=f"{root}/proc"), react)


@contextmanager
def _exclude_processes(root: str) -> Iterator[None]:
    """Two agents of a node overlap in an upgrade, and have one machine."""
    with open(f"{root}/lock", "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _find_bound(path: str, text: str) -> str:
    """The address of the function that is bound, taken away or reserved by this write; empty for another."""
    match path.split("/")[-4:]:
        case [*_, "devices", address, "driver_override"] | ["devices", address, "driver", "unbind"]:
            return address
        case [*_, "drivers", _, "bind" | "unbind"]:
            return text.strip()
    return ""
