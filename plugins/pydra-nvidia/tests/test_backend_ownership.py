"""What the backend undoes is what it made itself, in this boot: nothing of the admin's, nothing of another boot's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pydra import AllocatedDevice, Claim, ClaimError, HeldClaim, StepStage
from pydra_nvidia.composition import open_backend
from pydra_nvidia.machine_access import find_machine
from pydra_nvidia.simulation.machine_state import GpuState, Process
from pydra_nvidia.simulation.simulation import Simulation, open_simulation
from pydra_nvidia.steps import BindVfio, MigModeOff
from pydra_pci import bind_function
from small_agent import SmallAgent
from step_agent import as_kept, list_steps

STARTED = Path(__file__).parent / "data" / "vendor-checkpoints" / "started.json"
MACHINE = {
    "settings": {"dynamic_mig": True},
    "host": {"onlyGpus": True},
    "gpus": [{"model": "h100-80gb", "count": 3, "minors": [2, 0, 1]}],
}
PART = "gpu-0-mig-1g10gb-19-0"


def claim(uid: str, *devices: str) -> Claim:
    allocated = (AllocatedDevice(request=f"r{n}", pool="node", device=one) for n, one in enumerate(devices))
    return Claim(uid=uid, namespace="default", name=f"claim-{uid}", devices=tuple(allocated))


class Node:
    """A simulated machine of three H100 in `path`, on which backends come and go."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.scenario = str(path / "scenario.json")
        Path(self.scenario).write_text(json.dumps(MACHINE))
        self.open()

    def open(self) -> Simulation:
        self.simulation = open_simulation(self.scenario, str(self.path))
        return self.simulation

    def backend(self, **settings: str) -> Any:
        named = {f"PYDRA_NVIDIA_{name.upper()}": value for name, value in settings.items()}
        own = {"PYDRA_NVIDIA_SCENARIO": self.scenario, "PYDRA_NVIDIA_STATE": str(self.path)}
        return open_backend(find_machine({**own, "PYDRA_NVIDIA_POLL_PERIOD": "0.02", **named}))

    def gpu(self) -> GpuState:
        view = self.simulation.machine.read()
        return next(view.state.gpus[uuid] for uuid, board in view.boards.items() if board.minor == 0)

    def first_driver(self) -> str:
        """The driver of the function that is gpu-vfio-0."""
        view = self.simulation.machine.read()
        return next(view.state.gpus[uuid].driver for uuid, one in view.boards.items() if one.address == self.address())

    def address(self) -> str:
        return min(board.address for board in self.simulation.machine.read().boards.values())

    def checkpoint(self, device: str) -> str:
        """The vendor's plugin directory, with a claim that it was preparing."""
        directory = self.path / "gpu.nvidia.com"
        directory.mkdir()
        text = STARTED.read_text().replace('"gpu-0"', f'"{device}"')
        boot = self.simulation.tree.read(self.simulation.tree.proc("sys/kernel/random/boot_id")) or ""
        (directory / "checkpoint.json").write_text(text.replace("3a8b7c1e-5f2d-4e6a-9b0c-1d2e3f4a5b6c", boot))
        return str(directory)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another task, of the backend's
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("dynamic", ["false", "true"])
async def test_taking_over_leaves_the_admins_partition(node: Node, dynamic: str) -> None:
    node.simulation.inject.set_mig_mode(0, True, force=True)
    node.simulation.inject.create_mig(0, "1g.10gb", 0)
    directory = node.checkpoint(PART)
    async with node.backend(dynamic_mig=dynamic) as backend:
        await backend.inherit(directory)
    assert node.gpu().mig
    assert [one.start for one in node.gpu().instances] == [0]


async def test_taking_over_leaves_a_function_that_the_admin_bound(node: Node) -> None:
    tree = node.simulation.tree
    bind_function(tree, node.address(), "vfio-pci", "nvidia")
    tree.write(tree.sys(f"bus/pci/devices/{node.address()}/driver_override"), "\n")
    directory = node.checkpoint("gpu-vfio-0")
    async with node.backend(vfio="true") as backend:
        await backend.inherit(directory)
    assert node.first_driver() == "vfio-pci"


async def test_what_is_taken_over_is_undone_by_its_plan(node: Node) -> None:
    directory = node.checkpoint("gpu-0")
    uuid = next(uuid for uuid, board in node.simulation.machine.read().boards.items() if board.minor == 0)
    boot = node.simulation.tree.read(node.simulation.tree.proc("sys/kernel/random/boot_id")) or ""
    text = STARTED.with_name("gpu.json").read_text().replace("GPU-2fa81118-5a5f-aa66-7660-471eed407181", uuid)
    (Path(directory) / "checkpoint.json").write_text(text.replace("3a8b7c1e-5f2d-4e6a-9b0c-1d2e3f4a5b6c", boot))
    async with node.backend() as backend:
        (taken,) = (await backend.inherit(directory)).claims
        assert [(step.label, step.stage) for step in taken.claim.steps] == [
            (f"set-time-slice 0 of {uuid}", StepStage.DONE)
        ] or not taken.claim.steps
        agent = SmallAgent()
        agent.records["vendor"] = HeldClaim(claim=taken.claim, prepared=taken.prepared, completed=True)
        await agent.start(backend)
        await agent.unprepare(taken.claim.uid)
        await agent.prepare(claim("one", "gpu-0"))


async def test_a_vendors_claim_that_cannot_be_undone_yet_keeps_nobody_waiting(node: Node) -> None:
    node.simulation.inject.set_mig_mode(0, True, force=True)
    node.simulation.inject.create_mig(0, "1g.10gb", 0)
    with node.simulation.machine.change() as view:
        uuid = next(uuid for uuid, board in view.boards.items() if board.minor == 0)
        view.state.gpus[uuid].instances[0].compute.clear()
        view.state.gpus[uuid].processes.append(Process(pid=7, gi=view.state.gpus[uuid].instances[0].id))
    directory = node.checkpoint(PART)
    async with node.backend(dynamic_mig="true") as backend:
        inherited = await backend.inherit(directory)
        assert [Path(file).name for file in inherited.files] == ["checkpoint.json"]
        assert [one.start for one in node.gpu().instances] == [0]
        await backend.restore(())
        assert (await backend.discover()).devices


async def test_what_was_before_is_in_the_plan(node: Node) -> None:
    tree = node.simulation.tree
    with node.simulation.machine.change() as view:
        for gpu in view.state.gpus.values():
            gpu.compute_mode = 2
    tree.write(tree.sys(f"bus/pci/devices/{node.address()}/driver_override"), "nvidia")
    async with node.backend(vfio="true") as backend:
        agent = SmallAgent()
        await agent.start(backend)
        passed = claim("v", "gpu-vfio-0")
        prepared = await agent.prepare(passed)
        (record,) = agent.records.values()
        mode, step = list_steps([record])
        assert isinstance(mode, MigModeOff)
        assert isinstance(step, BindVfio)
        assert step.override == "nvidia"
        assert as_kept(await backend.prepare(record.claim)) == prepared, "a GPU that is bound has no mode to leave"
        await agent.unprepare(passed.uid)
        assert tree.read(tree.sys(f"bus/pci/devices/{node.address()}/driver_override")) == "nvidia"


async def test_what_a_process_began_is_undone_when_the_next_one_starts(node: Node) -> None:
    agent = SmallAgent()
    async with node.backend(dynamic_mig="true") as backend:
        await agent.start(backend)
        await agent.prepare(claim("kept", "gpu-0-mig-1g10gb-19-5"))
        await agent.carry_out(await agent.plan(claim("begun", PART)))
        agent.note(agent.records["begun"].claim)
        await agent.plan(claim("planned", "gpu-1"))
    assert sorted(one.start for one in node.gpu().instances) == [0, 5]
    async with node.backend(dynamic_mig="true", orphans="remove") as backend:
        await agent.start(backend)
        assert list(agent.records) == ["kept"]
        assert [one.start for one in node.gpu().instances] == [5]
        await agent.unprepare("kept")
    assert not node.gpu().mig


async def test_a_partition_that_no_claim_holds_goes_at_the_next_start_where_the_admin_wants_that(node: Node) -> None:
    agent = SmallAgent()
    async with node.backend(dynamic_mig="true") as backend:
        await agent.start(backend)
        await agent.prepare(claim("one", PART))
    for orphans, left in (("adopt", 1), ("remove", 0)):
        async with node.backend(dynamic_mig="true", orphans=orphans) as backend:
            await backend.restore(())
        assert len(node.gpu().instances) == left


async def test_claims_end_while_the_driver_is_away_at_the_start_and_the_rest_is_done_when_it_is_back(
    node: Node,
) -> None:
    agent = SmallAgent()
    async with node.backend(dynamic_mig="true") as backend:
        await agent.start(backend)
        await agent.prepare(claim("one", PART))
    async with node.backend(dynamic_mig="true") as backend:
        node.simulation.inject.unload_driver(force=True)
        await agent.start(backend)
        await agent.unprepare("one")
        node.simulation.inject.load_driver()
        assert (await backend.discover()).devices


async def test_a_partition_that_appears_between_the_plan_and_its_step_is_not_taken(node: Node) -> None:
    async with node.backend(dynamic_mig="true") as backend:
        agent = SmallAgent()
        await agent.start(backend)
        planned = await agent.plan(claim("one", PART))
        node.simulation.inject.set_mig_mode(0, True, force=True)
        theirs = node.simulation.inject.create_mig(0, "1g.10gb", 0)
        with pytest.raises(ClaimError, match="made outside of this driver a moment ago"):
            await agent.carry_out(planned)
        assert [one.uuid for part in node.gpu().instances for one in part.compute] == [theirs]
