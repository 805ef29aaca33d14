"""Sharing as users configure it: time slices, MPS daemons, shares of one device for several claims."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pydra_nvidia.sharing.mps_processes import MARK, find_marked

if TYPE_CHECKING:
    from conftest import Scene

Stage = Callable[..., "AbstractAsyncContextManager[Scene]"]
Ask = Callable[..., Any]

EXCLUSIVE_PROCESS = 3
SHARED = [
    {"model": "t4", "minors": [0]},
    {"model": "a100-40gb", "minors": [1], "mig": True, "instances": [{"profile": "3g.20gb", "start": 0}]},
]


def h100(count: int = 1) -> list[dict[str, Any]]:
    return [{"model": "h100-80gb", "count": count, "minors": list(range(count))}]


PARTITIONS = [{"profile": "1g.10gb", "start": start} for start in range(3)]
STATIC = [*h100(3), {"model": "h100-80gb", "minors": [3], "mig": True, "instances": PARTITIONS}]


def daemons(scene: Scene) -> list[Path]:
    """The directories of the daemons that run."""
    places = sorted(Path(scene.node.root, "hardware/run/mps").glob("*/"))
    return [place for place in places if find_marked(f"{MARK}={place}")]


async def test_a_time_slice_is_set_for_the_claim_and_the_default_comes_back(
    stage: Stage, ask_for: Ask, configure: Ask
) -> None:
    def slicing(*requests: str, **fields: Any) -> Any:
        return configure("GpuConfig", *requests, sharing={"strategy": "TimeSlicing", **fields})

    async with stage(STATIC, dynamic_mig=False) as scene:
        requests = [ask_for("gpu", name="long"), ask_for("gpu", name="plain")]
        configs = [slicing("plain"), slicing("long", timeSlicingConfig={"interval": "Long"})]
        devices = await scene.run("two", *requests, config=configs)
        minors = [int(name.removeprefix("gpu-")) for name in devices]
        assert [scene.gpus()[minor].time_slice for minor in minors] == [3, 0]
        await scene.run("short", ask_for("gpu"), config=[slicing(timeSlicingConfig={"interval": "Short"})])
        assert sorted(gpu.time_slice for gpu in scene.gpus()) == [0, 0, 1, 3]
        await scene.end("two", "short")
        await scene.undone()


async def test_an_mps_daemon_serves_the_gpus_of_a_claim_while_it_lasts(
    stage: Stage, ask_for: Ask, configure: Ask
) -> None:
    limits = {
        "defaultActiveThreadPercentage": 40,
        "defaultPinnedDeviceMemoryLimit": "10Gi",
        "defaultPerDevicePinnedMemoryLimit": {"0": "5Gi"},
    }
    mps = configure("GpuConfig", sharing={"strategy": "MPS", "mpsConfig": limits})
    async with stage(STATIC, dynamic_mig=False) as scene:
        devices = await scene.run("clients", ask_for("gpu", count=2), config=[mps])
        minors = [int(name.removeprefix("gpu-")) for name in devices]
        assert {scene.gpus()[minor].compute_mode for minor in minors} == {EXCLUSIVE_PROCESS}
        (place,) = daemons(scene)
        container = scene.container("clients")
        assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in container.env
        mounts = {mount.container_path: mount.host_path for mount in container.mounts}
        assert mounts["/tmp/nvidia-mps"] == f"{place}/pipe"
        assert mounts["/dev/shm"] == f"{place}/shm"
        assert "control" in os.listdir(f"{place}/pipe")
        await scene.run("other", ask_for("gpu"))
        assert "CUDA_MPS_PIPE_DIRECTORY" not in " ".join(scene.container("other").env)
        await scene.end("clients")
        assert daemons(scene) == []
        await scene.end("other")
        await scene.undone()


async def test_each_partition_has_an_mps_daemon_of_its_own(stage: Stage, ask_for: Ask, configure: Ask) -> None:
    mps = configure("MigDeviceConfig", sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}})
    async with stage(h100(), dynamic_mig=True) as scene:
        await scene.run("one", ask_for("mig", profile="1g.10gb"), config=[mps])
        await scene.run("two", ask_for("mig", profile="1g.10gb"), config=[mps])
        assert len(daemons(scene)) == 2
        pipes = {
            mount.host_path
            for pod in ("one", "two")
            for mount in scene.container(pod).mounts
            if mount.container_path == "/tmp/nvidia-mps"
        }
        assert pipes == {f"{place}/pipe" for place in daemons(scene)}
        await scene.end("one")
        assert len(daemons(scene)) == 1
        await scene.end("two")
        await scene.undone()


async def test_claims_that_share_a_gpu_have_one_time_slice(stage: Stage, ask_for: Ask, configure: Ask) -> None:
    def slicing(interval: str) -> Any:
        config = {"interval": interval}
        return configure("GpuConfig", sharing={"strategy": "TimeSlicing", "timeSlicingConfig": config})

    async with stage(SHARED, consumable_shares="unlimited") as scene:
        await scene.run("first", ask_for("gpu"), config=[slicing("Long")])
        await scene.run("same", ask_for("gpu"), config=[slicing("Long")])
        await scene.create_both("other", ask_for("gpu"), config=[slicing("Short")])
        said = r'timeSlicingConfig.interval is "Short" here and "Long" there'
        await scene.wait_event("other", "SharesDiffer", said)
        await scene.end("first")
        assert scene.gpus()[0].time_slice == 3
        await scene.end("same")
        await scene.wait_running("other")
        assert scene.gpus()[0].time_slice == 1
        await scene.end("other")
        await scene.undone()


@pytest.mark.parametrize(
    ("shares", "requests", "pods", "consumed"),
    [
        pytest.param("memory", {"memory": "6Gi"}, 2, {"memory": "6Gi"}, id="memory"),
        pytest.param("2", None, 2, {"memory": "0", "shares": "1"}, id="number"),
    ],
)
async def test_claims_have_shares_of_one_gpu(
    stage: Stage, ask_for: Ask, shares: str, requests: dict[str, str] | None, pods: int, consumed: dict[str, str]
) -> None:
    asked = {"capacity": {"requests": requests}} if requests else {}
    async with stage(SHARED, consumable_shares=shares) as scene:
        names = [f"pod-{number}" for number in range(pods)]
        for name in names:
            assert await scene.run(name, ask_for("gpu", **asked)) == ["gpu-0"]
        results = [(await scene.results(name))[0] for name in names]
        assert len({one["shareID"] for one in results}) == pods
        assert [one["consumedCapacity"] for one in results] == [consumed] * pods
        assert all(scene.nodes(name) == ["/dev/nvidia0"] for name in names)
        await scene.create_both("one-more", ask_for("gpu", **asked))
        await scene.pending("one-more")
        await scene.end(names[0])
        await scene.wait_running("one-more")
        names[0] = "one-more"
        await scene.end(*names)
        await scene.undone()
