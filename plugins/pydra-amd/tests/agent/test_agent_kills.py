"""kill -9 at each step of a change of mode: the claim goes on with the next process, and nothing is left of it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from amd_node import Scene, run_scene
from pydra.kube.api_resources import PODS
from pydra.settings import KUBELET_CALL_DEADLINE

if TYPE_CHECKING:
    from tests.integration.agent.process import Agent

MORTAL = Path(__file__).with_name("backends")

# Of calls in flight at the end of a process none is blamed, so nothing but claims calls the backend.
FLAGS = ("--backend", "mortal.amd:", "--measure-period", "3600")
ALONE = {"PYDRA_AMD_SCENARIO": "mi300x-2", "PYDRA_AMD_POLL_PERIOD": "3600", "PYDRA_AMD_AMDSMI": "false"}

COUNT = 9


class Reaper:
    """Ends processes at a moment of the backend's."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self._place = place
        path = os.pathsep.join(filter(None, [str(MORTAL), os.environ.get("PYTHONPATH", "")]))
        self.environ = {**ALONE, "MORTAL": str(place), "PYTHONPATH": path}

    def come(self, moment: str) -> None:
        draft = self._place / "draft"
        draft.write_text(moment)
        draft.replace(self._place / "end")

    def seconds(self) -> float:
        """How long the call still had in which the driver was loaded last."""
        return float((self._place / "seconds").read_text())

    def has_come(self) -> bool:
        return not (self._place / "end").exists()


class Lives(NamedTuple):
    """A node, and its agent that is killed at moments of a claim and started again."""

    node: Scene
    reaper: Reaper
    start: Callable[[], Awaitable[Agent]]
    agents: list[Agent]

    async def die(self) -> None:
        await self.agents[-1].process.wait()

    async def prepare(self, moment: str, name: str, *wanted: Any) -> None:
        """Start a pod; its claim is prepared in spite of a kill at this moment."""
        self.reaper.come(f"agent {moment}")
        await self.node.ask(name, *wanted)
        await self.die()
        await self.start()
        await self.node.wait_running(name)

    async def unprepare(self, moment: str, name: str) -> list[str]:
        """End a pod, and return what was left when the agent was killed at this moment; in the end nothing is."""
        self.reaper.come(f"agent {moment}")
        await self.node.node.client.delete(PODS, name, namespace="default")
        await self.die()
        left = self.node.leftovers()
        await self.start()
        await self.node.wait_ended(name)
        await self.node.wait_clean()
        return left


@asynccontextmanager
async def live(tmp_path: Path, **environ: str) -> AsyncIterator[Lives]:
    reaper = Reaper(tmp_path / "mortal")
    agents: list[Agent] = []
    async with run_scene(tmp_path) as node, AsyncExitStack() as ended:

        async def start() -> Agent:
            agents.append(await ended.enter_async_context(node.agent(*FLAGS, environ={**reaper.environ, **environ})))
            return agents[-1]

        await start()
        yield Lives(node, reaper, start, agents)


async def test_a_mode_changes_and_changes_back_when_agent_and_backend_are_killed(tmp_path: Path) -> None:
    async with live(tmp_path) as lives:
        await lives.prepare("after CPX", "pod", "cpx", COUNT)  # of one GPU, and before the other
        assert lives.node.modes() == ["CPX", "CPX"]
        assert await lives.unprepare("within SPX", "pod") != []


RELOADS = [("unloaded", "loaded"), ("before CPX", "undone set-memory-partition nps4")]
"""Moments in the prepare and in the unprepare of a claim that changes the memory mode."""


async def test_a_memory_mode_changes_and_changes_back_when_the_agent_is_killed(tmp_path: Path) -> None:
    async with live(tmp_path, PYDRA_AMD_PARTITIONING="memory") as lives:
        node = lives.node
        for number, (preparing, unpreparing) in enumerate(RELOADS):
            await lives.prepare(preparing, f"pod-{number}", "cpx_nps4")
            assert (node.modes()[0], node.memory_modes()) == ("CPX", {"NPS4"})
            assert lives.reaper.seconds() > KUBELET_CALL_DEADLINE
            assert await lives.unprepare(unpreparing, f"pod-{number}") != []
            assert node.memory_modes() == {"NPS1"}


async def test_a_gpu_is_taken_and_given_back_when_the_agent_is_killed(tmp_path: Path) -> None:
    async with live(tmp_path, PYDRA_AMD_VFIO="true") as lives:
        # Who may have the GPU is written, and no driver has it.
        await lives.prepare("after vfio-pci", "guest", "vfio")
        assert lives.node.driver("0000:05:00.0") == "vfio-pci"
        await lives.unprepare("after amdgpu", "guest")
        assert lives.node.driver("0000:05:00.0") == "amdgpu"
