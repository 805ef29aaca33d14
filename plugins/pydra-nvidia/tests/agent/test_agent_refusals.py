"""What users do wrong: each claim gets the field and what is allowed, nothing is left, and others go on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Scene

Stage = Callable[..., "AbstractAsyncContextManager[Scene]"]
Ask = Callable[..., Any]

H100 = {"model": "h100-80gb", "minors": [0]}
TWO = [{"model": "h100-80gb", "count": 2, "minors": [0, 1]}]


def mps(**fields: Any) -> dict[str, Any]:
    return {"strategy": "MPS", "mpsConfig": fields}


WRONG_CONFIGS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "unknown kind": ("GpuConfg", {}, ("GpuConfg", "resource.nvidia.com/v1beta1/GpuConfig")),
    "unknown field": ("GpuConfig", {"shring": {}}, ("shring",)),
    "misspelt strategy": ("GpuConfig", {"sharing": {"strategy": "Mps"}}, (r"sharing.strategy", "Mps")),
    "no strategy": ("GpuConfig", {"sharing": {"mpsConfig": {}}}, (r"sharing", "strategy")),
    "misspelt limit": (
        "GpuConfig",
        {"sharing": mps(defaultActiveThreadPercentge=50)},
        (r"sharing.mpsConfig", "defaultActiveThreadPercentge"),
    ),
    "strategy and config disagree": (
        "GpuConfig",
        {"sharing": {"strategy": "TimeSlicing", "mpsConfig": {"defaultActiveThreadPercentage": 50}}},
        (r"sharing.mpsConfig", 'only for strategy "MPS"'),
    ),
    "and the other way round": (
        "GpuConfig",
        {"sharing": {"strategy": "MPS", "timeSlicingConfig": {"interval": "Long"}}},
        (r"sharing.timeSlicingConfig", 'only for strategy "TimeSlicing"'),
    ),
    "unknown interval": (
        "GpuConfig",
        {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Longer"}}},
        (r"sharing.timeSlicingConfig.interval", "Longer"),
    ),
    "more than all threads": (
        "GpuConfig",
        {"sharing": mps(defaultActiveThreadPercentage=101)},
        (r"sharing.mpsConfig.defaultActiveThreadPercentage", "100"),
    ),
    "a limit that is not a quantity": (
        "GpuConfig",
        {"sharing": mps(defaultPinnedDeviceMemoryLimit="10 gigs")},
        (r"sharing.mpsConfig.defaultPinnedDeviceMemoryLimit", "80Gi"),
    ),
    "a limit of nothing": (
        "GpuConfig",
        {"sharing": mps(defaultPinnedDeviceMemoryLimit="0")},
        (r"sharing.mpsConfig.defaultPinnedDeviceMemoryLimit", "allowed"),
    ),
    "a device that is not there": (
        "GpuConfig",
        {"sharing": mps(defaultPerDevicePinnedMemoryLimit={"1": "1Gi"})},
        (r'defaultPerDevicePinnedMemoryLimit\["1"\]', "found index 1, allowed: 0"),
    ),
    "a UUID that is not there": (
        "GpuConfig",
        {"sharing": mps(defaultPerDevicePinnedMemoryLimit={"GPU-11111111-1111-1111-1111-111111111111": "1Gi"})},
        (r'defaultPerDevicePinnedMemoryLimit\["GPU-1', "allowed: index 0, or GPU-"),
    ),
    "two at once": (
        "GpuConfig",
        {"sharing": {"strategy": "TimeSlicing", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "0"}}},
        (r"sharing.mpsConfig: only", r"sharing.mpsConfig.defaultPinnedDeviceMemoryLimit"),
    ),
    "a config for devices of another kind": (
        "MigDeviceConfig",
        {"sharing": {"strategy": "MPS"}},
        ("request it: found a MigDeviceConfig, allowed for gpu-0", "GpuConfig"),
    ),
}


async def test_a_config_that_is_wrong_is_reported_with_its_fields_and_nothing_is_done(
    stage: Stage, ask_for: Ask, configure: Ask
) -> None:
    async with stage(TWO, dynamic_mig=True) as scene:
        for number, (kind, fields, told) in enumerate(WRONG_CONFIGS.values()):
            name = f"wrong-{number}"
            await scene.ask(name, ask_for("gpu"), config=[configure(kind, "it", **fields)])
            for words in told:
                await scene.event(name, "InvalidConfig", words)
            await scene.undone()
            await scene.leave(name)
        right = {"sharing": mps(defaultActiveThreadPercentage=50)}
        await scene.run("right", ask_for("gpu"), config=[configure("GpuConfig", "it", **right)])
        await scene.leave("right")
        await scene.undone()


OFF = {"time_slicing": False, "mps": False}


async def test_a_claim_that_would_need_two_mps_daemons_is_reported_before_anything_is_done(
    stage: Stage, ask_for: Ask, configure: Ask
) -> None:
    told = "needs a daemon of its own for .*; a claim has one MPS daemon at most"
    async with stage(TWO, dynamic_mig=True) as scene:
        of_partitions = configure("MigDeviceConfig", sharing={"strategy": "MPS"})
        await scene.ask("parts", ask_for("mig", count=2, profile="1g.10gb"), config=[of_partitions])
        await scene.event("parts", "InvalidConfig", told)
        await scene.leave("parts")
        each = [configure("GpuConfig", name, sharing={"strategy": "MPS"}) for name in ("one", "two")]
        both = [ask_for("gpu", name=name) for name in ("one", "two")]
        await scene.ask("gpus", *both, config=each)
        await scene.event("gpus", "InvalidConfig", told)
        await scene.undone()
        await scene.leave("gpus")
        await scene.run("right", *both, config=[configure("GpuConfig", "one", "two", sharing={"strategy": "MPS"})])
        await scene.leave("right")
        await scene.undone()


@pytest.mark.parametrize(
    ("settings", "kind", "sharing", "told"),
    [
        pytest.param(OFF, "gpu", "TimeSlicing", "PYDRA_NVIDIA_TIME_SLICING=true", id="time slices"),
        pytest.param(OFF, "gpu", "MPS", "PYDRA_NVIDIA_MPS=true", id="MPS"),
        pytest.param({"consumable_shares": 2}, "gpu", "MPS", "several claims have shares of one GPU", id="shares"),
    ],
)
async def test_what_the_admin_switched_off_is_reported_with_the_setting(
    stage: Stage, ask_for: Ask, configure: Ask, settings: dict[str, Any], kind: str, sharing: str, told: str
) -> None:
    async with stage([H100], **settings) as scene:
        config = configure("GpuConfig", sharing={"strategy": sharing})
        await scene.ask("wrong", ask_for(kind), config=[config])
        await scene.event("wrong", "InvalidConfig", told)
        await scene.undone()


async def test_a_profile_that_no_gpu_has_waits_and_one_that_it_lost_is_reported(stage: Stage, ask_for: Ask) -> None:
    async with stage([H100], dynamic_mig=True, vfio=True) as scene:
        await scene.ask("never", ask_for("mig", profile="1g.5gb"))
        await scene.pending("never")
        await scene.claim("before", ask_for("mig", profile="1g.12gb"))
        await scene.allocate("before", "gpu-0-mig-1g12gb-19-0")
        await scene.pod("before")
        await scene.event("before", "UnknownDevice", "gpu-0-mig-1g12gb-19-0 of pool .* is not published by this node")
        await scene.run("other", ask_for("mig", profile="1g.10gb"))
        await scene.leave("other", "before", "never")
        await scene.undone()


async def test_a_place_that_somebody_else_took_is_reported_with_who_can_free_it_and_prepared_when_it_is_free(
    stage: Stage, ask_for: Ask
) -> None:
    async with stage([H100], dynamic_mig=True, vfio=True) as scene:
        await scene.claim("late", ask_for("mig", profile="3g.40gb"))
        await scene.claim("whole", ask_for("gpu"))
        scene.inject.set_mig_mode(0, enabled=True, force=True)
        scene.inject.create_mig(0, "1g.10gb", 1)
        since = scene.traces()
        await scene.allocate("late", "gpu-0-mig-3g40gb-9-0")
        await scene.pod("late")
        # Who notices first, the agent when it discovers or the backend when it prepares, is a matter of time.
        words = (
            r"is not published by this node|needs memory slices 0-3, where there is 1g.10gb .* at memory slice 1, "
            r"GPU instance \d+: it was made outside .*nvidia-smi mig -i GPU-"
        )
        await scene.event("late", "UnknownDevice|ClaimFailed", words)
        await scene.allocate("whole", "gpu-0")
        await scene.pod("whole")
        await scene.event("whole", "UnknownDevice|ClaimFailed", "is not published by this node|is partitioned")
        await scene.undone(since)
        await scene.leave("whole")
        await scene.run("beside", ask_for("mig", profile="1g.10gb"))
        scene.inject.destroy_mig(0, 1)
        await scene.running("late")
        await scene.leave("late", "beside")
        await scene.undone()


async def test_devices_that_the_scheduler_gave_twice_are_had_by_one_claim(stage: Stage, ask_for: Ask) -> None:
    async with stage([H100], dynamic_mig=True, vfio=True) as scene:
        (held,) = await scene.run("first", ask_for("mig", profile="3g.40gb"))
        for name, kind, device in (
            ("part", "mig", f"gpu-0-mig-1g10gb-19-{held.rpartition('-')[2]}"),
            ("whole", "gpu", "gpu-0"),
            ("guest", "vfio", "gpu-vfio-0"),
        ):
            await scene.claim(name, ask_for(kind))
            await scene.allocate(name, device)
        since = scene.traces()
        for name in ("part", "whole", "guest"):
            await scene.pod(name)
            await scene.event(name, "DeviceInUse", "is still prepared for claim")
        await scene.undone(since)
        await scene.leave("part", "whole", "guest", "first")
        await scene.undone()
