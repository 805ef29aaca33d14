"""What users do wrong: each claim gets the field and what is allowed, nothing is left, and others go on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conftest import Scene

Stage = Callable[..., "AbstractAsyncContextManager[Scene]"]
Ask = Callable[..., Any]

H100 = {"model": "h100-80gb", "minors": [0]}


def mps(**fields: Any) -> dict[str, Any]:
    return {"strategy": "MPS", "mpsConfig": fields}


WRONG_CONFIGS: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("GpuConfg", {}, ("GpuConfg", "resource.nvidia.com/v1beta1/GpuConfig")),
    (
        "GpuConfig",
        {"sharing": {"strategy": "TimeSlicing", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "0"}}},
        (r"sharing.mpsConfig: only", r"sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"),
    ),
    (
        "GpuConfig",
        {"sharing": mps(defaultPerDevicePinnedMemoryLimit={"1": "1Gi"})},
        (r'defaultPerDevicePinnedMemoryLimit\["1"\]', "found index 1, allowed: 0"),
    ),
    (
        "MigDeviceConfig",
        {"sharing": {"strategy": "MPS"}},
        (r"spec\.devices\.config\[0\] \(request it\): found a MigDeviceConfig, allowed for gpu-0", "GpuConfig"),
    ),
)
"""Refused by their types or by the plan; `test_sharing_config` and `test_sharing_plan` have the rules."""


async def test_a_config_that_is_wrong_is_reported_with_its_fields_and_nothing_is_done(
    stage: Stage, ask_for: Ask, configure: Ask
) -> None:
    async with stage([H100], dynamic_mig=True, vfio=True) as scene:
        for number, (kind, fields, told) in enumerate(WRONG_CONFIGS):
            name = f"wrong-{number}"
            await scene.create_both(name, ask_for("gpu"), config=[configure(kind, "it", **fields)])
            for words in told:
                await scene.wait_event(name, "InvalidConfig", words)
            await scene.undone()
            await scene.end(name)
        right = {"sharing": mps(defaultActiveThreadPercentage=50)}
        await scene.run("right", ask_for("gpu"), config=[configure("GpuConfig", "it", **right)])
        await scene.end("right")
        await scene.undone()


async def test_a_profile_that_no_gpu_has_waits_and_one_that_it_lost_is_reported(stage: Stage, ask_for: Ask) -> None:
    async with stage([H100], dynamic_mig=True, vfio=True) as scene:
        await scene.create_both("never", ask_for("mig", profile="1g.5gb"))
        await scene.pending("never")
        await scene.create_claim("before", ask_for("mig", profile="1g.12gb"))
        await scene.allocate("before", "gpu-0-mig-1g12gb-19-0")
        await scene.create_pod("before")
        await scene.wait_event(
            "before", "UnknownDevice", "gpu-0-mig-1g12gb-19-0 of pool .* is not published by this node"
        )
        await scene.run("other", ask_for("mig", profile="1g.10gb"))
        await scene.end("other", "before", "never")
        await scene.undone()


async def test_a_place_that_somebody_else_took_is_reported_with_who_can_free_it_and_prepared_when_it_is_free(
    stage: Stage, ask_for: Ask
) -> None:
    async with stage([H100], dynamic_mig=True, vfio=True) as scene:
        await scene.create_claim("late", ask_for("mig", profile="3g.40gb"))
        await scene.create_claim("whole", ask_for("gpu"))
        scene.inject.set_mig_mode(0, enabled=True, force=True)
        scene.inject.create_mig(0, "1g.10gb", 1)
        since = scene.traces()
        await scene.allocate("late", "gpu-0-mig-3g40gb-9-0")
        await scene.create_pod("late")
        # Who notices first, the agent when it discovers or the backend when it prepares, is a matter of time.
        words = (
            r"is not published by this node|needs memory slices 0-3, where there is 1g.10gb .* at memory slice 1, "
            r"GPU instance \d+: it was made outside .*nvidia-smi mig -i GPU-"
        )
        await scene.wait_event("late", "UnknownDevice|ClaimFailed", words)
        await scene.allocate("whole", "gpu-0")
        await scene.create_pod("whole")
        await scene.wait_event("whole", "UnknownDevice|ClaimFailed", "is not published by this node|is partitioned")
        await scene.undone(since)
        await scene.end("whole")
        await scene.run("beside", ask_for("mig", profile="1g.10gb"))
        scene.inject.destroy_mig(0, 1)
        await scene.wait_running("late")
        await scene.end("late", "beside")
        await scene.undone()


async def test_devices_that_the_scheduler_gave_twice_are_had_by_one_claim(stage: Stage, ask_for: Ask) -> None:
    async with stage([H100], dynamic_mig=True, vfio=True) as scene:
        (held,) = await scene.run("first", ask_for("mig", profile="3g.40gb"))
        for name, kind, device in (
            ("part", "mig", f"gpu-0-mig-1g10gb-19-{held.rpartition('-')[2]}"),
            ("whole", "gpu", "gpu-0"),
            ("guest", "vfio", "gpu-vfio-0"),
        ):
            await scene.create_claim(name, ask_for(kind))
            await scene.allocate(name, device)
        since = scene.traces()
        for name in ("part", "whole", "guest"):
            await scene.create_pod(name)
            await scene.wait_event(name, "DeviceInUse", "is still prepared for claim")
        await scene.undone(since)
        await scene.end("part", "whole", "guest", "first")
        await scene.undone()
