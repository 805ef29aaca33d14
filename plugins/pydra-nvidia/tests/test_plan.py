"""The plan of a claim: what stands in its way is told before anything is written down."""

from __future__ import annotations

from typing import Any

import pytest

from pydra import AllocatedDevice, Claim, InvalidConfig
from pydra_nvidia.config import GpuConfig, MigDeviceConfig, VfioDeviceConfig
from pydra_nvidia.hardware import Gpu, Reading
from pydra_nvidia.plan import plan_claim
from pydra_nvidia.settings import Settings
from pydra_nvidia.targets import find_targets

GPU = Gpu(
    index=0,
    minor=0,
    uuid="GPU-0",
    name="Tesla T4",
    brand=2,
    architecture=6,
    compute=(7, 5),
    pci="0000:19:00.0",
    memory=16 << 30,
)


def plan(*configs: Any, explicit: tuple[bool, ...]) -> object:
    device = AllocatedDevice(request="r", pool="n", device="gpu-0", configs=configs, explicit=explicit)
    claim, reading = Claim(uid="u", namespace="ns", name="c", devices=(device,)), Reading(gpus=(GPU,))
    return plan_claim(claim, find_targets(claim.devices, reading), reading, entries={}, settings=Settings())


def test_configs_of_other_kinds_that_are_for_all_requests_are_passed_over() -> None:
    plan(GpuConfig(), MigDeviceConfig(), VfioDeviceConfig(), explicit=(True, False, False))


def test_configs_given_by_name_to_devices_of_another_kind_are_all_told() -> None:
    with pytest.raises(InvalidConfig) as told:
        plan(MigDeviceConfig(), VfioDeviceConfig(), explicit=(True, True))
    assert told.value.problems == (
        "request r: found a MigDeviceConfig, allowed for gpu-0, which is a whole GPU: GpuConfig",
        "request r: found a VfioDeviceConfig, allowed for gpu-0, which is a whole GPU: GpuConfig",
    )
