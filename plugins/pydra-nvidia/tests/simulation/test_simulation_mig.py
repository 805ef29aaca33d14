"""MIG of the simulated NVML obeys the rules of the hardware, through the unmodified SDK."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pydra_nvidia.nvml.errors import Code

Simulate = Callable[..., Any]
Create = Callable[..., Any]
H100 = {"gpus": [{"model": "h100-80gb", "minors": [5], "mig": True}]}
OFF = {"gpus": [{"model": "h100-80gb", "minors": [5]}]}
A100 = {"gpus": [{"model": "a100-40gb", "minors": [5]}]}


def test_placements_are_reported_in_two_calls(simulate: Simulate) -> None:
    nvml, gpu = simulate(OFF).opened()
    count = ctypes.c_uint(0)
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, 9, None, ctypes.byref(count))
    array = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(gpu, 9, array, ctypes.byref(count))
    assert [(one.start, one.size) for one in array] == [(0, 4), (4, 4)]


FULL, WRONG, FREE = Code.INSUFFICIENT_RESOURCES, Code.INVALID_ARGUMENT, Code.SUCCESS
PLACES: Mapping[str, tuple[list[tuple[int, int, int]], tuple[int, int, int], Code]] = {
    "same place": ([(19, 3, 1)], (19, 3, 1), FULL),
    "within a larger one": ([(9, 0, 4)], (19, 2, 1), FULL),
    "beside it": ([(9, 0, 4)], (19, 4, 1), FREE),
    "full": ([(9, 0, 4), (9, 4, 4)], (19, 4, 1), FULL),
    "4g and 3g": ([(5, 0, 4)], (9, 4, 4), FREE),
    "one media engine": ([(20, 0, 1)], (20, 1, 1), FULL),
    "four of double memory": ([(15, 0, 2), (15, 2, 2), (15, 4, 2)], (15, 6, 2), FREE),
    "seven compute slices are all there are": ([(5, 0, 4), (14, 4, 2), (19, 6, 1)], (19, 5, 1), FULL),
    "no such start": ([], (19, 7, 1), WRONG),
    "wrong size": ([], (9, 0, 2), WRONG),
    "no such profile": ([], (99, 0, 1), WRONG),
}
"""What exists, and whether there is room for another: profile, start and size of each."""


def test_a_place_is_given_once(simulate: Simulate, create: Create) -> None:
    rig = simulate(H100)
    nvml, gpu = rig.opened()
    for name, (before, wanted, code) in PLACES.items():
        made = [create(nvml, gpu, *one) for one in before]
        found = rig.code(lambda wanted=wanted, made=made: made.append(create(nvml, gpu, *wanted)))
        assert found == code, name
        for one in made:
            nvml.nvmlGpuInstanceDestroy(one)


def test_ids_are_the_lowest_free_and_uuids_follow_from_them(simulate: Simulate, create: Create) -> None:
    nvml, gpu = simulate(H100).opened()
    seen: list[str] = []
    for start in range(3):
        instance = create(nvml, gpu, 19, start, 1)
        compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
        info = nvml.nvmlComputeInstanceGetInfo(compute)
        assert (nvml.nvmlGpuInstanceGetInfo(instance).id, info.id) == (1, 0)
        seen.append(nvml.nvmlDeviceGetUUID(info.device))
        nvml.nvmlComputeInstanceDestroy(compute)
        nvml.nvmlGpuInstanceDestroy(instance)
    assert len(set(seen)) == 1
    whole = create(nvml, gpu, 0, 0, 8)
    assert nvml.nvmlGpuInstanceGetInfo(whole).id == 0


def test_handles_of_what_was_destroyed_are_of_no_use_although_its_ids_are_used_again(
    simulate: Simulate, create: Create
) -> None:
    rig = simulate(H100)
    nvml, gpu = rig.opened()
    instance = create(nvml, gpu, 19, 0, 1)
    compute = nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    device = nvml.nvmlComputeInstanceGetInfo(compute).device
    nvml.nvmlComputeInstanceDestroy(compute)
    assert rig.code(nvml.nvmlComputeInstanceDestroy, compute) == Code.NOT_FOUND
    assert rig.code(nvml.nvmlDeviceGetUUID, device) == Code.INVALID_ARGUMENT
    nvml.nvmlGpuInstanceDestroy(instance)
    create(nvml, gpu, 19, 0, 1)
    assert rig.code(nvml.nvmlGpuInstanceGetInfo, instance) == Code.NOT_FOUND


def test_compute_instances_share_a_gpu_instance(simulate: Simulate, create: Create) -> None:
    rig = simulate(H100)
    nvml, gpu = rig.opened()
    instance = create(nvml, gpu, 9, 0, 4)
    info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 1, 0)
    assert (info.id, info.sliceCount, info.instanceCount) == (1, 2, 1)
    assert rig.code(nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo, instance, 4, 0) == Code.NOT_SUPPORTED
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, 1)
    nvml.nvmlGpuInstanceCreateComputeInstance(instance, 0)
    assert rig.code(nvml.nvmlGpuInstanceCreateComputeInstance, instance, 0) == Code.INSUFFICIENT_RESOURCES
    assert rig.code(nvml.nvmlGpuInstanceCreateComputeInstance, instance, 4) == Code.INVALID_ARGUMENT
    count, array = ctypes.c_uint(0), (nvml.c_nvmlComputeInstance_t * 3)()
    nvml.nvmlGpuInstanceGetComputeInstances(instance, 0, array, ctypes.byref(count))
    assert [nvml.nvmlComputeInstanceGetInfo(one).id for one in array[: count.value]] == [1]
    assert rig.code(nvml.nvmlGpuInstanceGetComputeInstanceById, instance, 7) == Code.NOT_FOUND


def test_ampere_changes_its_mode_at_the_next_reset_and_tells_no_profiles_before(simulate: Simulate) -> None:
    rig = simulate(A100)
    nvml, gpu = rig.opened()
    assert nvml.nvmlDeviceGetFieldValues(gpu, [184])[0].value.uiVal == 0
    assert rig.code(nvml.nvmlDeviceGetGpuInstanceProfileInfo, gpu, 0) == Code.NOT_SUPPORTED
    assert nvml.nvmlDeviceSetMigMode(gpu, 1) == Code.RESET_REQUIRED
    assert nvml.nvmlDeviceGetMigMode(gpu) == [0, 1]
    rig.inject.reset(5, force=True)
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetMigMode(gpu) == [1, 1]
    assert nvml.nvmlDeviceGetGpuInstanceProfileInfo(gpu, 0).name == "MIG 1g.5gb"


@pytest.mark.parametrize(("scenario", "kept"), [(A100, [1, 1]), (H100, [0, 0])], ids=["Ampere", "Hopper"])
def test_after_a_reboot_instances_are_gone_and_only_ampere_keeps_its_mode(
    simulate: Simulate, create: Create, scenario: dict[str, Any], kept: list[int]
) -> None:
    rig = simulate({"gpus": [scenario["gpus"][0] | {"mig": True}]})
    nvml, gpu = rig.opened()
    create(nvml, gpu, 19, 0, 1)
    rig.inject.reboot()
    assert rig.code(nvml.nvmlDeviceGetUUID, gpu) == Code.UNINITIALIZED
    nvml, gpu = rig.opened()
    assert nvml.nvmlDeviceGetMigMode(gpu) == kept
    rig.inject.set_mig_mode(5, True, force=True)
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    assert rig.code(nvml.nvmlDeviceGetGpuInstanceById, gpu, 1) == Code.NOT_FOUND


def test_in_mig_mode_there_is_no_utilisation_of_the_gpu_no_nvlink_and_no_compute_mode(simulate: Simulate) -> None:
    rig = simulate("hgx-h100")
    nvml, gpu = rig.opened()
    assert nvml.nvmlDeviceGetUtilizationRates(gpu).gpu == 0
    assert nvml.nvmlDeviceGetNvLinkState(gpu, 0) == 1
    nvml.nvmlDeviceSetMigMode(gpu, 1)
    gpu = nvml.nvmlDeviceGetHandleByIndex(0)
    assert rig.code(nvml.nvmlDeviceGetUtilizationRates, gpu) == Code.NOT_SUPPORTED
    assert rig.code(nvml.nvmlDeviceSetComputeMode, gpu, 3) == Code.NOT_SUPPORTED
    assert nvml.nvmlDeviceGetNvLinkState(gpu, 0) == 0
