"""The plan of a claim: what stands in its way is reported before anything is begun, and which partitions are ours."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_values import gpu
from pydra import AllocatedDevice, Claim, DeviceInUse, InvalidConfig
from pydra_nvidia.claim_config import GpuConfig, MigDeviceConfig, VfioDeviceConfig
from pydra_nvidia.claim_plan import plan_claim
from pydra_nvidia.claim_records import Entry, Hold
from pydra_nvidia.claim_targets import find_targets
from pydra_nvidia.hardware_types import ComputeInstance, GpuInstance, Mig, Placement, Reading
from pydra_nvidia.mig.vanished_partitions import find_owned
from pydra_nvidia.settings import Settings
from pydra_nvidia.steps import CreateMig

PLACE = Placement(0, 1)
PART = CreateMig(gpu="GPU-0", profile=19, profile_name="1g.10gb", placement=PLACE)
GPU = gpu(0, "0", "0000:19:00.0", model="t4")


def plan(*configs: Any, explicit: tuple[bool, ...] = (), entries: tuple[Entry, ...] = ()) -> object:
    device = AllocatedDevice(request="r", pool="n", device="gpu-0", configs=configs, explicit=explicit)
    claim, reading = Claim(uid="u", namespace="ns", name="c", devices=(device,)), Reading(gpus=(GPU,))
    return plan_claim(claim, find_targets(claim.devices, reading), reading, entries=entries, settings=Settings())


def test_configs_of_other_kinds_that_are_for_all_requests_are_passed_over() -> None:
    plan(GpuConfig(), MigDeviceConfig(), VfioDeviceConfig(), explicit=(True, False, False))


def test_configs_given_by_name_to_devices_of_another_kind_are_all_reported() -> None:
    with pytest.raises(InvalidConfig) as told:
        plan(MigDeviceConfig(), VfioDeviceConfig(), explicit=(True, True))
    assert told.value.problems == (
        "a config of request r: found a MigDeviceConfig, allowed for gpu-0, which is a whole GPU: GpuConfig",
        "a config of request r: found a VfioDeviceConfig, allowed for gpu-0, which is a whole GPU: GpuConfig",
    )


def test_hardware_that_another_claim_has_by_another_name_is_refused() -> None:
    guest = Hold(device="gpu-vfio-0", hardware=GPU.pci)
    with pytest.raises(DeviceInUse):
        plan(entries=(Entry(uid="other", name="default/other", holds=(guest,)),))


def test_a_partition_of_another_profile_where_ours_was_is_not_ours() -> None:
    def reading(profile: int) -> Reading:
        part = GpuInstance(
            id=1, profile=profile, placement=PLACE, compute=(ComputeInstance(id=0, uuid="MIG-1", slices=1),)
        )
        mig = Mig(enabled=True, pending=True, resetless=True, profiles=(), instances=(part,))
        return Reading(gpus=(gpu(0, "0", mig=mig),))

    entries = (Entry(uid="one", name="default/claim", steps=(PART,)),)
    assert find_owned(entries, reading(19)) == find_owned(entries, Reading()) == {("GPU-0", PLACE)}
    assert find_owned(entries, reading(20)) == frozenset()
