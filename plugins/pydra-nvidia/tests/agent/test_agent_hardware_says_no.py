"""Hardware that refuses in mid-prepare: each claim gets the code and what to do, nothing is left, others go on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conftest import Scene

Stage = Callable[..., "AbstractAsyncContextManager[Scene]"]
Ask = Callable[..., Any]

TWO = [{"model": "h100-80gb", "count": 2, "minors": [0, 1]}]
UNPRIVILEGED = {"driver": {"privileged": False}}
FIRST = "device.attributes['gpu.nvidia.com'].parentUUID == '{}'"


async def test_a_gpu_that_processes_use_is_reported_with_them_and_prepared_when_they_end(
    stage: Stage, ask_for: Ask
) -> None:
    async with stage(TWO, dynamic_mig=True, rescan=1.0) as scene:
        scene.inject.start_process(0, pid=4711, name="/usr/bin/dcgm")
        first = FIRST.format(scene.uuid(0))
        await scene.create_both("part", ask_for("mig", first, profile="1g.10gb"))
        await scene.run("other", ask_for("mig", FIRST.format(scene.uuid(1)), profile="1g.10gb"))
        since = scene.traces()
        words = r"nvmlDeviceSetMigMode for GPU-\S+ failed with NVML_ERROR_IN_USE \(19\): .*stop them.*dcgm \(pid 4711\)"
        await scene.wait_event("part", "GpuBusy", words)
        await scene.undone(since)
        scene.inject.end_process(0, 4711)
        await scene.wait_running("part")
        await scene.end("part", "other")
        await scene.undone()


async def test_a_gpu_that_falls_off_the_bus_in_mid_prepare_is_reported_and_costs_no_other(
    stage: Stage, ask_for: Ask
) -> None:
    fault = {"op": "nvmlGpuInstanceCreateComputeInstance", "do": "lost", "device": 0, "count": 1}
    async with stage(TWO, scenario={"faults": [fault]}, dynamic_mig=True, rescan=1.0) as scene:
        await scene.create_both("victim", ask_for("mig", FIRST.format(scene.uuid(0)), profile="1g.10gb"))
        await scene.wait_event(
            "victim",
            "NvmlError|ClaimFailed|UnknownDevice|LeftBehind|DeviceInUse",
            r"NVML_ERROR_GPU_IS_LOST \(15\).*reset it or reboot",
        )
        since = scene.traces()
        assert since["cdi"] == []
        await scene.run("other", ask_for("mig", FIRST.format(scene.uuid(1)), profile="1g.10gb"))
        await scene.tainted(*(name for name in await scene.devices() if name.startswith("gpu-0")))
        await scene.lost("gpu-0")
        scene.inject.reset(0, force=True)
        await scene.wait_running("victim")
        await scene.end("victim", "other")
        await scene.undone()


async def test_without_permission_no_partitions_are_offered_on_demand_and_the_log_says_why(
    stage: Stage, ask_for: Ask
) -> None:
    async with stage(TWO, scenario=UNPRIVILEGED, dynamic_mig=True) as scene:
        assert sorted(await scene.devices()) == ["gpu-0", "gpu-1"]
        told = "no partitions are made for claims on gpu-0, gpu-1, since their places are not known: "
        said = await scene.agent.wait_log(lambda text: told in text)
        assert "the backend needs root, or CAP_SYS_ADMIN, for this" in said
        await scene.run("plain", ask_for("gpu"))
