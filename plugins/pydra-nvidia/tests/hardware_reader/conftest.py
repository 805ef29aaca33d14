"""Simulated machines, and the hardware of them as the backend reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pydra import Sample
from pydra_nvidia.hardware_reader import HardwareReader
from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.nvml.hung_queries import SuspendedQueries
from pydra_nvidia.nvml.pynvml_library import use_library
from pydra_nvidia.nvml.samples import read_samples
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings
from pydra_nvidia.simulation.simulation import Simulation, open_simulation


class _Counted:
    """A library that tells of each call."""

    def __init__(self, library: Any, tell: Callable[[], None]) -> None:
        self._library = library
        self._tell = tell

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(self._library, name)

        def call(*arguments: Any) -> Any:
            self._tell()
            return function(*arguments)

        return call


class Node:
    """A simulated machine, and the hardware of it as the backend reads it."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.inject = simulation.inject
        self.calls = 0
        self.while_opening: Callable[[], None] = lambda: None
        self.session = NvmlSession(self._load)
        self.settings = Settings(**simulation.settings)
        self.hardware = HardwareReader(self.session, simulation.tree, settings=self.settings)

    def _load(self) -> ModuleType:
        """With the calls of its library counted."""
        self.while_opening()
        pynvml = self.simulation.load()
        use_library(pynvml, _Counted(pynvml.nvmlLib, self._count))
        return pynvml

    def _count(self) -> None:
        self.calls += 1

    async def samples(self, reading: Reading) -> tuple[Sample, ...]:
        return await self.session.run(
            lambda nvml: read_samples(nvml, reading, SuspendedQueries("/nowhere/telemetry.json"))
        )

    def bind(self, address: str, driver: str) -> None:
        """As an admin does it, through sysfs; the kernel takes no GPU from its driver while somebody uses it."""
        self.session.close()
        self.bind_unused(address, driver)

    def bind_unused(self, address: str, driver: str) -> None:
        """The same, of a GPU that nobody uses."""
        tree = self.simulation.tree
        function = f"bus/pci/devices/{address}"
        if tree.link(tree.sys(f"{function}/driver")):
            tree.write(tree.sys(f"{function}/driver/unbind"), address)
        if driver:
            tree.write(tree.sys(f"{function}/driver_override"), driver)
            tree.write(tree.sys("bus/pci/drivers_probe"), address)
            tree.write(tree.sys(f"{function}/driver_override"), "\n")


Open = Callable[[str], Node]


@pytest.fixture
def node(tmp_path: Path) -> Open:
    """Opens a bundled scenario by name, or one given as YAML."""

    def open_(scenario: str) -> Node:
        if ":" in scenario:
            (tmp_path / "scenario.yaml").write_text(scenario)
            scenario = str(tmp_path / "scenario.yaml")
        return Node(open_simulation(scenario, str(tmp_path / "state")))

    return open_
