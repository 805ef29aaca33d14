"""What happens to a GPU is reported as a taint, in the pod's status and in the metrics, and so is its end."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING

from pydra.kube.api_resources import PODS

if TYPE_CHECKING:
    from conftest import Scene

    MakeScene = Callable[..., AbstractAsyncContextManager[Scene]]

XID, LOST, ACTION = "gpu.nvidia.com/xid", "gpu.nvidia.com/gpu-lost", "gpu.nvidia.com/recovery-action"
GONE = "gpu.nvidia.com/partition-gone"
RESCAN = ("--rescan-period", "0.3")
SOON = ("--healthy-after", "0.3", "--health-period", "0.2", "--measure-period", "0.2", *RESCAN)
LONG = {"PYDRA_NVIDIA_QUIET_PERIOD": "3600"}
GPU_0 = {"gpu-0": {XID: ("79", "NoSchedule")}}


async def status_of(scene: Scene, name: str) -> dict[str, str]:
    """What the pod's status says of its devices' health."""
    pod = await scene.node.client.get(PODS, name, namespace="default")
    resources = [
        resource
        for container in pod["status"].get("containerStatuses", ())
        for status in container.get("allocatedResourcesStatus", ())
        for resource in status["resources"]
    ]
    return {resource["resourceID"]: resource["health"] for resource in resources}


async def test_an_xid_is_a_taint_within_seconds_and_in_the_pods_status_and_survives_the_agent(
    make_scene: MakeScene,
) -> None:
    async with make_scene() as scene:
        async with scene.agent("--measure-period", "0.2", environ=LONG) as agent:
            await scene.start("pod", "gpu")
            await scene.wait_running("pod")
            assert await scene.allocated("pod") == ["gpu-0"]
            scene.inject.xid(0, 79)
            await scene.wait_taints(GPU_0)
            await scene.until(lambda: scene.health() == {"gpu-0": "Unhealthy", "gpu-1": "Healthy"})

            async def is_told() -> bool:
                return set((await status_of(scene, "pod")).values()) == {"Unhealthy"}

            await scene.until(is_told)

            async def is_counted() -> bool:
                return any(
                    "xids_total" in line and 'device="gpu-0"' in line and 'xid="79"' in line and line.endswith(" 1.0")
                    for line in (await agent.get("/metrics"))[1].splitlines()
                )

            await scene.until(is_counted)
            await scene.kill(agent)
        async with scene.agent(environ=LONG):
            await scene.wait_taints(GPU_0)
            await scene.start("second", "gpu")
            await scene.wait_running("second")
            assert await scene.allocated("second") == ["gpu-1"]
            await scene.end("pod", "second")
            await scene.wait_clean()


async def test_a_lost_gpu_stays_published_and_claimed_and_comes_back_with_a_reset(make_scene: MakeScene) -> None:
    async with make_scene() as scene, scene.agent(*SOON, environ=LONG):
        await scene.start("pod", "gpu")
        await scene.wait_running("pod")
        before = await scene.devices()
        scene.inject.lose(0)
        await scene.wait_taints({"gpu-0": {LOST: ("", "NoSchedule")}})
        after = await scene.devices()
        assert {name: device["attributes"] for name, device in after.items()} == {
            name: device["attributes"] for name, device in before.items()
        }
        await scene.until(lambda: scene.health() == {"gpu-0": "Unhealthy", "gpu-1": "Healthy"})
        await scene.start("late", "gpu")
        await scene.wait_running("late")
        assert await scene.allocated("late") == ["gpu-1"]
        await scene.end("pod")
        scene.inject.reset(0, force=True)
        await scene.wait_taints({})
        await scene.until(lambda: scene.health() == {"gpu-0": "Healthy", "gpu-1": "Healthy"})
        await scene.start("again", "gpu")
        await scene.wait_running("again")
        assert await scene.allocated("again") == ["gpu-0"]
        await scene.end("late", "again")
        await scene.wait_clean()


async def test_a_gpu_that_was_lost_before_the_start_is_named_to_everybody(make_scene: MakeScene) -> None:
    well, lost = {"model": "h100-80gb"}, {"model": "h100-80gb", "minors": [1], "lost": True}
    async with make_scene(well, lost) as scene, scene.agent(*SOON) as agent:
        named = r"the GPU at 0000:[0-9a-f:.]+ is not published: .* NVML_ERROR_GPU_IS_LOST \(15\)"
        await scene.wait_event("", "HardwareUnreadable", named)
        await agent.wait_log(lambda text: re.search(f"hardware cannot be read: {named}", text) is not None)
        await agent.wait_metric(r'^pydra_hardware_unreadable\{driver="gpu.nvidia.com"\} 1.0$')
        assert set(await scene.devices()) == {"gpu-0"}
        scene.inject.reset(1, force=True)
        await scene.wait_devices({"gpu-0", "gpu-1"})


async def test_a_partition_that_vanishes_under_a_pod_is_reported_until_the_pod_is_gone(make_scene: MakeScene) -> None:
    async with make_scene(settings={"dynamic_mig": True}) as scene, scene.agent(*SOON, environ=LONG):
        await scene.start("pod", "mig", profile="1g.10gb")
        await scene.wait_running("pod")
        (device,) = await scene.allocated("pod")
        (instance,) = scene.gpus()[0].instances
        scene.inject.destroy_mig(0, instance.start)
        await scene.wait_taints({device: {GONE: ("", "NoSchedule")}})
        await scene.wait_event(
            "", "DeviceUnhealthy", f"{device}: claim default/pod has this partition, and somebody removed"
        )
        await scene.until(lambda: scene.health()[device] == "Unhealthy")
        await scene.end("pod")
        await scene.wait_taints({})
        await scene.wait_clean()


async def test_a_partition_made_for_a_claim_is_known_at_once_by_its_instance(make_scene: MakeScene) -> None:
    poll = {"PYDRA_NVIDIA_POLL_PERIOD": "3600"}
    async with make_scene(settings={"dynamic_mig": True}) as scene, scene.agent(environ={**LONG, **poll}):
        await scene.start("pod", "mig", profile="1g.10gb")
        await scene.wait_running("pod")
        (device,) = await scene.allocated("pod")
        (instance,) = scene.gpus()[0].instances
        scene.inject.xid(0, 94, gi=instance.id, ci=0)
        await scene.until(lambda: _is_tainted(scene, device))
        assert "gpu-0-mig-1g10gb-19-0" not in await scene.taints()
        await scene.end("pod")
        await scene.wait_clean()


async def _is_tainted(scene: Scene, device: str) -> bool:
    return (await scene.taints()).get(device) == {XID: ("94", "NoSchedule")}


async def test_a_gpu_is_watched_again_when_it_was_passed_through_and_tainted_with_the_admins_effect(
    make_scene: MakeScene,
) -> None:
    signals = {"PYDRA_NVIDIA_SIGNALS": "xid=NoExecute"}
    async with make_scene(settings={"vfio": True}) as scene, scene.agent(*SOON, environ={**LONG, **signals}):
        await scene.start("guest", "vfio")
        await scene.wait_running("guest")
        (device,) = await scene.allocated("guest")
        index = int(device.rpartition("-")[2])
        scene.inject.xid(1 - index, 48)
        taints = {f"gpu-{1 - index}": {XID: ("48", "NoExecute")}}
        await scene.until(lambda: _has(scene, taints))
        await scene.end("guest")
        await scene.wait_clean()
        await scene.until(lambda: _is_published(scene, f"gpu-{index}"))
        scene.inject.xid(index, 62)
        await scene.until(lambda: _has(scene, {f"gpu-{index}": {XID: ("62", "NoExecute")}}))


async def _has(scene: Scene, wanted: dict[str, dict[str, tuple[str, str]]]) -> bool:
    found = await scene.taints()
    return all(found.get(name) == taints for name, taints in wanted.items())


async def _is_published(scene: Scene, name: str) -> bool:
    return name in await scene.devices()


async def test_what_was_set_on_a_lost_gpu_is_taken_back_when_it_answers_again(make_scene: MakeScene) -> None:
    async with make_scene() as scene, scene.agent(*SOON):
        slices = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
        for name, sharing in (("mps", {"strategy": "MPS"}), ("slices", slices)):
            await scene.start(name, "gpu", config={"kind": "GpuConfig", "sharing": sharing})
            await scene.wait_running(name)
        assert [(gpu.compute_mode, gpu.time_slice) for gpu in scene.gpus()] == [(3, 0), (0, 3)]
        scene.inject.lose(0)
        scene.inject.lose(1)
        await scene.wait_taints({name: {LOST: ("", "NoSchedule")} for name in ("gpu-0", "gpu-1")})
        await scene.end("mps", "slices")
        scene.inject.answer(0)
        scene.inject.answer(1)
        await scene.wait_clean()
