"""What NVML costs is counted apart from what is ours, for all sessions of a process."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from pydra_nvidia.nvml.errors import Code, NvmlError
from pydra_nvidia.nvml.events import open_events
from pydra_nvidia.nvml.library import Nvml
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.simulation.simulation import Simulation, open_simulation


@pytest.fixture
def simulation(tmp_path: Path) -> Simulation:
    return open_simulation("t4", str(tmp_path / "state"))


def count_gpus(nvml: Nvml) -> int:
    return int(nvml.call("nvmlDeviceGetCount"))


async def test_loading_beginning_calling_and_ending_count(simulation: Simulation) -> None:
    session = NvmlSession(simulation.load)
    await session.run(count_gpus)
    assert session.meter.calls == 3
    assert await session.run_closed(lambda: session.meter.calls) == 4
    await session.run(count_gpus)
    session.close()
    assert session.meter.calls == 8
    assert session.meter.seconds > 0


def test_what_fails_counts_too(simulation: Simulation) -> None:
    def load() -> ModuleType:
        raise NvmlError(Code.LIBRARY_NOT_FOUND, "dlopen")

    absent, unloaded = NvmlSession(load), NvmlSession(simulation.load)
    simulation.inject.unload_driver(force=True)
    for session in (absent, unloaded):
        with pytest.raises(NvmlError):
            session.run_here(count_gpus)
    assert (absent.meter.calls, unloaded.meter.calls) == (1, 2)


def test_registering_for_events_counts_and_waiting_for_them_does_not(simulation: Simulation) -> None:
    session = NvmlSession(simulation.load)
    uuids = tuple(simulation.machine.read().boards)
    events = session.run_here(lambda nvml: open_events(nvml, uuids))
    before = session.meter.calls
    assert before == 2 + 1 + 3 * len(uuids)
    assert events.wait(1) is None
    assert session.meter.calls == before
    events.free()
    assert session.meter.calls == before + 1
    session.close()
