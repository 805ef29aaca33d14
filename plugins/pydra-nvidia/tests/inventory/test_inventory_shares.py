"""Devices that several claims may hold."""

from __future__ import annotations

from typing import Any

import pytest

from pydra import Capacity, CapacityRange, RequestPolicy
from pydra_nvidia.settings import Shares

T4_MEMORY = f"{15 * 1024**2}Ki"


@pytest.mark.parametrize(
    ("how", "memory", "shares"),
    [
        (
            Shares.MEMORY,
            RequestPolicy(default=T4_MEMORY, valid_range=CapacityRange(min="1Mi", max=T4_MEMORY, step="1Mi")),
            None,
        ),
        (Shares.UNLIMITED, RequestPolicy(default=0, valid_range=CapacityRange(min=0, max=T4_MEMORY, step="1Mi")), None),
        (
            4,
            RequestPolicy(default=0, valid_range=CapacityRange(min=0, max=T4_MEMORY, step="1Mi")),
            Capacity(4, RequestPolicy(default=1, valid_range=CapacityRange(min=1, max=4, step=1))),
        ),
    ],
    ids=["memory", "unlimited", "a number"],
)
def test_the_policies_are_those_of_nvidias_driver(
    boards: Any, how: Shares | int, memory: RequestPolicy, shares: Capacity | None
) -> None:
    (device,) = boards.inventory(boards.reading(boards.gpu("T4")), consumable_shares=how).devices
    assert device.allow_multiple_allocations
    expected = {"memory": Capacity(T4_MEMORY, memory)} | ({"shares": shares} if shares else {})
    assert device.capacity == expected


def test_one_share_is_all_of_them_and_leaves_no_room_for_a_step(boards: Any) -> None:
    (device,) = boards.inventory(boards.reading(boards.gpu("T4")), consumable_shares=1).devices
    assert device.allow_multiple_allocations
    assert device.capacity["shares"] == Capacity(
        1, RequestPolicy(default=1, valid_range=CapacityRange(min=1, max=1, step=None))
    )


def test_memory_that_is_no_whole_number_of_steps_is_rounded_down(boards: Any) -> None:
    gpu = boards.gpu("T4", memory=(15 << 30) + 12345)
    (device,) = boards.inventory(boards.reading(gpu), consumable_shares=Shares.MEMORY).devices
    assert device.capacity["memory"].value == T4_MEMORY


@pytest.mark.parametrize(
    ("how", "shared", "capacities"),
    [(Shares.MEMORY, False, set()), (Shares.UNLIMITED, True, set()), (8, True, {"shares"})],
    ids=["memory", "unlimited", "a number"],
)
def test_a_gpu_whose_memory_is_not_reported_is_shared_by_number_or_freely(
    boards: Any, how: Shares | int, shared: bool, capacities: set[str]
) -> None:
    (device,) = boards.inventory(boards.reading(boards.gpu("T4", memory=None)), consumable_shares=how).devices
    assert device.allow_multiple_allocations is shared
    assert set(device.capacity) == capacities


def test_partitions_that_exist_are_shared_and_their_engines_do_not_end_the_sharing(boards: Any) -> None:
    reading = boards.reading(boards.gpu(mig=True, made=[(9, 0)]))
    (device,) = boards.inventory(reading, consumable_shares=Shares.UNLIMITED).devices
    assert device.allow_multiple_allocations
    for name, capacity in device.capacity.items():
        assert capacity.value == 0 or (capacity.policy is not None and capacity.policy.default == 0), name


@pytest.mark.parametrize("settings", [{"dynamic_mig": True}, {"vfio": True}], ids=["partitions", "passthrough"])
def test_what_draws_from_counters_is_not_shared(boards: Any, settings: dict[str, bool]) -> None:
    inventory = boards.inventory(boards.reading(boards.gpu()), consumable_shares=4, **settings)
    assert inventory.counter_sets
    assert not any(device.allow_multiple_allocations for device in inventory.devices)
    assert not any("shares" in device.capacity for device in inventory.devices)


def test_a_function_bound_to_vfio_is_not_shared(boards: Any) -> None:
    gpu = boards.gpu("T4")
    reading = boards.reading(gpu, gpus=(), functions={gpu.pci: boards.function(gpu, driver="vfio-pci")})
    (device,) = boards.inventory(reading, vfio=True, consumable_shares=4).devices
    assert not device.allow_multiple_allocations
