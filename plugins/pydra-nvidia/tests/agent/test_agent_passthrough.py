"""GPUs for virtual machines as users ask for them: bound while a claim has them, and given back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conftest import Scene

Stage = Callable[..., "AbstractAsyncContextManager[Scene]"]
Ask = Callable[..., Any]

T4 = {"model": "t4", "minors": [0]}
HOPPER = {"model": "h100-80gb", "minors": [1]}
ONE = [{"model": "h100-80gb", "minors": [0]}]


def paths(scene: Scene, pod: str) -> set[str]:
    return {device.path for device in scene.container(pod).devices}


async def test_a_gpu_is_bound_for_the_claim_and_is_a_gpu_again_when_it_leaves(stage: Stage, ask_for: Ask) -> None:
    async with stage([T4, HOPPER], vfio=True) as scene:
        await scene.published("gpu-0", "gpu-1", "gpu-vfio-0", "gpu-vfio-1")
        (device,) = await scene.run("guest", ask_for("vfio"))
        minor = int(device.removeprefix("gpu-vfio-"))
        assert scene.gpus()[minor].driver == "vfio-pci"
        await scene.published(f"gpu-{minor}", gone=True)
        (group,) = paths(scene, "guest") - {"/dev/vfio/vfio"}
        assert group.startswith("/dev/vfio/")
        container = scene.container("guest")
        assert "NVIDIA_VISIBLE_DEVICES=void" in container.env
        assert container.mounts == ()
        assert await scene.run("whole", ask_for("gpu")) == [f"gpu-{1 - minor}"]
        await scene.end("guest")
        await scene.published(f"gpu-{minor}")
        assert await scene.run("again", ask_for("gpu")) == [f"gpu-{minor}"]
        await scene.end("again", "whole")
        await scene.undone()


async def test_a_guests_monitor_gets_the_interface_that_it_asks_for(stage: Stage, ask_for: Ask, configure: Ask) -> None:
    config = configure("VfioDeviceConfig", iommu={"backendPolicy": "PreferIommuFD", "enableAPIDevice": True})
    async with stage([T4, HOPPER], vfio=True) as scene:
        await scene.run("guest", ask_for("vfio"), config=[config])
        (device,) = paths(scene, "guest") - {"/dev/iommu"}
        assert device.startswith("/dev/vfio/devices/")
        await scene.end("guest")
        await scene.undone()


async def test_metadata_has_the_address_of_a_function_and_the_uuid_of_a_partition_made_for_the_claim(
    stage: Stage, ask_for: Ask
) -> None:
    async with stage([T4, HOPPER], vfio=True, dynamic_mig=True, metadata=True) as scene:
        address = ask_for("vfio", "device.attributes['gpu.nvidia.com'].deviceID == '0x1eb8'")
        await scene.create_claim("both", address, ask_for("mig", profile="1g.10gb", name="part"), template=True)
        await scene.create_pod("guest", template="both")
        await scene.wait_running("guest")
        found = scene.metadata("guest")
        assert found["it"]["resource.kubernetes.io/pciBusID"] == {"string": scene.address(0)}
        assert found["part"]["uuid"]["string"].startswith("MIG-")
        assert found["part"]["profile"] == {"string": "1g.10gb"}
        await scene.end_pods("guest")
        await scene.undone()


async def test_gpus_of_one_partition_of_fabric_manager_are_connected_for_a_claim(stage: Stage, ask_for: Ask) -> None:
    scenario = {"host": {}, "driver": {"fabricMode": 1}}
    gpus = [{"model": "h100-80gb", "count": 4}]
    async with stage(gpus, scenario=scenario, vfio=True, fabric_partitions=True) as scene:
        await scene.published("gpu-3", "gpu-vfio-3")
        for kind, name in (("gpu", "pods"), ("vfio", "guests")):
            pair = [{"requests": ["it"], "matchAttribute": "gpu.nvidia.com/partition2"}]
            given = await scene.run(name, ask_for(kind, count=2), constraints=pair)
            attributes = [(await scene.devices())[device]["attributes"] for device in given]
            (partition,) = {one["partition2"]["int"] for one in attributes}
            assert partition in scene.machine.read().state.fabric
        assert len(scene.machine.read().state.fabric) == 2
        await scene.end("guests", "pods")
        await scene.create_both("torn", ask_for("gpu", count=3))
        await scene.wait_event("torn", "ClaimFailedTerminally", r"not a partition of Fabric Manager.*partition3")
        await scene.end("torn")
        await scene.undone()


async def test_a_gpu_is_either_whole_or_partitioned_or_passed_through(stage: Stage, ask_for: Ask) -> None:
    kinds = {"whole": ask_for("gpu"), "part": ask_for("mig", profile="1g.10gb"), "guest": ask_for("vfio")}
    async with stage(ONE, dynamic_mig=True, vfio=True) as scene:
        await scene.run("whole", kinds["whole"])
        for name in ("part", "guest"):
            await scene.create_both(name, kinds[name])
            await scene.pending(name)
        await scene.end("whole")
        await scene.until_one_runs("part", "guest")
        first, second = ("part", "guest") if scene.runs("part") else ("guest", "part")
        await scene.pending(second)
        await scene.end(first)
        await scene.wait_running(second)
        await scene.end(second)
        await scene.undone()
