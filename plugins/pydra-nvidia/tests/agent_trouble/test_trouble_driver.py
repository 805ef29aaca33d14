"""Drivers come late, go and are replaced, GPUs are plugged in and out, others partition them: all of it is noticed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import pytest

from pydra.kube.api_resources import RESOURCE_SLICES
from pydra_dev.kubelet.observations import ContainerCreated
from pydra_nvidia.simulation.inject import InUse

if TYPE_CHECKING:
    from conftest import Scene

    MakeScene = Callable[..., AbstractAsyncContextManager[Scene]]

BOTH = {"gpu-0", "gpu-1"}
HEALTHY_SOON = ("--healthy-after", "0.2")


async def wait_version(scene: Scene, wanted: str) -> None:
    """The driver's, of all published devices."""

    async def is_it() -> bool:
        devices = (await scene.devices()).values()
        return {device["attributes"]["driverVersion"]["version"] for device in devices} == {wanted}

    await scene.until(is_it, f"the version is {wanted}")


async def test_a_driver_that_comes_late_has_its_devices_within_seconds_and_no_empty_slice_before(
    make_scene: MakeScene,
) -> None:
    async with make_scene(driver={"state": "absent"}) as scene, scene.agent(ready=False) as agent:
        await agent.wait_ready()
        await agent.wait_log(lambda text: "devices cannot be discovered" in text)
        assert "the NVIDIA driver is not loaded on this node yet" in agent.messages()
        await scene.start("early", "gpu")
        assert (await scene.node.client.list(RESOURCE_SLICES)).items == ()
        scene.inject.load_driver(force=True)
        await scene.wait_devices(BOTH)
        await scene.wait_running("early")
        scene.inject.xid(0, 79)
        await scene.wait_taints({"gpu-0": {"gpu.nvidia.com/xid": ("79", "NoSchedule")}})
        await scene.end("early")
        await scene.wait_clean()


async def test_a_driver_that_goes_takes_no_device_away_and_claims_wait_for_it(make_scene: MakeScene) -> None:
    async with make_scene() as scene, scene.agent(*HEALTHY_SOON) as agent:
        scene.inject.unload_driver(force=True)
        await agent.wait_log(lambda text: "devices cannot be discovered" in text)
        assert set(await scene.devices()) == BOTH
        await scene.until(lambda: set(scene.health().values()) == {"Unknown"})
        scene.inject.load_driver(force=True)
        await scene.until(lambda: set(scene.health().values()) == {"Healthy"})
        await scene.start("pod", "gpu")
        await scene.wait_running("pod")
        await scene.end("pod")
        await scene.wait_clean()
        await scene.wait_taints({})
        assert set(await scene.devices()) == BOTH


async def test_an_admin_replaces_the_driver_under_a_running_agent_that_lets_go_of_it(make_scene: MakeScene) -> None:
    async with make_scene(settings={"dynamic_mig": True}) as scene, scene.agent("--healthy-after", "0.2"):
        await scene.start("before", "mig", profile="1g.10gb")
        await scene.wait_running("before")
        free = await scene.devices()
        with pytest.raises(InUse):
            scene.inject.load_driver("590.44.01")
        assert await scene.command("maintenance", "--for", "10m") == 0
        assert scene.simulation.machine.clients() == {}
        await scene.until(lambda: set(scene.health().values()) == {"Unknown"})
        await scene.wait_taints({name: {"gpu.nvidia.com/maintenance": ("", "NoSchedule")} for name in free})
        await scene.create_claim("waits", {"name": "gpu", **tolerating("gpu.nvidia.com")})
        await scene.create_pod("waits")
        await scene.wait_error("waits", "has requested maintenance of its GPUs until")
        await scene.end("before")
        scene.inject.load_driver("590.44.01")
        assert scene.simulation.machine.clients() == {}
        assert await scene.command("resume") == 0
        await scene.wait_running("waits")
        await scene.until(lambda: set(scene.health().values()) == {"Healthy"})
        await wait_version(scene, "590.44.1")
        created = [step for step in scene.steps if isinstance(step, ContainerCreated)]
        assert "libcuda.so.590.44.01" in str(created[-1].after)
        assert "580.105.08" not in str(created[-1].after)
        await scene.wait_taints({})
        await scene.end("waits")
        await scene.wait_clean()


def tolerating(device_class: str) -> dict[str, Any]:
    """A request of this class that puts up with everything."""
    return {"exactly": {"deviceClassName": device_class, "tolerations": [{"operator": "Exists"}]}}


async def test_gpus_that_are_plugged_in_and_out_come_and_go(make_scene: MakeScene) -> None:
    groups = ({"model": "h100-80gb"}, {"model": "h100-80gb", "plugged": False})
    async with make_scene(*groups) as scene, scene.agent():
        assert set(await scene.devices()) == {"gpu-0"}
        scene.inject.plug(1)
        await scene.wait_devices(BOTH)
        scene.inject.xid(1, 79)
        await scene.wait_taints({"gpu-1": {"gpu.nvidia.com/xid": ("79", "NoSchedule")}})
        scene.inject.unplug(0)
        await scene.wait_devices({"gpu-1"})
        scene.inject.plug(0)
        await scene.wait_devices(BOTH)
        await scene.start("pod", "gpu")
        await scene.wait_running("pod")
        assert await scene.allocated("pod") == ["gpu-0"]
        scene.inject.unplug(0)
        await scene.wait_devices({"gpu-1"})
        await scene.end("pod")
        scene.inject.plug(0)
        await scene.wait_devices(BOTH)
        await scene.wait_clean()
