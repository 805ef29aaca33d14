"""NVML kills, hangs or drops its caller: one claim pays, in words, for a while, and nothing is left of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Scene
    from tests.integration.agent.process import Agent

    MakeScene = Callable[..., AbstractAsyncContextManager[Scene]]

DYNAMIC = {"dynamic_mig": True}
VICTIM, OTHER = "victim", "other"
DIED = "exited with status 3"
ALONE = {"PYDRA_NVIDIA_POLL_PERIOD": "3600", "PYDRA_NVIDIA_HEALTH": "false"}


async def _has_measured(agent: Agent) -> bool:
    _, metrics = await agent.get("/metrics")
    return "pydra_nvidia_memory_used_bytes{" in metrics


async def test_a_call_that_ends_the_process_in_a_prepare_costs_that_try(make_scene: MakeScene) -> None:
    """The agent calls the backend for these claims only: of two calls in flight at the end none would be blamed."""
    flags = ("--measure-period", "3600")
    async with make_scene(settings=DYNAMIC) as scene, scene.agent(*flags, environ=ALONE) as agent:
        await scene.until(lambda: _has_measured(agent))
        scene.fault({"op": "nvmlGpuInstanceCreateComputeInstance", "do": "drop-reply", "count": 1})
        await scene.start(VICTIM, "mig", profile="1g.10gb")
        await scene.wait_error(VICTIM, DIED)
        await scene.start(OTHER, "mig", profile="2g.20gb")
        await scene.wait_event("", "BackendDied", DIED)
        await scene.wait_running(VICTIM, OTHER)
        assert scene.errors(OTHER) == []
        assert sum(len(gpu.instances) for gpu in scene.gpus()) == 2
        await scene.end(VICTIM, OTHER)
        await scene.wait_clean()
        await agent.wait_ready()
