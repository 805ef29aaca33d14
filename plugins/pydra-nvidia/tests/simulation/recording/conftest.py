"""Simulated machines that are recorded, and the recordings, each in a place of its own."""

from __future__ import annotations

import datetime
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from msgspec.structs import replace

from pydra_nvidia.hardware_reader import HardwareReader
from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.nvml.library import use_library
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings, parse_settings
from pydra_nvidia.simulation.recording.record import Recording, record
from pydra_nvidia.simulation.simulation import Simulation, open_simulation

SALT = b"salt"
DAY = datetime.date(2026, 11, 21)


class Rig:
    """A simulated machine with the settings that go with it."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.inject = simulation.inject

    @property
    def settings(self) -> Settings:
        """With passthrough, so that all is read."""
        return replace(parse_settings({}, self.simulation.settings), vfio=True)

    async def read(self) -> Reading:
        """What the backend sees of it."""
        session = NvmlSession(self.simulation.load)
        try:
            return await HardwareReader(session, self.simulation.tree, settings=self.settings).read()
        finally:
            session.close()

    async def record(self, salt: bytes = SALT) -> Recording:
        """It, as a scenario."""
        simulation = self.simulation
        settings = parse_settings({}, simulation.settings)
        return await record(settings, simulation.tree, simulation.load, salt=salt, day=DAY)


Simulate = Callable[..., Rig]


@pytest.fixture
def simulate(tmp_path: Path) -> Iterator[Simulate]:
    """`simulate("hgx-h100")`, or with a scenario as a dictionary, or as the text of a recording."""
    before, made = pynvml.nvmlLib, iter(range(100))

    def make(scenario: str | dict[str, Any]) -> Rig:
        place = tmp_path / f"machine-{next(made)}"
        location = scenario
        if isinstance(scenario, dict) or "\n" in scenario:
            place.mkdir()
            file = place / "scenario.yaml"
            file.write_text(scenario if isinstance(scenario, str) else json.dumps(scenario))
            location = str(file)
        return Rig(open_simulation(str(location), str(place / "state")))

    yield make
    use_library(pynvml, before)


Read = Callable[[], Awaitable[Reading]]
