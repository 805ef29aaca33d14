"""Simulated machines for one test, with the vendor's module over them."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml
import pytest

from pydra_nvidia.nvml.pynvml_library import use_library
from pydra_nvidia.simulation.simulation import Simulation, open_simulation


class Rig:
    """A simulation that is open, and pynvml over it. `state` is its directory, `location` its scenario."""

    def __init__(self, simulation: Simulation, location: str, state: Path) -> None:
        self.simulation = simulation
        self.inject = simulation.inject
        self.machine = simulation.machine
        self.location = location
        self.state = state

    def init(self, flags: int = 0) -> Any:
        """pynvml, loaded again and initialised."""
        nvml: Any = self.simulation.load()
        nvml.nvmlInitWithFlags(flags)
        return nvml

    def opened(self, flags: int = 0) -> tuple[Any, Any]:
        """The same, and the handle of the GPU with index 0."""
        nvml = self.init(flags)
        return nvml, nvml.nvmlDeviceGetHandleByIndex(0)

    def code(self, call: Callable[..., object], *arguments: object) -> int:
        """The NVML error that the call ends in; 0 for none."""
        try:
            call(*arguments)
        except pynvml.NVMLError as error:
            return int(error.value)
        return 0

    def elsewhere(self, body: str) -> subprocess.CompletedProcess[str]:
        """Run `body` in a process of its own: `nvml` is initialised, `h` the GPU with index 0."""
        code = (
            "import sys, ctypes\n"
            "from pydra_nvidia.simulation.simulation import open_simulation\n"
            "simulation = open_simulation(sys.argv[1], sys.argv[2])\n"
            "inject = simulation.inject\n"
            "nvml = simulation.load()\n"
            "nvml.nvmlInitWithFlags(1)\n"
            "h = nvml.nvmlDeviceGetHandleByIndex(0)\n"
        )
        return subprocess.run(
            [sys.executable, "-c", code + body, self.location, str(self.state)],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )


@pytest.fixture
def simulate(tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """`simulate("hgx-h100")`, or with a scenario as a dictionary: of GPUs alone, if it does not say what else."""
    before = pynvml.nvmlLib

    def make(scenario: str | dict[str, Any]) -> Rig:
        location = scenario if isinstance(scenario, str) else str(tmp_path / "scenario.json")
        if not isinstance(scenario, str):
            Path(location).write_text(json.dumps({"host": {"onlyGpus": True}, **scenario}))
        state = tmp_path / "state"
        return Rig(open_simulation(location, str(state)), location, state)

    yield make
    with suppress(pynvml.NVMLError):
        while pynvml.nvmlLib is not before:  # the sessions that the test left open
            pynvml.nvmlShutdown()
    use_library(pynvml, before)


@pytest.fixture
def create() -> Callable[..., Any]:
    """`create(nvml, gpu, profile, start, size)`: a GPU instance at a place."""

    def make(nvml: Any, gpu: Any, profile: int, start: int, size: int) -> Any:
        place = nvml.c_nvmlGpuInstancePlacement_t(start, size)
        return nvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile, ctypes.byref(place))

    return make
