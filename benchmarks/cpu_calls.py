"""What each coroutine of the CPU backend takes on a simulated machine of 256 CPUs with 100 claims and 200 containers.

In this process, without the agent: the time of plan and prepare is what a claim takes beyond the agent's own. Half of
the containers have a claim each; the others share what is left, so each claim that begins or ends changes them.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.report import Report
from benchmarks.stats import time_call
from benchmarks.world import MEMORY
from pydra import AllocatedDevice, Claim, HeldClaim
from pydra.backends.child.calls import CallThreads
from pydra_cpu.backend import CpuBackend
from pydra_cpu.composition import open_backend
from pydra_cpu.settings import GroupBy, Settings
from pydra_cpu.simulation.machine import MACHINE_TYPES
from pydra_nri import Container, PodSandbox
from pydra_nri.simulation.runtime import FakeRuntime

CPUS = 256
CLAIMS = 100
SHARED = 100
POD = PodSandbox(id="sandbox", name="pod", uid="uid", namespace="default")


def measure_cpu_calls(report: Report, *, rounds: int) -> None:
    """Discovery, claims, containers: medians and what 95 of 100 stay below."""
    with tempfile.TemporaryDirectory(prefix="pb-", dir=MEMORY) as root:
        MACHINE_TYPES["many-cores"].write(Path(root))
        asyncio.run(_measure(report, root, rounds))


async def _measure(report: Report, root: str, rounds: int) -> None:
    asyncio.get_running_loop().set_default_executor(CallThreads())
    settings = Settings(
        host_root=root,
        sys_root=f"{root}/sys",
        proc_root=f"{root}/proc",
        nri_socket=f"{root}/nri.sock",
        group_by=GroupBy.MACHINE,
    )
    held: dict[str, HeldClaim] = {}
    runtime = FakeRuntime()
    async with runtime.serve(settings.nri_socket), open_backend(settings, lambda: tuple(held.values())) as backend:
        await backend.restore(())
        await backend.runtime.wait_synchronized()
        await runtime.run_pod(POD)
        (device,) = (await backend.discover()).devices
        assert device.attributes["numCPUs"] == CPUS
        for number in range(SHARED):
            await runtime.create_container(_build_container(f"shared-{number}"))
        for number in range(CLAIMS):
            env = await _hold(backend, held, f"claim-{number}")
            await runtime.create_container(_build_container(f"claimed-{number}", *env))
        await _report(report, backend, runtime, held, rounds)


async def _report(
    report: Report, backend: CpuBackend, runtime: FakeRuntime, held: dict[str, HeldClaim], rounds: int
) -> None:
    timings: dict[str, list[float]] = {name: [] for name in ("discover", "claim", "create", "stop", "round")}
    changed: set[tuple[int, int]] = set()
    for _ in range(rounds):
        timings["discover"].append(await time_call(backend.discover()))
        begin = time.perf_counter()
        env = await _hold(backend, held, "one-more")
        timings["claim"].append(time.perf_counter() - begin)
        container = _build_container("one-more", *env)
        begin = time.perf_counter()
        created = await backend.handlers.create_container(POD, container)
        timings["create"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        grown = await backend.handlers.stop_container(POD, container)
        timings["stop"].append(time.perf_counter() - begin)
        changed.add((len(created.update), len(grown)))
        begin = time.perf_counter()
        answered = await runtime.create_container(container)
        timings["round"].append(time.perf_counter() - begin)
        await runtime.stop_container(answered)
        del held["one-more"]
    report.median(f"discover {CPUS} CPUs", timings["discover"])
    report.median(f"plan and prepare with {CLAIMS} claims held", timings["claim"], "2 ms")
    report.median(f"CreateContainer with {CLAIMS + SHARED} containers", timings["create"], "5 ms")
    report.median("the same with the runtime's part, over its socket", timings["round"])
    report.median("StopContainer, after which the pool grows", timings["stop"], "5 ms")
    (counts,) = changed
    for name, count in zip(("shrinks", "grows"), counts, strict=True):
        report.figure(f"updates when the pool of {SHARED} containers {name}", count, "", str(SHARED))


def _build_container(name: str, *env: str) -> Container:
    return Container(id=name, name=name, pod_sandbox_id=POD.id, env=("PATH=/usr/bin", *env))


async def _hold(backend: CpuBackend, held: dict[str, HeldClaim], uid: str) -> list[str]:
    """Plan and prepare a claim for two CPUs, and hold it; the environment of its containers."""
    device = AllocatedDevice(
        request="cpus", pool="node", device="cpudevmachine", share_id="s", consumed_capacity={"dra.cpu/cpu": "2"}
    )
    claim = Claim(uid=uid, namespace=POD.namespace, name=uid, devices=(device,))
    shares = await backend.plan(claim, tuple(held.values()))
    claim = msgspec.structs.replace(claim, plan=msgspec.to_builtins(shares))
    held[uid] = HeldClaim(claim=claim, completed=True)
    (prepared,) = await backend.prepare(claim)
    return [f"{key}={value}" for key, value in prepared.edits.env.items()]
