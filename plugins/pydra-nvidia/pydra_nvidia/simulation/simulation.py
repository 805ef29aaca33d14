"""Opens a simulation: pynvml over the fake library, the tree of files, the settings that go with the scenario.

All other code uses the simulation through this module.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from pydra import PydraError
from pydra_nvidia.nvml.errors import Code, NvmlError
from pydra_nvidia.nvml.pynvml_library import use_library
from pydra_nvidia.simulation.fabric_manager import FabricLibrary
from pydra_nvidia.simulation.inject import Injector
from pydra_nvidia.simulation.library.library import Library
from pydra_nvidia.simulation.machine_store import Machine, noted_scenario
from pydra_nvidia.simulation.scenario_file import ScenarioFile
from pydra_nvidia.simulation.tree.sync import build_tree
from pydra_pci import Tree
from pydra_pci.simulation import machine_tree


class NoMachine(PydraError):
    """There is no simulated machine where one was looked for."""

    reason = "NoMachine"


class Simulation:
    """A machine that is not there. `settings` are defaults by field name, `inject` lets things happen to it."""

    def __init__(self, machine: Machine, tree: Tree, settings: Mapping[str, Any]) -> None:
        self.machine = machine
        self.tree = tree
        self.settings = settings
        self.inject = Injector(machine)

    def load(self) -> ModuleType:
        """The vendor's module, unmodified, with the fake library chosen; raises NvmlError when there is no library."""
        import pynvml  # noqa: PLC0415 - only a process that needs it

        if self.machine.read().state.driver == "absent":
            raise NvmlError(Code.LIBRARY_NOT_FOUND, "dlopen libnvidia-ml.so.1")
        use_library(pynvml, Library(self.machine))
        return pynvml

    def load_fabric(self) -> FabricLibrary:
        """Fabric Manager's library."""
        return FabricLibrary(self.machine)


def default_state() -> str:
    """Where the machine's memory is when nobody says where."""
    return machine_tree.default_state("pydra-nvidia")


def open_simulation(scenario: str, state: str) -> Simulation:
    """The machine of `scenario` (a path, or the name of a bundled one) with its memory in the directory `state`.

    Raises:
        ScenarioError: it cannot be read, or says something impossible.
    """
    state = os.path.abspath(state)
    machine = Machine(ScenarioFile(scenario), state)
    machine.note_scenario()
    sync = build_tree(os.path.join(state, "tree"), machine)
    own = {"state": os.path.join(state, "run"), **sync.settings()}
    return Simulation(machine, sync.tree, own | dict(machine.read().scenario.settings))


def reopen_simulation(state: str) -> Simulation:
    """The machine that has its memory in the directory `state` already.

    Raises:
        NoMachine: none has.
        ScenarioError: its scenario cannot be read any more.
    """
    scenario = noted_scenario(state)
    if not scenario:
        raise NoMachine(
            f"there is no simulated machine in {state}; one begins with the first use of a scenario (such as "
            "pydra dev --backend nvidia --scenario hgx-h100), in the directory that PYDRA_NVIDIA_STATE names"
        )
    return open_simulation(scenario, state)
