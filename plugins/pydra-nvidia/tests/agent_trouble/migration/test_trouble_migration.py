"""The agent comes after NVIDIA's own driver: its claims live on, and end as that driver would have ended them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from pydra_dev.kubelet.observations import ContainerCreated

if TYPE_CHECKING:
    from conftest import Scene, Vendor

    MakeScene = Callable[..., AbstractAsyncContextManager[Scene]]
    VendorOf = Callable[[Scene], Vendor]

MIG = "gpu-0-mig-1g10gb-19-2"
SLICED = {
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}


def set_gpu(scene: Scene, minor: int, **fields: Any) -> None:
    with scene.simulation.machine.change() as view:
        for name, value in fields.items():
            setattr(view.state.gpus[scene.uuid(minor)], name, value)


def pass_through(scene: Scene, index: int) -> None:
    """As that driver does: with an override that it leaves."""
    address = sorted(board.address for board in scene.simulation.machine.read().boards.values())[index]
    tree = scene.simulation.tree
    tree.write(tree.sys(f"bus/pci/devices/{address}/driver_override"), "vfio-pci")
    tree.write(tree.sys(f"bus/pci/devices/{address}/driver/unbind"), address)
    tree.write(tree.sys("bus/pci/drivers/vfio-pci/bind"), address)


def make_partition(scene: Scene) -> None:
    scene.inject.set_mig_mode(0, True, force=True)
    scene.inject.create_mig(0, "1g.10gb", 2)


KINDS: dict[str, tuple[str, dict[str, Any], Callable[[Scene], None]]] = {
    "dynamic-mig": (MIG, {}, make_partition),
    "gpu": ("gpu-1", {}, lambda scene: None),
    "time-slice": ("gpu-2", {"timeSliceApplied": True}, lambda scene: set_gpu(scene, 2, time_slice=3)),
    "mps": ("gpu-3", {"mpsControlDaemonID": "id-74a32"}, lambda scene: set_gpu(scene, 3, compute_mode=3)),
    "vfio": ("gpu-vfio-4", {}, lambda scene: pass_through(scene, 4)),
}


async def test_claims_are_kept_answered_again_and_ended_as_that_driver_would(
    make_scene: MakeScene, vendor_of: VendorOf
) -> None:
    settings = {"dynamic_mig": True, "vfio": True}
    async with make_scene({"model": "h100-80gb", "count": 5}, settings=settings) as scene:
        vendor = vendor_of(scene)
        uids = {}
        for kind, (device, state, do) in KINDS.items():
            do(scene)
            uids[kind] = await vendor.prepare(kind, device, **state)
        vendor.directory.joinpath("mps/id-74a32/pipe").mkdir(parents=True)
        vendor.leave()
        before = scene.gpus()
        async with scene.agent() as agent:
            assert f"took over claims that another driver had prepared: {len(KINDS)}" in agent.messages()
            assert vendor.file.with_name("checkpoint.json.inherited").exists()
            assert not vendor.file.exists()
            for kind, uid in uids.items():
                assert f'"name":"{kind}"' in (scene.records / f"{uid}.json").read_text()
            assert "delete the Deployment mps-control-daemon-id-74a32" in agent.messages()
            assert scene.gpus() == before, "nothing of it was touched"
            for kind in KINDS:
                await scene.create_pod(kind)
            await scene.wait_running(*KINDS)
            assert [scene.errors(kind) for kind in KINDS] == [[]] * len(KINDS)
            assert scene.gpus() == before
            specs = {step.pod: str(step.after) for step in scene.steps if isinstance(step, ContainerCreated)}
            wanted = {"vfio": "/dev/vfio/", "mps": f"{vendor.directory}/mps/id-74a32/pipe"}
            for kind in KINDS:
                assert wanted.get(kind, "/dev/nvidiactl") in specs[f"default/{kind}"]
            await scene.end(*KINDS)
            await scene.wait_clean()


async def test_what_one_driver_prepared_survives_a_second_start(make_scene: MakeScene, vendor_of: VendorOf) -> None:
    async with make_scene(settings={"dynamic_mig": True}) as scene:
        vendor = vendor_of(scene)
        make_partition(scene)
        await vendor.prepare("claim", MIG)
        vendor.leave()
        async with scene.agent() as agent:
            await scene.kill(agent)
        async with scene.agent() as agent:
            assert "took over" not in agent.messages()
            await scene.start("other", "mig", profile="1g.10gb")
            await scene.wait_running("other")
            assert await scene.allocated("other") != [MIG]
            await scene.end("other")
            assert len(scene.gpus()[0].instances) == 1
            await scene.create_pod("claim")
            await scene.wait_running("claim")
            await scene.end("claim")
            await scene.wait_clean()


async def test_static_partitions_stay_and_a_time_slice_that_an_old_release_did_not_write_down_is_reset(
    make_scene: MakeScene, vendor_of: VendorOf
) -> None:
    async with make_scene() as scene:
        vendor = vendor_of(scene)
        make_partition(scene)
        scene.inject.create_mig(0, "1g.10gb", 4)
        await vendor.prepare("part", MIG)
        await vendor.begin("begun", "gpu-0-mig-1g10gb-19-4")
        set_gpu(scene, 1, time_slice=3)
        await vendor.prepare("slice", "gpu-1", config=SLICED)
        vendor.leave()
        before = scene.gpus()
        async with scene.agent():
            assert scene.gpus() == before
            assert vendor.file.with_name("checkpoint.json.inherited").exists()
            for name in ("part", "slice"):
                await scene.create_pod(name)
            await scene.wait_running("part", "slice")
            await scene.end("part", "slice")
            await scene.until(lambda: scene.leftovers() == ["gpu-0 instances [(19, 2), (19, 4)]", "gpu-0 mig True"])


async def test_what_that_driver_was_stopped_in_is_undone_and_prepared_by_this_one(
    make_scene: MakeScene, vendor_of: VendorOf
) -> None:
    async with make_scene({"model": "h100-80gb", "count": 3}, settings={"dynamic_mig": True, "vfio": True}) as scene:
        vendor = vendor_of(scene)
        make_partition(scene)
        with scene.simulation.machine.change() as view:
            view.state.gpus[scene.uuid(0)].instances[0].compute.clear()
        scene.inject.create_mig(0, "2g.20gb", 4)
        kept = await vendor.prepare("kept", "gpu-0-mig-2g20gb-14-4")
        begun = await vendor.begin("begun", MIG)
        await vendor.begin("vfio", "gpu-vfio-2")
        pass_through(scene, 2)
        vendor.leave()
        async with scene.agent() as agent:
            said = agent.messages()
            assert f"claim {begun} was begun by NVIDIA's driver; what it had done is undone" in said
            assert [one.start for one in scene.gpus()[0].instances] == [4]
            assert [gpu.driver for gpu in scene.gpus()] == ["nvidia"] * 3
            assert (scene.records / f"{kept}.json").exists()
            for name in ("begun", "kept", "vfio"):
                await scene.create_pod(name)
            await scene.wait_running("begun", "kept", "vfio")
            assert sorted(one.start for one in scene.gpus()[0].instances) == [2, 4]
            await scene.end("begun", "kept", "vfio")
            await scene.wait_clean()


async def test_beside_the_living_driver_nothing_is_served(make_scene: MakeScene, vendor_of: VendorOf) -> None:
    async with make_scene() as scene:
        vendor = vendor_of(scene)
        uid = await vendor.prepare("claim", "gpu-0")
        vendor.leave()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(vendor.directory / "dra.sock"))
            listening.listen()
            async with scene.agent(ready=False) as agent:
                told = "NVIDIA's own DRA driver still serves on this node"
                await agent.wait_log(lambda text: told in text)
                assert told in await agent.wait_ready(503)
                await scene.wait_event("", "DriverNotServed", told)
                assert os.listdir(scene.node.settings.registry) == []
                assert await scene.devices() == {}
                assert vendor.file.exists()
                listening.close()
                await agent.wait_ready()
                assert "took over claims that another driver had prepared: 1" in agent.messages()
                assert (scene.records / f"{uid}.json").exists()


async def test_a_checkpoint_that_says_nothing_of_now_is_put_aside_and_claims_are_prepared_again(
    make_scene: MakeScene, vendor_of: VendorOf
) -> None:
    async with make_scene(settings={"dynamic_mig": True}) as scene:
        vendor = vendor_of(scene)
        make_partition(scene)
        await vendor.prepare("claim", MIG)
        vendor.leave(boot="3a8b7c1e-5f2d-4e6a-9b0c-1d2e3f4a5b6c")
        scene.inject.destroy_mig(0, 2)
        async with scene.agent() as agent:
            assert "is of another boot, its claims are void: 1" in agent.messages()
            assert "took over" not in agent.messages()
            assert vendor.file.with_name("checkpoint.json.inherited").exists()
            await scene.create_pod("claim")
            await scene.wait_running("claim")
            assert len(scene.gpus()[0].instances) == 1
            await scene.end("claim")
            await scene.wait_clean()
