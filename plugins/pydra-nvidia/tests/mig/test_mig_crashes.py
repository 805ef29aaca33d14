"""A process that is killed anywhere: the next one leaves nothing behind, and touches nothing of anybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from claim_process import FileAgent, work_on_claim
from pydra_nvidia.hardware_types import GpuInstance
from pydra_nvidia.steps import MigModeOn, Step
from step_agent import build_claim
from tests.forked import PROCESSES

if TYPE_CHECKING:
    from conftest import Node

MakeNode = Callable[..., "Node"]

KILLED = (3, -9)

CHANGES = {
    "prepare": (
        "nvmlDeviceSetMigMode",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstance",
    ),
    "undo": ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy", "nvmlDeviceSetMigMode"),
}

WANTED = (("3g", 4), ("1g", 0))

State = tuple[tuple[GpuInstance, ...], bool]


class Scene:
    """A node of two H100 with somebody's partition on GPU 1, and a claim for GPU 0."""

    def __init__(self, node: MakeNode) -> None:
        other = {"model": "h100-80gb", "mig": True, "minors": [1]}
        self.node = node({"model": "h100-80gb", "minors": [0]}, other, patience=5.0)
        self.node.inject.create_mig(1, self.node.create("1g", 0, 1).profile_name, 0)
        self.path = self.node.scenario.parent
        self.wanted: tuple[Step, ...] = (
            MigModeOn(gpu=self.node.uuids[0]),
            *(self.node.create(*one) for one in WANTED),
        )
        self.load().note(build_claim("one", *self.wanted))
        self.before = self.state()

    def load(self) -> FileAgent:
        """The agent, with what the record says now."""
        agent = FileAgent(self.path / "record.json")
        agent.backend = self.node.agent.backend
        return agent

    def state(self) -> tuple[State, State]:
        """What there is on both GPUs; UUIDs and ids of what the claim does not have must stay."""
        found = tuple((self.node.instances(minor), self.node.mode(minor)) for minor in (0, 1))
        self.node.session.close()  # or it counts as somebody who has the GPU open
        return found[0], found[1]

    def run(self, action: str, boundary: int | None = None) -> int:
        """A process that prepares or undoes the claim; its exit status."""
        process = PROCESSES.Process(target=work_on_claim, args=(self.path, action, boundary))
        process.start()
        process.join()
        status = process.exitcode
        process.close()
        assert status in (0, *KILLED)
        return status

    def begin(self, action: str) -> None:
        """Bring the claim to where `action` starts."""
        if action == "undo":
            asyncio.run(self.load().carry_out(build_claim("one", *self.wanted)))
            self.node.session.close()

    async def recover(self) -> None:
        """Undo what was begun, in another process than the killed one; prepare again, as the kubelet asks; undo."""
        await self.undo()
        await self.load().carry_out(build_claim("one", *self.wanted))
        wanted = [(step.profile, step.placement.start) for step in self.wanted if not isinstance(step, MigModeOn)]
        found = self.node.instances()
        assert sorted(wanted) == sorted((one.profile, one.placement.start) for one in found)
        assert all(len(one.compute) == 1 for one in found)
        await self.undo()

    async def undo(self) -> None:
        """Undo what was begun."""
        await self.load().undo("one")
        assert self.state() == self.before


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> None:
    """Of a wider scope than a test: its process outlives the test that starts it."""


def strike(scene: Scene, action: str, op: str, after: int) -> bool:
    """Kill the process when this call has had its effect; False when it has no such call any more."""
    scene.begin(action)
    scene.node.fault({"op": op, "do": "drop-reply", "after": after, "count": 1})
    status = scene.run(action)
    scene.node.fault()
    return status != 0


@pytest.mark.parametrize(("action", "op"), [(action, op) for action, ops in CHANGES.items() for op in ops])
def test_killed_after_any_call_that_changes_the_hardware(node: MakeNode, action: str, op: str) -> None:
    struck = 0
    while strike(scene := Scene(node), action, op, struck):
        asyncio.run(scene.recover())
        struck += 1
    expected = 2 if "Instance" in op else 1
    assert struck == expected, "each partition makes the call once, and so does the mode"


@pytest.mark.parametrize("action", CHANGES)
def test_killed_between_any_two_steps(node: MakeNode, action: str) -> None:
    boundary, status = 0, -9
    while status:
        scene = Scene(node)
        scene.begin(action)
        status = scene.run(action, boundary)
        if boundary % 2 or not status:
            asyncio.run(scene.undo())
        else:
            asyncio.run(scene.recover())
        boundary += 1
    assert boundary == len(scene.wanted) + 2, "before each step, after the last, and not at all"


def test_killed_while_it_undoes_what_a_killed_process_had_begun(node: MakeNode) -> None:
    scene = Scene(node)
    assert strike(scene, "prepare", "nvmlGpuInstanceCreateComputeInstance", 1)
    scene.node.fault({"op": "nvmlGpuInstanceDestroy", "do": "exit", "count": 1})
    assert scene.run("undo") == 3
    scene.node.fault({"op": "nvmlGpuInstanceDestroy", "do": "drop-reply", "count": 1, "after": 1})
    assert scene.run("undo") == 3
    scene.node.fault()
    asyncio.run(scene.undo())


def test_killed_and_somebody_else_takes_the_place_meanwhile(node: MakeNode) -> None:
    scene = Scene(node)
    assert strike(scene, "prepare", "nvmlDeviceCreateGpuInstanceWithPlacement", 0)
    theirs = scene.node.inject.create_mig(0, "2g.20gb", 0)
    asyncio.run(scene.load().undo("one"))
    with pytest.raises(Exception, match=r"there is 2g\.20gb .* made outside of this driver"):
        asyncio.run(scene.load().carry_out(build_claim("one", *scene.wanted)))
    assert [one.uuid for gi in scene.node.instances() for one in gi.compute] == [theirs]


def test_killed_before_a_step_and_somebody_makes_the_same_partition_meanwhile(node: MakeNode) -> None:
    scene = Scene(node)
    assert strike(scene, "prepare", "nvmlGpuInstanceCreateComputeInstance", 0)
    theirs = scene.node.inject.create_mig(0, scene.node.create("1g", 0).profile_name, 0)
    asyncio.run(scene.load().undo("one"))
    assert [one.uuid for gi in scene.node.instances() for one in gi.compute] == [theirs]


def test_an_entry_of_before_the_machine_was_reset_takes_nothing_of_what_came_after(node: MakeNode) -> None:
    scene = Scene(node)
    scene.begin("undo")
    step = scene.wanted[-1]
    mine = next(one.compute[0].uuid for one in scene.node.instances() if one.placement.start == 0)
    scene.node.inject.reset(0, force=True)
    theirs = scene.node.inject.create_mig(0, scene.node.create("1g", 0).profile_name, 0)
    asyncio.run(scene.node.agent.backend.undo(step, mine, build_claim("one", step)))
    assert [one.uuid for gi in scene.node.instances() for one in gi.compute] == [theirs]
