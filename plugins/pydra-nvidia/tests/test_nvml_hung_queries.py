"""A query for metrics that never returned is not asked again, by no process, until the GPUs had a maintenance."""

from __future__ import annotations

import time
from pathlib import Path

from pydra.backends.contract import call_deadline
from pydra_nvidia.backend import NvidiaBackend
from pydra_nvidia.composition import open_backend
from pydra_nvidia.machine_access import find_machine
from pydra_nvidia.nvml.hung_queries import FILE, Query, SuspendedQueries
from pydra_nvidia.simulation.simulation import open_simulation

TEMPERATURE = "nvmlDeviceGetTemperature"


async def test_a_query_that_hangs_is_not_asked_of_its_gpu_by_the_next_process_until_it_is_resumed(
    tmp_path: Path,
) -> None:
    machine = find_machine({"PYDRA_NVIDIA_SCENARIO": "hgx-h100", "PYDRA_NVIDIA_STATE": str(tmp_path)})
    said: list[str] = []
    hanging = SuspendedQueries(f"{machine.settings.state}/{FILE}", said.append)
    boards = open_simulation("hgx-h100", str(tmp_path)).machine.read().boards.values()
    hanging.note(Query(next(one.uuid for one in boards if one.minor == 0), TEMPERATURE))
    token = call_deadline.set(time.monotonic() + 0.1)
    await hanging.watch()
    call_deadline.reset(token)
    assert f"{TEMPERATURE} of GPU-" in said[0]
    async with open_backend(machine) as backend:
        await backend.discover()
        assert await count(backend) == (7, 8, ["gpu-0"])
        next_process = SuspendedQueries(f"{machine.settings.state}/{FILE}", said.append)
        assert said[-1].endswith("did not return earlier, and is not called")
        await next_process.resume()
    async with open_backend(machine) as backend:
        await backend.discover()
        assert await count(backend) == (8, 8, [])


async def count(backend: NvidiaBackend) -> tuple[int, int, list[str]]:
    """GPUs with a temperature, those with a power, and those of which a query is suspended."""
    samples = await backend.measure()
    found = [[one.device for one in samples if one.name == name] for name in ("temperature_celsius", "power_watts")]
    return len(found[0]), len(found[1]), [one.device for one in samples if one.name == "suspended_query"]
