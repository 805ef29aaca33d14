"""What each coroutine of the TPU backend takes on a simulated host of eight chips, whose metadata server is silent.

In this process, with the threads that a backend's process has, and nothing of the agent: the time of plan and prepare
is what a claim takes beyond the agent's own.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable
from typing import Any

from benchmarks.report import Report
from benchmarks.stats import Timing
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
    memory = MEMORY if os.path.isdir(MEMORY) else None
    with tempfile.TemporaryDirectory(prefix="pb-", dir=memory) as state:
        asyncio.run(_measure(report, state, rounds))


async def _measure(report: Report, state: str, rounds: int) -> None:
    asyncio.get_running_loop().set_default_executor(CallThreads())
    discover: list[float] = []
    claims: list[float] = []
    metrics: list[float] = []
    async with open_backend(Settings(scenario=SCENARIO, state=state)) as backend:
        first = await _time(backend.discover())
        assert len((await backend.discover()).devices) == DEVICES
        for number in range(rounds):
            discover.append(await _time(backend.discover()))
            claims.append(await _time(_hold(backend, number)))
            metrics.append(await _time(backend.measure()))
    report.figure("first discover of 8 TPUs", first * 1000, "ms")
    for name, seconds, aim in (
        ("discover 8 TPUs, metadata server silent", discover, "50 ms"),
        ("prepare and unprepare a 2x2", claims, "2 ms"),
        ("measure, no workload", metrics, ""),
    ):
        timing = Timing(name=name, seconds=seconds)
        report.figure(name, timing.p50 * 1000, f"ms (p95 {timing.p95 * 1000:.2f})", aim)


async def _hold(backend: TpuBackend, number: int) -> None:
    device = AllocatedDevice(request="tpus", pool="node", device="2x2-4")
    claim = Claim(uid=f"uid-{number}", namespace="default", name="mine", devices=(device,))
    await backend.unprepare(claim, await backend.prepare(claim))


async def _time(call: Awaitable[Any]) -> float:
    begin = time.perf_counter()
    await call
    return time.perf_counter() - begin
