"""What each coroutine of the NVIDIA backend takes on a simulated HGX H100: NVML's own part apart from ours.

In this process, with the threads that a backend's process has, and nothing of the agent. NVML's part is pynvml and
below it the simulation, which answers from a file; a real driver has other times. What the simulation does when the
kernel's files are looked at is left out of ours as well.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

from msgspec.structs import replace

from benchmarks.report import Report
from benchmarks.stats import Timing
from benchmarks.world import MEMORY
from pydra import AllocatedDevice, Claim, HeldClaim, Plan, StepStage, describe_step
from pydra.backends.child.calls import CallThreads
from pydra_nvidia.backend import NvidiaBackend
from pydra_nvidia.composition import open_backend
from pydra_nvidia.host.file_search import SETTLED_SECONDS as SETTLED
from pydra_nvidia.machine_access import find_machine
from pydra_nvidia.nvml.pynvml_library import Nvml
from pydra_nvidia.simulation.tree.sync import TreeSync

SCENARIO = "hgx-h100"
DEVICES = 208
AIM = "5 ms"
SMALL = "gpu-0-mig-1g10gb-19-0"
BESIDE = "gpu-0-mig-1g10gb-19-1"
FULL = tuple(f"gpu-{minor}-mig-1g10gb-19-{place}" for minor in range(1, 8) for place in range(7))
EIGHT = tuple(f"gpu-{minor}" for minor in range(8))


def measure_nvidia_calls(report: Report, *, rounds: int) -> None:
    """Discovery, claims, metrics and the look for changes: medians and what 99 of 100 stay below."""
    with tempfile.TemporaryDirectory(prefix="pb-", dir=MEMORY) as state, _watch_simulation() as stopwatch:
        asyncio.run(_measure(report, state, stopwatch, rounds))


class Stopwatch:
    """Seconds so far: in NVML, and in the keeping of the simulated kernel's files."""

    def __init__(self) -> None:
        self.nvml = 0.0
        self.calls = 0
        self.files = 0.0

    def read(self) -> tuple[float, float, int]:
        """NVML, files; and how many calls of NVML."""
        return self.nvml, self.files, self.calls


@contextmanager
def _watch_simulation() -> Iterator[Stopwatch]:
    stopwatch, refresh, call = Stopwatch(), TreeSync.refresh, Nvml.call

    def timed_refresh(sync: TreeSync) -> None:
        begin = time.perf_counter()
        refresh(sync)
        stopwatch.files += time.perf_counter() - begin

    def timed_call(nvml: Nvml, *arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        try:
            return call(nvml, *arguments, **options)
        finally:
            stopwatch.nvml += time.perf_counter() - begin
            stopwatch.calls += 1

    setattr(TreeSync, "refresh", timed_refresh)  # noqa: B010 - a plain assignment is none to mypy
    setattr(Nvml, "call", timed_call)  # noqa: B010
    try:
        yield stopwatch
    finally:
        setattr(TreeSync, "refresh", refresh)  # noqa: B010
        setattr(Nvml, "call", call)  # noqa: B010


class _Measured:
    """The rounds of one kind of call."""

    def __init__(self, name: str, stopwatch: Stopwatch) -> None:
        self.name = name
        self._stopwatch = stopwatch
        self._parts: list[tuple[float, float, float]] = []
        self._calls: list[int] = []

    async def round(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """One more."""
        before, begin = self._stopwatch.read(), time.perf_counter()
        result = await call()
        total = time.perf_counter() - begin
        nvml, files, calls = (after - was for after, was in zip(self._stopwatch.read(), before, strict=True))
        self._parts.append((total, nvml, total - nvml - files))
        self._calls.append(int(calls))
        return result

    def tell(self, report: Report) -> None:
        """Print it."""
        columns = zip(("total", "NVML", "ours"), zip(*self._parts, strict=True), strict=True)
        timings = [Timing(name=name, seconds=seconds) for name, seconds in columns]
        report.parts(self.name, timings, f"{median(self._calls):g} calls of NVML", AIM)


async def _measure(report: Report, state: str, stopwatch: Stopwatch, rounds: int) -> None:
    asyncio.get_running_loop().set_default_executor(CallThreads())
    variables = {
        "PYDRA_NVIDIA_SCENARIO": SCENARIO,
        "PYDRA_NVIDIA_STATE": state,
        "PYDRA_NVIDIA_DYNAMIC_MIG": "true",
    }
    async with open_backend(find_machine(variables)) as backend:
        await backend.restore(())
        begin = time.perf_counter()
        inventory = await backend.discover()
        report.figure("first discover, pynvml and all facts included", (time.perf_counter() - begin) * 1000, "ms")
        assert len(inventory.devices) == DEVICES, len(inventory.devices)
        await _measure_claim(report, backend, stopwatch, "at once, 1g", [SMALL], 1)
        await asyncio.sleep(
            SETTLED + 0.2
        )  # the driver's folders were made just now: nothing of them is kept until then
        discover, look, samples = (_Measured(name, stopwatch) for name in ("discover", "look for changes", "measure"))
        for _ in range(rounds):
            await discover.round(backend.discover)
            await look.round(lambda: asyncio.to_thread(backend._hardware.signature))  # noqa: SLF001
            await samples.round(backend.measure)
        for one in (discover, look, samples):
            one.tell(report)
        await _measure_claim(report, backend, stopwatch, "1g", [SMALL], rounds)
        other = _claim(0, [BESIDE])
        held = await _hold(backend, [other])
        await _measure_claim(report, backend, stopwatch, "1g beside another", [SMALL], rounds, held)
        await _release(backend, held)
        held = await _hold(backend, [_claim(1000 + number, [device]) for number, device in enumerate(FULL)])
        await _measure_claim(report, backend, stopwatch, f"1g, {len(FULL)} held", [SMALL], rounds, held)
        await _release(backend, held)
        await _measure_claim(report, backend, stopwatch, "1 GPU", ["gpu-1"], rounds)
        await _measure_claim(report, backend, stopwatch, "8 GPUs", EIGHT, rounds)


async def _hold(backend: NvidiaBackend, claims: Sequence[Claim]) -> list[HeldClaim]:
    """Prepare the claims, as the agent does."""
    held: list[HeldClaim] = []
    for claim in claims:
        planned = _with_plan(claim, await backend.plan(claim, held))
        done = await _apply(backend, planned)
        held.append(HeldClaim(claim=done, prepared=tuple(await backend.prepare(done)), completed=True))
    return held


async def _release(backend: NvidiaBackend, held: Sequence[HeldClaim]) -> None:
    for one in held:
        await _undo(backend, one.claim)


def _with_plan(claim: Claim, plan: Plan) -> Claim:
    return replace(claim, plan=plan.data, steps=tuple(describe_step(step) for step in plan.steps))


async def _apply(backend: NvidiaBackend, claim: Claim) -> Claim:
    """The claim with all its steps done."""
    done = [
        replace(one, result=await backend.apply(one.step, None, claim), stage=StepStage.DONE) for one in claim.steps
    ]
    return replace(claim, steps=tuple(done))


async def _undo(backend: NvidiaBackend, claim: Claim) -> None:
    for one in reversed(claim.steps):
        await backend.undo(one.step, one.result, claim)


async def _measure_claim(
    report: Report,
    backend: NvidiaBackend,
    stopwatch: Stopwatch,
    name: str,
    devices: Sequence[str],
    rounds: int,
    held: Sequence[HeldClaim] = (),
) -> None:
    plan, apply, prepare, undo = (
        _Measured(f"{what}, {name}", stopwatch) for what in ("plan", "apply", "prepare", "undo")
    )
    for number in range(1, rounds + 1):
        claim = _claim(number, devices)
        claim = _with_plan(claim, await plan.round(lambda: backend.plan(claim, held)))  # noqa: B023 - called at once
        claim = await apply.round(lambda: _apply(backend, claim))  # noqa: B023
        await prepare.round(lambda: backend.prepare(claim))  # noqa: B023
        await undo.round(lambda: _undo(backend, claim))  # noqa: B023
    for one in (plan, apply, prepare, undo):
        one.tell(report)


def _claim(number: int, devices: Sequence[str]) -> Claim:
    return Claim(
        uid=f"uid-{number}",
        namespace="default",
        name=f"claim-{number}",
        devices=tuple(AllocatedDevice(request=f"r{n}", pool="node", device=device) for n, device in enumerate(devices)),
    )
