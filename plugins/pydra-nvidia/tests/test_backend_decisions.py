"""How a claim becomes a plan, and a plan what the hardware is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pydra import AllocatedDevice, Claim, DeviceStatus
from pydra_nvidia.backend import NvidiaBackend
from pydra_nvidia.composition import open_backend
from pydra_nvidia.machine_access import find_machine
from pydra_nvidia.simulation.simulation import open_simulation
from pydra_nvidia.steps import CreateMig, MigModeOn
from small_agent import SmallAgent
from step_agent import as_kept, list_steps

SMALL, OTHER = "gpu-0-mig-1g10gb-19-0", "gpu-0-mig-1g10gb-19-5"


def claim(uid: str, *devices: str) -> Claim:
    allocated = (AllocatedDevice(request=f"r{n}", pool="node", device=one) for n, one in enumerate(devices))
    return Claim(uid=uid, namespace="default", name=f"claim-{uid}", devices=tuple(allocated))


class Node:
    """The backend over a simulated HGX H100, and an agent for it."""

    def __init__(self, backend: NvidiaBackend, state: Path) -> None:
        self.backend = backend
        self.agent = SmallAgent(backend)
        self.simulation = open_simulation("hgx-h100", str(state))

    def starts(self) -> list[int]:
        """Where GPU instances begin on the GPU with minor number 0."""
        view = self.simulation.machine.read()
        (uuid,) = [uuid for uuid, board in view.boards.items() if board.minor == 0]
        return sorted(one.start for one in view.state.gpus[uuid].instances)


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    variables = {"PYDRA_NVIDIA_SCENARIO": "hgx-h100", "PYDRA_NVIDIA_STATE": str(tmp_path)}
    async with open_backend(find_machine(variables)) as backend:
        await backend.restore(())
        yield Node(backend, tmp_path)


async def test_eight_gpus_of_one_claim_are_prepared_as_each_would_be(node: Node) -> None:
    names = [f"gpu-{minor}" for minor in range(8)]
    together = await node.agent.prepare(claim("all", *names))
    await node.agent.unprepare("all")
    assert [one.device for one in together] == names
    for one in together:
        (alone,) = await node.agent.prepare(claim(one.device, one.device))
        assert alone.edits == one.edits


async def test_a_second_prepare_of_the_same_plan_changes_nothing(node: Node) -> None:
    prepared = await node.agent.prepare(claim("one", SMALL))
    record = node.agent.records["one"]
    assert [type(step) for step in list_steps([record])] == [MigModeOn, CreateMig]
    assert as_kept(await node.backend.prepare(record.claim)) == prepared
    assert node.starts() == [0]


async def test_the_claims_status_names_the_partition_and_the_gpu_that_it_has(node: Node) -> None:
    (whole,) = await node.agent.prepare(claim("whole", "gpu-1"))
    (part,) = await node.agent.prepare(claim("part", OTHER))
    view = node.simulation.machine.read()
    gpus = {board.minor: (uuid, board.address) for uuid, board in view.boards.items()}
    assert whole.status == DeviceStatus(data={"uuid": gpus[1][0], "pciBusID": gpus[1][1]})
    uuid, address = gpus[0]
    (instance,) = view.state.gpus[uuid].instances
    assert part.status == DeviceStatus(
        data={
            "uuid": part.attributes["uuid"],
            "parentUUID": uuid,
            "pciBusID": address,
            "profile": "1g.10gb",
            "gpuInstanceID": instance.id,
        }
    )


async def test_a_plan_touches_nothing(node: Node) -> None:
    await node.agent.plan(claim("one", SMALL))
    assert node.starts() == []
