"""Partitions that somebody removes under a claim are reported at once, until the claim has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pydra import AllocatedDevice, Claim, Device, HealthStatus
from pydra_nvidia.composition import open_backend
from pydra_nvidia.machine_access import find_machine
from pydra_nvidia.simulation.simulation import open_simulation
from small_agent import SmallAgent

PART = "gpu-0-mig-1g10gb-19-2"
CLAIM = Claim(
    uid="u", namespace="default", name="train", devices=(AllocatedDevice(request="gpu", pool="node", device=PART),)
)
STATIC = {"model": "h100-80gb", "mig": True, "instances": [{"profile": "1g.10gb", "start": 2}]}


class Node:
    def __init__(self, path: Path, gpu: dict[str, Any], *, dynamic: bool, **settings: bool) -> None:
        scenario = path / "scenario.json"
        scenario.write_text(
            json.dumps({"host": {"onlyGpus": True}, "gpus": [gpu], "settings": {"dynamic_mig": dynamic, **settings}})
        )
        self._place = {"PYDRA_NVIDIA_SCENARIO": str(scenario), "PYDRA_NVIDIA_STATE": str(path / "machine")}
        self.inject = open_simulation(str(scenario), str(path / "machine")).inject

    def backend(self) -> Any:
        return open_backend(find_machine(self._place))


async def unhealthy(backend: Any) -> dict[str, Device]:
    devices = (await backend.discover()).devices
    return {one.name: one for one in devices if one.health.status is not HealthStatus.HEALTHY}


@pytest.mark.parametrize(("gpu", "dynamic"), [({"model": "h100-80gb"}, True), (STATIC, False)], ids=["made", "found"])
async def test_a_partition_that_is_removed_under_a_claim_is_gone_until_the_claim_has_ended(
    tmp_path: Path, gpu: dict[str, Any], dynamic: bool
) -> None:
    node = Node(tmp_path, gpu, dynamic=dynamic)
    async with node.backend() as backend:
        agent = SmallAgent(backend)
        before = {one.name: one for one in (await backend.discover()).devices}
        await agent.prepare(CLAIM)
        assert await unhealthy(backend) == {}
        node.inject.destroy_mig(0, 2)
        found = await unhealthy(backend)
        assert list(found) == [PART]
        assert found[PART].health.status is HealthStatus.UNHEALTHY
        assert found[PART].health.taint == "gpu.nvidia.com/partition-gone"
        assert "claim default/train has this partition" in found[PART].health.message
        assert found[PART].attributes.keys() == before[PART].attributes.keys()
    async with node.backend() as backend:
        await agent.start(backend)
        assert list(await unhealthy(backend)) == [PART], "another process knows it too"
        await agent.unprepare(CLAIM.uid)
        assert await unhealthy(backend) == {}
        assert (PART in {one.name for one in (await backend.discover()).devices}) is dynamic


async def test_without_health_the_log_says_once_which_claim_has_lost_its_partition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path, {"model": "h100-80gb"}, dynamic=True, health=False)
    async with node.backend() as backend:
        await SmallAgent(backend).prepare(CLAIM)
        node.inject.destroy_mig(0, 2)
        for _ in range(2):
            assert await unhealthy(backend) == {}
    assert [PART in one for one in caplog.messages if "claim default/train has this partition" in one] == [True]


async def test_a_partition_that_is_not_made_yet_or_on_a_lost_gpu_is_not_called_gone(tmp_path: Path) -> None:
    node = Node(tmp_path, {"model": "h100-80gb"}, dynamic=True)
    async with node.backend() as backend:
        agent = SmallAgent(backend)
        await agent.plan(CLAIM)
        assert await unhealthy(backend) == {}
        await agent.prepare(CLAIM)
        node.inject.lose(0)
        found = await unhealthy(backend)
        assert {one.health.taint for one in found.values()} == {"gpu.nvidia.com/gpu-lost"}
        node.inject.answer(0)
        found = await unhealthy(backend)
        assert {one.health.taint for one in found.values()} == {"gpu.nvidia.com/xid"}, "it was not reset"
