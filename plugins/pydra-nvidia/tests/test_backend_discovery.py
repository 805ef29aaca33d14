"""Discovery while the machine changes: what is published is of one moment, and each change after it is noticed."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from pydra import TerminalError
from pydra_nvidia.composition import open_backend
from pydra_nvidia.machine_access import find_machine
from pydra_nvidia.simulation.simulation import open_simulation


def wait_locked(lock: threading.Lock) -> None:
    deadline = time.monotonic() + 20
    while not lock.locked():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(0.05)  # the reading goes on to where it waits for NVML


async def test_a_gpu_that_leaves_while_the_machine_is_read_is_not_called_lost(tmp_path: Path) -> None:
    variables = {"PYDRA_NVIDIA_SCENARIO": "hgx-h100", "PYDRA_NVIDIA_STATE": str(tmp_path)}
    simulation = open_simulation("hgx-h100", str(tmp_path))
    async with open_backend(find_machine({**variables, "PYDRA_NVIDIA_POLL_PERIOD": "0.02"})) as backend:
        before = await backend.discover()
        reached, go_on = threading.Event(), threading.Event()

        def hold(_nvml: object) -> None:
            reached.set()
            assert go_on.wait(20)

        held = asyncio.create_task(backend._session.run(hold))
        await asyncio.to_thread(reached.wait, 20)
        discovering = asyncio.create_task(backend.discover())
        await asyncio.to_thread(wait_locked, backend._hardware._lock)
        simulation.inject.unplug(3)
        go_on.set()
        await held
        found = await discovering
        assert {one.name for one in before.devices} - {one.name for one in found.devices} == {
            one.name for one in before.devices if one.name.startswith("gpu-3")
        }
        assert not [one.name for one in found.devices if one.taints]
        simulation.inject.plug(3)
        await asyncio.wait_for(backend.wait_changed(), 20)
        assert await backend.discover() == before


@pytest.mark.parametrize(
    "raised", [TerminalError("of the block"), asyncio.CancelledError()], ids=["error", "cancelled"]
)
async def test_what_is_raised_while_a_backend_is_open_leaves_it_as_it_is(tmp_path: Path, raised: BaseException) -> None:
    variables = {"PYDRA_NVIDIA_SCENARIO": "hgx-h100", "PYDRA_NVIDIA_STATE": str(tmp_path)}
    with pytest.raises(type(raised)) as caught:
        async with open_backend(find_machine(variables)):
            raise raised
    assert caught.value is raised
