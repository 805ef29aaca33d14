"""Whole GPUs as users ask for them: one, several, near each other, by choice, by template, to look at."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conftest import Scene

Stage = Callable[..., "AbstractAsyncContextManager[Scene]"]
Ask = Callable[..., Any]

H100 = {"model": "h100-80gb"}
FOUR_T4 = [
    {
        "model": "t4",
        "count": 4,
        "minors": [0, 1, 2, 3],
        "roots": ["pci0000:10", "pci0000:20", "pci0000:10", "pci0000:30"],
        "numa": [0, 1, 0, 2],
    }
]
OF_TWO_MODELS = [H100 | {"count": 2, "minors": [0, 2]}, {"model": "t4", "minors": [1]}]


async def test_a_whole_gpu_and_two_more_of_one_claim_until_none_is_left(stage: Stage, ask_for: Ask) -> None:
    async with stage(FOUR_T4) as scene:
        (one,) = await scene.run("one", ask_for("gpu"))
        two = await scene.run("two", ask_for("gpu", count=2))
        assert len({one, *two}) == 3
        await scene.create_both("too-many", ask_for("gpu", count=2))
        await scene.pending("too-many")
        for pod, devices in (("one", [one]), ("two", two)):
            assert scene.nodes(pod) == sorted(f"/dev/nvidia{name.removeprefix('gpu-')}" for name in devices)
            paths = {device.path for device in scene.container(pod).devices}
            assert {"/dev/nvidiactl", "/dev/nvidia-uvm"} <= paths
            assert "NVIDIA_VISIBLE_DEVICES=void" in scene.container(pod).env
        await scene.end("one")
        await scene.wait_running("too-many")
        await scene.end("two", "too-many")
        await scene.undone()


async def test_gpus_of_one_claim_are_near_each_other(stage: Stage, ask_for: Ask) -> None:
    near = [{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]
    async with stage(FOUR_T4) as scene:
        assert sorted(await scene.run("pair", ask_for("gpu", count=2), constraints=near)) == ["gpu-0", "gpu-2"]
        await scene.create_both("more", ask_for("gpu", count=2), constraints=near)
        await scene.pending("more")


async def test_gpus_that_nvlink_connects_are_had_by_one_constraint(stage: Stage, ask_for: Ask) -> None:
    island = [{"matchAttribute": "gpu.nvidia.com/nvlinkIsland"}]
    async with stage(OF_TWO_MODELS) as scene:
        await scene.create_both("three", ask_for("gpu", count=3), constraints=island)
        await scene.pending("three")
        pair = [ask_for("gpu", name="left"), ask_for("gpu", name="right")]
        assert sorted(await scene.run("pair", *pair, constraints=island)) == ["gpu-0", "gpu-2"]
        devices = await scene.devices()
        assert devices["gpu-0"]["attributes"]["nvlinkPeers"] == {"int": 1}
        assert "nvlinkIsland" not in devices["gpu-1"]["attributes"]


async def test_containers_get_the_devices_of_the_requests_that_they_name(stage: Stage, ask_for: Ask) -> None:
    requests = [ask_for("gpu", "device.attributes['gpu.nvidia.com'].architecture == 'Turing'", name="small")]
    requests += [ask_for("gpu", "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) > 0", name="big")]
    async with stage(OF_TWO_MODELS) as scene:
        await scene.create_claim("pair", *requests)
        uses = {
            "small": [{"name": "it", "request": "small"}],
            "big": [{"name": "it", "request": "big"}],
            "both": [{"name": "it"}],
            "none": [],
        }
        await scene.create_pod("app", "pair", containers=uses)
        await scene.wait_running("app")
        assert scene.nodes("app", "small") == ["/dev/nvidia1"]
        assert scene.nodes("app", "big") == ["/dev/nvidia0"]
        assert scene.nodes("app", "both") == ["/dev/nvidia0", "/dev/nvidia1"]
        assert scene.container("app", "none").devices == ()


async def test_with_admin_access_a_monitor_sees_what_others_have_and_changes_nothing(
    stage: Stage, ask_for: Ask, configure: Ask
) -> None:
    """Not of GPUs with dynamic MIG: the scheduler wants their counters for a look too (kubernetes#140729)."""
    mps = configure("GpuConfig", sharing={"strategy": "MPS"})
    parted = {"model": "a100-40gb", "minors": [2], "mig": True, "instances": [{"profile": "3g.20gb", "start": 0}]}
    async with stage([{"model": "t4", "count": 2, "minors": [0, 1]}, parted]) as scene:
        await scene.run("whole", ask_for("gpu"))
        await scene.run("part", ask_for("mig"))
        before = scene.traces()
        looks = [ask_for(kind, name=kind, allocationMode="All", adminAccess=True) for kind in ("gpu", "mig")]
        assert sorted(await scene.run("look", *looks, config=[mps])) == ["gpu-0", "gpu-1", "gpu-2-mig-3g20gb-9-0"]
        assert scene.nodes("look") == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2"]
        assert scene.traces()["gpus"] == before["gpus"]
        assert scene.traces()["daemons"] == []
        await scene.run("late", ask_for("gpu"))
        await scene.end("look")
        await scene.end("whole", "part", "late")
        await scene.undone()
