"""What of a GPU a scheduler can give out at once: partitions of one mode, and never of two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import product

import pytest

from amd_values import gpu_of
from pydra import CounterConsumption
from pydra_amd.devices import Offered
from pydra_amd.inventory.counters import build_consumption, build_counter_set
from pydra_amd.models import MODELS, list_modes

GPUS = {one.name: gpu_of(one.device) for one in MODELS if one.xccs > 1}


def offer(name: str) -> list[Offered]:
    """All modes with all memory modes, which is the most that a GPU can offer."""
    gpu = GPUS[name]
    return [
        Offered(name=f"{mode}-{index}", gpu=gpu, mode=mode, index=index, count=count, chosen=True)
        for mode, count in list_modes(gpu).items()
        for index in range(count)
    ]


def fits(devices: Iterable[Offered], among: list[Offered]) -> bool:
    room = build_counter_set(among).counters
    taken: Counter[str] = Counter()
    for one in devices:
        consumption: CounterConsumption = build_consumption(one, among)
        taken.update({name: int(value) for name, value in consumption.counters.items()})
    return all(taken[name] <= int(room[name]) for name in taken)


@pytest.mark.parametrize("name", GPUS)
def test_all_partitions_of_a_mode_fit_and_two_of_different_modes_never(name: str) -> None:
    devices = offer(name)
    for mode in {one.mode for one in devices}:
        assert fits([one for one in devices if one.mode == mode], devices)
    for one, other in product(devices, devices):
        if one.mode != other.mode:
            assert not fits([one, other], devices), (one.name, other.name)


@pytest.mark.parametrize("name", GPUS)
def test_the_api_has_room_for_the_counters_of_a_gpu(name: str) -> None:
    assert len(build_counter_set(offer(name)).counters) <= 32  # the API's limit
