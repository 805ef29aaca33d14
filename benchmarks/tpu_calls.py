"""What each coroutine of the TPU backend takes on a simulated host of eight chips, whose metadata server is silent.

In this process, with the threads that a backend's process has, and nothing of the agent: the time of plan and prepare
is what a claim takes beyond the agent's own.
"""

from __future__ import annotations

import asyncio
import tempfile

from benchmarks.report import Report
from benchmarks.stats import time_call
from benchmarks.world import MEMORY
from pydra import AllocatedDevice, Claim
from pydra.backends.child.calls import CallThreads
from pydra_tpu.backend import TpuBackend
from pydra_tpu.composition import open_backend
from pydra_tpu.settings import Settings

SCENARIO = "v5e-8+metadata-silent"
DEVICES = 15


def measure_tpu_calls(report: Report, *, rounds: int) -> None:
    """Discovery, and a claim of a 2x2: medians and what 95 of 100 stay below."""
    with tempfile.TemporaryDirectory(prefix="pb-", dir=MEMORY) as state:
        asyncio.run(_measure(report, state, rounds))


async def _measure(report: Report, state: str, rounds: int) -> None:
    asyncio.get_running_loop().set_default_executor(CallThreads())
    discover: list[float] = []
    claims: list[float] = []
    metrics: list[float] = []
    async with open_backend(Settings(scenario=SCENARIO, state=state)) as backend:
        first = await time_call(backend.discover())
        assert len((await backend.discover()).devices) == DEVICES
        for number in range(rounds):
            discover.append(await time_call(backend.discover()))
            claims.append(await time_call(_hold(backend, number)))
            metrics.append(await time_call(backend.measure()))
    report.figure("first discover of 8 TPUs", first * 1000, "ms")
    report.median("discover 8 TPUs, metadata server silent", discover, "50 ms")
    report.median("prepare and unprepare a 2x2", claims, "2 ms")
    report.median("measure, no workload", metrics)


async def _hold(backend: TpuBackend, number: int) -> None:
    device = AllocatedDevice(request="tpus", pool="node", device="2x2-4")
    claim = Claim(uid=f"uid-{number}", namespace="default", name="mine", devices=(device,))
    await backend.unprepare(claim, await backend.prepare(claim))
