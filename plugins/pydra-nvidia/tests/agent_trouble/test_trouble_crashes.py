"""NVML kills, hangs or drops its caller: one claim pays, in words, for a while, and nothing is left of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Scene
    from tests.integration.agent.process import Agent

    MakeScene = Callable[..., AbstractAsyncContextManager[Scene]]

DYNAMIC = {"dynamic_mig": True}
VICTIM, OTHER = "victim", "other"
DIED = "exited with status 3"
ALONE = {"PYDRA_NVIDIA_POLL_PERIOD": "3600", "PYDRA_NVIDIA_HEALTH": "false"}


@asynccontextmanager
async def serve_apart(make_scene: MakeScene) -> AsyncIterator[tuple[Scene, Agent]]:
    """Serve by an agent that calls the backend for the test's claims only, from here to the first end of its process.

    Of two calls that are in flight at the end of a process none is blamed, and both are called again. No two tests
    share it: the process starts again with a `discover`, and after several ends in a row only after a pause.
    """
    flags = ("--measure-period", "3600")
    async with make_scene(settings=DYNAMIC) as scene, scene.agent(*flags, environ=ALONE) as agent:
        await scene.until(lambda: _has_measured(agent))
        yield scene, agent


async def _has_measured(agent: Agent) -> bool:
    _, metrics = await agent.get("/metrics")
    return "pydra_nvidia_memory_used_bytes{" in metrics


async def test_a_call_that_ends_the_process_in_a_prepare_costs_that_try(make_scene: MakeScene) -> None:
    async with serve_apart(make_scene) as (scene, agent):
        scene.fault({"op": "nvmlGpuInstanceCreateComputeInstance", "do": "drop-reply", "count": 1})
        await scene.start(VICTIM, "mig", profile="1g.10gb")
        # Not before that: of two calls in flight at the end none would be blamed.
        await scene.wait_error(VICTIM, DIED)
        await scene.start(OTHER, "mig", profile="2g.20gb")
        await scene.wait_event("", "BackendDied", DIED)
        await scene.wait_running(VICTIM, OTHER)
        assert scene.errors(OTHER) == []
        assert sum(len(gpu.instances) for gpu in scene.gpus()) == 2
        await scene.end(VICTIM, OTHER)
        await scene.wait_clean()
        await agent.wait_ready()


async def test_a_call_that_ends_the_process_in_an_unprepare_is_made_good_by_the_next(make_scene: MakeScene) -> None:
    async with serve_apart(make_scene) as (scene, _):
        await scene.start(VICTIM, "mig", profile="1g.10gb")
        await scene.wait_running(VICTIM)
        scene.fault({"op": "nvmlComputeInstanceDestroy", "do": "drop-reply", "count": 1})
        await scene.end(VICTIM)
        assert any(DIED in error for error in scene.errors(VICTIM))
        await scene.wait_event("", "BackendDied", DIED)
        await scene.wait_clean()


async def test_a_call_that_ends_the_process_in_a_discover_delays_what_is_published(make_scene: MakeScene) -> None:
    async with make_scene() as scene:
        scene.fault({"op": "nvmlEventSetWait_v2", "do": "segfault", "count": 1})
        async with scene.agent() as agent:
            await scene.wait_devices({"gpu-0", "gpu-1"})
            await scene.start(OTHER, "gpu")
            await scene.wait_running(OTHER)
            assert scene.errors(OTHER) == []
            await agent.wait_metric(r'^pydra_backend_restarts_total\{backend="nvidia"\} 1.0$')
            await scene.end(OTHER)
            await scene.wait_clean()
