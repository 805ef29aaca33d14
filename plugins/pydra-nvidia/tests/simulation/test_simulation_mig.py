"""MIG of the simulated NVML obeys the rules of the hardware, through the unmodified SDK."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    ("before", "profile", "start", "size", "code"),
    [
        ([(19, 3, 1)], 19, 3, 1, Code.INSUFFICIENT_RESOURCES),
        ([(9, 0, 4)], 19, 2, 1, Code.INSUFFICIENT_RESOURCES),
        ([(9, 0, 4)], 19, 4, 1, Code.SUCCESS),
        ([(9, 0, 4), (9, 4, 4)], 19, 4, 1, Code.INSUFFICIENT_RESOURCES),
        ([(5, 0, 4)], 9, 4, 4, Code.SUCCESS),
        ([(20, 0, 1)], 20, 1, 1, Code.INSUFFICIENT_RESOURCES),
        ([(15, 0, 2), (15, 2, 2), (15, 4, 2)], 15, 6, 2, Code.SUCCESS),
        ([(5, 0, 4), (14, 4, 2), (19, 6, 1)], 19, 5, 1, Code.INSUFFICIENT_RESOURCES),
        ([], 19, 7, 1, Code.INVALID_ARGUMENT),
        ([], 9, 0, 2, Code.INVALID_ARGUMENT),
        ([], 99, 0, 1, Code.INVALID_ARGUMENT),
    ],
    ids=[
        "same place",
        "within a larger one",
        "beside it",
        "full",
        "4g and 3g",
        "one media engine",
        "four of double memory",
        "seven compute slices are all there are",
        "no such start",
        "wrong size",
        "no such profile",
    ],
)
def test_a_place_is_given_once(
    simulate: Simulate,
    create: Create,
    before: list[tuple[int, int, int]],
    profile: int,
    start: int,
    size: int,
    code: Code,
) -> None:
    rig = simulate(H100)
    nvml, gpu = rig.opened()
    for one in before:
        create(nvml, gpu, *one)
    assert rig.code(create, nvml, gpu, profile, start, size) == code


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
    assert (info.id, info.sliceCount, info.name, info.multiprocessorCount) == (1, 2, "MIG 2c.3g.40gb", 40)
    assert nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 2, 0).name == "MIG 3g.40gb"
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


PLACES = [(19, start, 1) for start in range(7)] + [
    (20, 0, 1),
    (20, 5, 1),
    (15, 2, 2),
    (15, 6, 2),
    (14, 0, 2),
    (14, 4, 2),
]
PLACES += [(9, 0, 4), (9, 4, 4), (5, 0, 4), (0, 0, 8)]
SLICES = {19: 1, 20: 1, 15: 1, 14: 2, 9: 3, 5: 4, 0: 7}


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(steps=st.lists(st.tuples(st.booleans(), st.sampled_from(PLACES)), max_size=30))
def test_whatever_is_made_and_destroyed_the_gpu_is_never_given_twice(
    simulate: Simulate, create: Create, steps: list[tuple[bool, tuple[int, int, int]]]
) -> None:
    rig = simulate(H100)
    rig.inject.set_mig_mode(5, True, force=True)
    nvml, gpu = rig.opened()
    held: dict[tuple[int, int, int], Any] = {}
    for make, place in steps:
        if make:
            clash = any(one[1] < place[1] + place[2] and place[1] < one[1] + one[2] for one in held)
            slices = sum(SLICES[one[0]] for one in held) + SLICES[place[0]]
            media = place[0] == 20 and any(one[0] == 20 for one in held)
            if clash or slices > 7 or media:
                assert rig.code(create, nvml, gpu, *place) == Code.INSUFFICIENT_RESOURCES
            else:
                held[place] = create(nvml, gpu, *place)
        elif place in held:
            nvml.nvmlGpuInstanceDestroy(held.pop(place))
    ids = [nvml.nvmlGpuInstanceGetInfo(one).id for one in held.values()]
    assert len(set(ids)) == len(held)
