"""NVML kills, hangs or drops its caller: one claim pays, in words, for a while, and nothing is left of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Scene
    from tests.integration.agent.process import Agent

    MakeScene = Callable[..., AbstractAsyncContextManager[Scene]]

DYNAMIC = {"dynamic_mig": True}
VICTIM, OTHER = "victim", "other"
QUICK = ("--prepare-deadline", "2", "--unprepare-deadline", "2", "--discover-deadline", "2")
ALONE = {"PYDRA_NVIDIA_POLL_PERIOD": "3600", "PYDRA_NVIDIA_HEALTH": "false"}


@asynccontextmanager
async def serve_apart(make_scene: MakeScene, *flags: str) -> AsyncIterator[tuple[Scene, Agent]]:
    """Serve by an agent that calls the backend for the test's claims only, from here to the first end of its process.

    Of two calls that are in flight at the end of a process none is blamed, and both are called again. No two tests
    share it: the process starts again with a `discover`, and after several ends in a row only after a pause.
    """
    flags = (*flags, "--measure-period", "3600")
    async with make_scene(settings=DYNAMIC) as scene, scene.agent(*flags, environ=ALONE) as agent:
        await scene.until(lambda: _has_measured(agent))
        yield scene, agent


async def _has_measured(agent: Agent) -> bool:
    _, metrics = await agent.get("/metrics")
    return "pydra_nvidia_memory_used_bytes{" in metrics


PREPARE = (
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
)
UNPREPARE = ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy", "nvmlDeviceSetMigMode")
TOLD = {
    "segfault": ("BackendDied", r"died of SIGSEGV at \w+"),
    "exit": ("BackendDied", r"exited with status 3"),
    "drop-reply": ("BackendDied", r"exited with status 3"),
    "hang": ("BackendTimeout", r"timed out after 2 s"),
    "gil-hang": ("BackendTimeout", r"timed out after"),
}


@pytest.mark.parametrize(
    ("symbol", "effect"),
    [
        (PREPARE[0], "segfault"),
        (PREPARE[1], "drop-reply"),
        (PREPARE[2], "drop-reply"),
        (PREPARE[2], "gil-hang"),
    ],
)
async def test_a_call_that_ends_the_process_in_a_prepare_costs_that_try(
    make_scene: MakeScene, symbol: str, effect: str
) -> None:
    reason, told = TOLD[effect]
    # A process that died is replaced within the call, which has as long as that takes.
    died = reason == "BackendDied"
    async with serve_apart(make_scene, *(() if died else QUICK)) as (scene, agent):
        scene.fault({"op": symbol, "do": effect, "count": 1})
        await scene.start(VICTIM, "mig", profile="1g.10gb")
        # Not before that: of two calls in flight at the end none would be blamed.
        await scene.wait_error(VICTIM, told)
        await scene.start(OTHER, "mig", profile="2g.20gb")
        await scene.wait_event(reason, told)
        await scene.wait_running(VICTIM, OTHER)
        assert not died or scene.errors(OTHER) == [], "with two seconds for a call, a busy machine may need another"
        assert sum(len(gpu.instances) for gpu in scene.gpus()) == 2
        await scene.remove(VICTIM, OTHER)
        await scene.wait_clean()
        await agent.wait_ready()


@pytest.mark.parametrize(
    ("symbol", "effect"),
    [
        (UNPREPARE[0], "drop-reply"),
        (UNPREPARE[1], "hang"),
        (UNPREPARE[2], "exit"),
    ],
)
async def test_a_call_that_ends_the_process_in_an_unprepare_is_made_good_by_the_next(
    make_scene: MakeScene, symbol: str, effect: str
) -> None:
    async with serve_apart(make_scene, *QUICK) as (scene, _):
        await scene.start(VICTIM, "mig", profile="1g.10gb")
        await scene.wait_running(VICTIM)
        scene.fault({"op": symbol, "do": effect, "count": 1})
        await scene.remove(VICTIM)
        reason, told = TOLD[effect]
        assert any(told.split("\\")[0] in error for error in scene.errors(VICTIM))
        await scene.wait_event(reason, told)
        await scene.wait_clean()


async def test_a_claim_that_kills_the_backend_each_time_is_condemned_and_costs_nobody_else(
    make_scene: MakeScene,
) -> None:
    fatal = {"op": "nvmlGpuInstanceCreateComputeInstance", "do": "segfault", "device": 0}
    async with serve_apart(make_scene) as (scene, agent):
        scene.fault(fatal)
        await scene.start(VICTIM, "mig", profile="1g.10gb")
        await scene.wait_event("ClaimQuarantined", "ended the process of backend nvidia 2 times")
        scene.fault()
        await scene.start(OTHER, "gpu")
        await scene.wait_running(OTHER)
        assert scene.errors(OTHER) == []
        (device,) = await scene.allocated(VICTIM)
        await scene.wait_taints({device: {"gpu.nvidia.com/quarantined": ("CrashesBackend", "NoSchedule")}})
        await scene.remove(VICTIM, OTHER)
        await scene.wait_clean()
        await scene.wait_taints({})
        await agent.wait_ready()


async def test_a_query_for_metrics_that_never_returns_costs_the_process_once_and_is_suspended_for_its_gpu(
    make_scene: MakeScene,
) -> None:
    async with make_scene() as scene, scene.agent("--measure-period", "0.2") as agent:
        await scene.until(lambda: _has_measured(agent))
        scene.fault({"op": "nvmlDeviceGetTemperature", "do": "hang", "device": 0})
        await agent.wait_metric(r'^pydra_backend_restarts_total\{backend="nvidia"\} 1.0$')
        suspended = r'^pydra_nvidia_suspended_query\{.*device="gpu-0".*function="nvmlDeviceGetTemperature".*\} 1.0$'
        await agent.wait_metric(suspended)
        _, metrics = await agent.get("/metrics")
        lines = metrics.splitlines()
        told = {
            name: [line for line in lines if f"pydra_nvidia_{name}{{" in line]
            for name in ("temperature_celsius", "power_watts")
        }
        assert ["gpu-1" in line for line in told["temperature_celsius"]] == [True]
        assert len(told["power_watts"]) == 2
        assert "nvmlDeviceGetTemperature of GPU-" in agent.messages()
        await scene.start(OTHER, "gpu")
        await scene.wait_running(OTHER)
        assert scene.errors(OTHER) == []
        await scene.remove(OTHER)
        await scene.wait_clean()
        await agent.wait_metric(r'^pydra_backend_restarts_total\{backend="nvidia"\} 1.0$')
        assert await scene.command("maintenance") == 0
        scene.fault()
        assert await scene.command("resume") == 0
        await agent.wait_metric(r'^pydra_nvidia_temperature_celsius\{.*device="gpu-0"')


@pytest.mark.parametrize(
    ("symbol", "effect"),
    [
        ("nvmlDeviceGetMigMode", "hang"),
        ("nvmlEventSetWait_v2", "segfault"),
    ],
)
async def test_a_call_that_ends_the_process_in_a_discover_delays_what_is_published(
    make_scene: MakeScene, symbol: str, effect: str
) -> None:
    async with make_scene() as scene:
        scene.fault({"op": symbol, "do": effect, "count": 1})
        async with scene.agent("--discover-deadline", "2") as agent:
            await scene.wait_devices({"gpu-0", "gpu-1"})
            await scene.start(OTHER, "gpu")
            await scene.wait_running(OTHER)
            assert scene.errors(OTHER) == []
            await agent.wait_metric(r'^pydra_backend_restarts_total\{backend="nvidia"\} 1.0$')
            await scene.remove(OTHER)
            await scene.wait_clean()
