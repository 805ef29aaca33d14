"""How often NVML is asked for a handle by a UUID, for which it walks the MIG devices of all GPUs: as good as never."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pynvml
import pytest

from pydra_nvidia.hardware_types import Placement
from pydra_nvidia.nvml.mig_control import create_instance, destroy_instance, fill_instance, find_instance, set_mig_mode
from pydra_nvidia.nvml.pynvml_library import Nvml, use_library

LOOK_UP = "nvmlDeviceGetHandleByUUID"
PARTITIONED = """
gpus:
- {model: h100-80gb, count: 2, mig: true, instances: [{profile: 1g.10gb, start: 0}, {profile: 3g.40gb, start: 4}]}
"""


class Counting:
    """A library that counts the calls of each function."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._library, name)

        def call(*arguments: Any) -> Any:
            self.calls[name] += 1
            return function(*arguments)

        return call


def count() -> Counter[str]:
    """The calls of NVML from now on."""
    counting = Counting(pynvml.nvmlLib)
    use_library(pynvml, counting)
    return counting.calls


@pytest.fixture
def machine(node: Callable[[str], Any]) -> Any:
    return node(PARTITIONED)


async def test_numbers_of_gpus_and_partitions_are_measured_by_the_handles_of_the_last_reading(machine: Any) -> None:
    reading = await machine.hardware.read()
    calls = count()
    samples = await machine.samples(reading)
    assert len({one.device for one in samples if "mig" in one.device}) == 4
    assert (calls[LOOK_UP], calls["nvmlDeviceGetMemoryInfo"]) == (0, 6)


async def test_a_partition_that_is_gone_since_has_no_numbers_and_another_in_its_place_none_of_its(machine: Any) -> None:
    reading = await machine.hardware.read()
    machine.inject.destroy_mig(0, 0)
    machine.inject.create_mig(0, "1g.10gb", 1)
    calls = count()
    named = {one.device for one in await machine.samples(reading) if "mig" in one.device}
    assert named == {"gpu-0-mig-3g40gb-9-4", "gpu-1-mig-1g10gb-19-0", "gpu-1-mig-3g40gb-9-4"}
    assert calls[LOOK_UP] == 0


async def test_in_another_session_gpus_have_numbers_at_once_and_partitions_with_the_next_reading(machine: Any) -> None:
    reading = await machine.hardware.read()
    machine.session.close()
    assert {one.device for one in await machine.samples(reading)} == {"gpu-0", "gpu-1"}
    reading = await machine.hardware.read()
    assert len({one.device for one in await machine.samples(reading)}) == 6


async def test_a_partition_is_made_and_destroyed_without_a_look_up(machine: Any) -> None:
    uuid = (await machine.hardware.read()).gpus[0].uuid

    def work(nvml: Nvml) -> None:
        handle = create_instance(nvml, uuid, 19, Placement(1, 1))
        fill_instance(nvml, uuid, handle, 19)
        made = find_instance(nvml, uuid, 19, 1)
        assert made is not None
        assert len(made.compute) == 1
        destroy_instance(nvml, uuid, made)

    calls = count()
    await machine.session.run(work)
    assert (calls[LOOK_UP], calls["nvmlGpuInstanceDestroy"]) == (0, 1)


async def test_each_change_of_the_mode_costs_one_look_up(node: Callable[[str], Any]) -> None:
    machine = node("gpus: [{model: h100-80gb, count: 2}]\n")
    reading = await machine.hardware.read()
    gpu = reading.gpus[0]
    calls = count()
    await machine.session.run(lambda nvml: set_mig_mode(nvml, gpu.uuid, on=True))
    again = await machine.hardware.reread([gpu.minor])
    assert again.gpu(gpu.uuid).mig.enabled
    assert calls[LOOK_UP] == 1
    await machine.session.run(lambda nvml: set_mig_mode(nvml, gpu.uuid, on=False))
    assert await machine.hardware.reread([gpu.minor]) == reading
    assert calls[LOOK_UP] == 2


async def test_a_mode_that_somebody_else_changed_twice_between_two_readings_is_noticed(
    node: Callable[[str], Any],
) -> None:
    machine = node("gpus: [{model: h100-80gb}]\n")
    reading = await machine.hardware.read()
    (gpu,) = reading.gpus
    assert await machine.session.run(lambda nvml: nvml.epochs[gpu.uuid]) == 0
    machine.inject.set_mig_mode(0, True, force=True)
    machine.inject.set_mig_mode(0, False, force=True)
    assert await machine.hardware.reread([gpu.uuid]) == reading
    assert await machine.session.run(lambda nvml: nvml.epochs[gpu.uuid]) == 1
