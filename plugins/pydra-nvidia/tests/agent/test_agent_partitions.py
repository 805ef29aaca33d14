"""Partitions as users ask for them: made for claims as far as the GPUs go, given as they are, or made by others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conftest import Scene

Stage = Callable[..., "AbstractAsyncContextManager[Scene]"]
Ask = Callable[..., Any]

SMALL, HALF, BIG = 19, 9, 5
"""Profile ids of an H100's 1g.10gb, 3g.40gb and 4g.40gb."""

RESCAN = 1.0
"""Seconds: a partition with the id of one that went since the last look is noticed only by a rescan."""


def h100(count: int = 1) -> list[dict[str, Any]]:
    return [{"model": "h100-80gb", "count": count, "minors": list(range(count))}]


async def test_as_many_small_partitions_as_the_gpus_hold_and_the_rest_waits(stage: Stage, ask_for: Ask) -> None:
    async with stage(h100(2), dynamic_mig=True, rescan=RESCAN) as scene:
        await scene.create_claim("small", ask_for("mig", profile="1g.10gb"), template=True)
        pods = [f"pod-{number}" for number in range(14)]
        for pod in pods:
            await scene.create_pod(pod, template="small")
        await scene.wait_running(*pods)
        for minor in (0, 1):
            assert scene.partitions(minor) == [(SMALL, start) for start in range(7)]
            assert scene.gpus()[minor].mig
        await scene.create_pod("last", template="small")
        await scene.pending("last")
        nodes = [device.path for pod in pods for device in scene.container(pod).devices if "/nvidia-cap" in device.path]
        assert len(nodes) == len(set(nodes)) == 28
        await scene.end_pods("pod-3")
        await scene.wait_running("last")
        await scene.end_pods(*(pod for pod in pods if pod != "pod-3"), "last")
        await scene.undone()


async def test_partitions_of_one_claim_are_of_one_gpu_by_constraint(stage: Stage, ask_for: Ask) -> None:
    async with stage(h100(2), dynamic_mig=True, rescan=RESCAN) as scene:
        # Not a partition: kube-scheduler counts those that the constraint refuses as taken, and finds none on gpu-1.
        assert await scene.run("first", ask_for("gpu")) == ["gpu-0"]
        pair = [ask_for("mig", profile="3g.40gb", name=name) for name in ("left", "right")]
        await scene.run("pair", *pair, constraints=[{"matchAttribute": "gpu.nvidia.com/parentUUID"}])
        assert scene.partitions(1) == [(HALF, 0), (HALF, 4)]


async def test_partitions_of_several_sizes_fit_together_and_a_whole_gpu_waits_for_them(
    stage: Stage, ask_for: Ask
) -> None:
    async with stage(h100(), dynamic_mig=True, rescan=RESCAN) as scene:
        parts = [
            ask_for("mig", profile="1g.10gb", name="small", count=3),
            ask_for("mig", profile="4g.40gb", name="big"),
        ]
        devices = await scene.run("parts", *parts)
        assert [name.rpartition("-mig-")[2].split("-")[0] for name in devices] == ["1g10gb"] * 3 + ["4g40gb"]
        assert [profile for profile, _ in scene.partitions(0)] == [BIG, SMALL, SMALL, SMALL]
        await scene.create_both("whole", ask_for("gpu"))
        await scene.pending("whole")
        await scene.end("parts")
        await scene.wait_running("whole")
        assert not scene.gpus()[0].mig
        await scene.create_both("part", ask_for("mig", profile="1g.10gb"))
        await scene.pending("part")
        await scene.end("whole")
        await scene.wait_running("part")
        assert scene.gpus()[0].mig
        await scene.end("part")
        await scene.undone()


async def test_a_partition_made_by_somebody_else_is_published_given_and_left_alone(stage: Stage, ask_for: Ask) -> None:
    async with stage(h100(), dynamic_mig=True, rescan=RESCAN) as scene:
        await scene.published("gpu-0", "gpu-0-mig-7g80gb-0-0")
        scene.inject.set_mig_mode(0, enabled=True, force=True)
        uuid = scene.inject.create_mig(0, "3g.40gb", 4)
        await scene.published("gpu-0", "gpu-0-mig-7g80gb-0-0", gone=True)
        foreign = (await scene.devices())["gpu-0-mig-3g40gb-9-4"]
        assert foreign["attributes"]["uuid"] == {"string": uuid}
        assert "consumesCounters" not in foreign
        assert await scene.run("theirs", ask_for("mig", profile="3g.40gb")) in (
            ["gpu-0-mig-3g40gb-9-0"],
            ["gpu-0-mig-3g40gb-9-4"],
        )
        assert len(await scene.run("ours", ask_for("mig", profile="3g.40gb"))) == 1
        assert scene.partitions(0) == [(HALF, 0), (HALF, 4)]
        await scene.end("theirs", "ours")
        assert scene.partitions(0) == [(HALF, 4)]
        scene.inject.destroy_mig(0, 4)
        await scene.published("gpu-0", "gpu-0-mig-7g80gb-0-0")
        assert await scene.run("whole", ask_for("gpu")) == ["gpu-0"]
        assert not scene.gpus()[0].mig


async def test_partitions_that_exist_are_given_and_stay(stage: Stage, ask_for: Ask) -> None:
    async with stage("dgx-a100") as scene:
        before = scene.partitions(4), scene.partitions(5)
        devices = await scene.devices()
        assert sum("-mig-" in name for name in devices) == 10
        assert "gpu-4" not in devices
        (half,) = await scene.run("half", ask_for("mig", profile="3g.20gb"))
        assert half == "gpu-4-mig-3g20gb-9-0"
        smalls = await scene.run("smalls", ask_for("mig", profile="1g.5gb", count=8))
        assert len(set(smalls)) == 8
        await scene.create_both("more", ask_for("mig", profile="1g.5gb"))
        await scene.pending("more")
        uuid = devices["gpu-4-mig-2g10gb-14-4"]["attributes"]["uuid"]["string"]
        named = f"device.attributes['gpu.nvidia.com'].uuid == '{uuid}'"
        assert await scene.run("named", ask_for("mig", named)) == ["gpu-4-mig-2g10gb-14-4"]
        await scene.end("half", "smalls", "named", "more")
        assert (scene.partitions(4), scene.partitions(5)) == before
        await scene.undone()
