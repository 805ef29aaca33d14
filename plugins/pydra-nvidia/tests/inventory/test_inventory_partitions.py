"""What is published of partitions: offered, made for claims, made by somebody else."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pydra import Capacity, CounterConsumption, Version, parse_quantity
from pydra_nvidia.hardware_types import Placement

H100_COUNTERS = {
    "multiprocessors": 132,
    "copy-engines": 8,
    "decoders": 7,
    "encoders": 0,
    "jpeg-engines": 7,
    "ofa-engines": 1,
    "memory": f"{81152 * 1024}Ki",
    **{f"memory-slice-{number}": 1 for number in range(8)},
}


def test_a_partition_to_be_made_is_described_as_nvidias_driver_does(boards: Any) -> None:
    gpu = boards.gpu(addressing=2)
    device = boards.devices(boards.reading(gpu), dynamic_mig=True)["gpu-0-mig-2g20gb-14-4"]
    assert device.attributes == {
        "type": "mig",
        "parentUUID": gpu.uuid,
        "profile": "2g.20gb",
        "productName": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": Version("9.0.0"),
        "driverVersion": Version("580.105.8"),
        "cudaDriverVersion": Version("13.0.0"),
        "addressingMode": "ATS",
        "resource.kubernetes.io/pciBusID": "0000:10:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:0c",
        "resource.kubernetes.io/numaNode": 0,
    }
    assert device.capacity == {
        "multiprocessors": Capacity(32),
        "copyEngines": Capacity(2),
        "decoders": Capacity(2),
        "encoders": Capacity(0),
        "jpegEngines": Capacity(2),
        "ofaEngines": Capacity(0),
        "memory": Capacity(f"{20096 * 1024}Ki"),
    }
    assert device.consumes_counters == (
        CounterConsumption(
            counter_set="gpu-0-counter-set",
            counters={
                "multiprocessors": 32,
                "copy-engines": 2,
                "decoders": 2,
                "encoders": 0,
                "jpeg-engines": 2,
                "ofa-engines": 0,
                "memory": f"{20096 * 1024}Ki",
                "memory-slice-4": 1,
                "memory-slice-5": 1,
            },
        ),
    )


def test_the_whole_gpu_has_the_maxima_of_its_profiles_and_draws_everything(boards: Any) -> None:
    inventory = boards.inventory(boards.reading(boards.gpu()), dynamic_mig=True)
    whole, (counters,) = inventory.devices[0], inventory.counter_sets
    assert {name: one.value for name, one in whole.capacity.items()} == {
        "multiprocessors": 132,
        "copyEngines": 8,
        "decoders": 7,
        "encoders": 0,
        "jpegEngines": 7,
        "ofaEngines": 1,
        "memory": f"{81152 * 1024}Ki",
    }
    assert counters.counters == H100_COUNTERS
    assert whole.consumes_counters == (CounterConsumption(counter_set="gpu-0-counter-set", counters=H100_COUNTERS),)


def test_small_profiles_come_first_and_places_that_block_little_before_others(boards: Any) -> None:
    names = list(boards.devices(boards.reading(boards.gpu()), dynamic_mig=True))
    assert names == [
        "gpu-0",
        *(f"gpu-0-mig-1g10gb-19-{start}" for start in (6, 4, 5, 0, 1, 2, 3)),
        *(f"gpu-0-mig-1g10gb-me-20-{start}" for start in (6, 4, 5, 0, 1, 2, 3)),
        *(f"gpu-0-mig-1g20gb-15-{start}" for start in (6, 4, 0, 2)),
        *(f"gpu-0-mig-2g20gb-14-{start}" for start in (4, 0, 2)),
        *(f"gpu-0-mig-3g40gb-9-{start}" for start in (4, 0)),
        "gpu-0-mig-4g40gb-5-0",
        "gpu-0-mig-7g80gb-0-0",
    ]


def test_a_100s_smaller_memory_comes_before_its_larger_though_the_name_sorts_after(boards: Any) -> None:
    names = list(boards.devices(boards.reading(boards.gpu("A100", mig=True)), dynamic_mig=True))
    assert names[0].startswith("gpu-0-mig-1g5gb-19")
    assert names[14].startswith("gpu-0-mig-1g10gb-15")


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_a_partition_that_somebody_made_is_published_as_it_is(boards: Any, dynamic: bool) -> None:
    gpu = boards.gpu(mig=True, made=[(9, 4)])
    device = boards.devices(boards.reading(gpu), dynamic_mig=dynamic)["gpu-0-mig-3g40gb-9-4"]
    assert device.attributes["uuid"] == "MIG-1-0"
    assert device.attributes["profile"] == "3g.40gb"
    slices = {name: one.value for name, one in device.capacity.items() if name.startswith("memorySlice")}
    assert slices == {f"memorySlice{number}": 1 for number in (4, 5, 6, 7)}
    assert device.capacity["multiprocessors"].value == 60
    assert device.consumes_counters == ()


def test_nothing_that_overlaps_a_foreign_partition_is_offered(boards: Any) -> None:
    gpu = boards.gpu(mig=True, made=[(9, 4)])
    inventory = boards.inventory(boards.reading(gpu), dynamic_mig=True)
    names = [device.name for device in inventory.devices]
    assert sorted(names) == sorted(
        [
            *(f"gpu-0-mig-1g10gb-19-{start}" for start in range(4)),
            *(f"gpu-0-mig-1g10gb-me-20-{start}" for start in range(4)),
            *(f"gpu-0-mig-1g20gb-15-{start}" for start in (0, 2)),
            *(f"gpu-0-mig-2g20gb-14-{start}" for start in (0, 2)),
            "gpu-0-mig-3g40gb-9-0",
            "gpu-0-mig-3g40gb-9-4",
            "gpu-0-mig-4g40gb-5-0",
        ]
    )


def test_what_a_foreign_partition_took_is_gone_from_the_counters(boards: Any) -> None:
    gpu = boards.gpu(mig=True, made=[(20, 6)])
    inventory = boards.inventory(boards.reading(gpu), dynamic_mig=True)
    (counters,) = inventory.counter_sets
    assert counters.counters == {
        **H100_COUNTERS,
        "multiprocessors": 116,
        "copy-engines": 7,
        "decoders": 6,
        "jpeg-engines": 6,
        "ofa-engines": 0,
        "memory": f"{(81152 - 9984) * 1024}Ki",
        "memory-slice-6": 0,
    }


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("compute", [(), (1, 1), (2,)], ids=["none", "two", "one that does not fill it"])
def test_a_foreign_partition_without_one_compute_instance_that_fills_it_cannot_be_had(
    boards: Any, compute: tuple[int, ...], dynamic: bool
) -> None:
    gpu = boards.gpu(mig=True, made=[boards.instance("H100", 9, 4, compute=compute)])
    names = list(boards.devices(boards.reading(gpu), dynamic_mig=dynamic))
    assert "gpu-0-mig-3g40gb-9-4" not in names
    assert "gpu-0" not in names
    assert bool(names) is dynamic
    assert not any(name.endswith(("-4", "-5", "-6")) for name in names)


def test_a_foreign_partition_of_a_profile_that_the_driver_does_not_tell_blocks_its_place_only(boards: Any) -> None:
    stranger = replace(boards.instance("H100", 9, 4), profile=77)
    names = list(boards.devices(boards.reading(boards.gpu(mig=True, made=[stranger])), dynamic_mig=True))
    assert "gpu-0-mig-4g40gb-5-0" in names
    assert "gpu-0-mig-3g40gb-9-4" not in names


def test_a_gpu_that_is_wholly_foreign_has_its_partition_and_no_counters(boards: Any) -> None:
    inventory = boards.inventory(boards.reading(boards.gpu(mig=True, made=[(0, 0)])), dynamic_mig=True)
    assert [device.name for device in inventory.devices] == ["gpu-0-mig-7g80gb-0-0"]
    assert inventory.counter_sets == ()


@pytest.mark.parametrize("model", ["H100", "A30"])
@given(data=st.data())
def test_slices_stay_the_same_when_partitions_are_made_and_destroyed_for_claims(
    boards: Any, model: str, data: st.DataObject
) -> None:
    ampere = model.startswith("A")
    places = [(profile.id, place) for profile in boards.profiles(model) for place in profile.placements]
    made: list[tuple[int, Placement]] = []
    for place in data.draw(st.permutations(places)):
        if not any(place[1].overlaps(other) for _, other in made) and data.draw(st.booleans()):
            made.append(place)
    compute = data.draw(st.sampled_from([None, ()]))
    empty = boards.gpu(model, mig=ampere)
    instances = [
        boards.instance(model, profile, place.start, id_=number, compute=compute)
        for number, (profile, place) in enumerate(made)
    ]
    full = boards.gpu(model, mig=ampere or bool(made), made=instances)
    owned = {(full.uuid, place) for _, place in made}
    other = boards.gpu(model, minor=1, mig=ampere)
    before = boards.inventory(boards.reading(empty, other), dynamic_mig=True, vfio=True)
    begun = boards.inventory(boards.reading(empty, other), owned=owned, dynamic_mig=True, vfio=True)
    after = boards.inventory(boards.reading(full, other), owned=owned, dynamic_mig=True, vfio=True)
    assert before == begun == after


@given(data=st.data())
def test_beside_foreign_partitions_only_what_the_gpu_can_still_hold_is_given(boards: Any, data: st.DataObject) -> None:
    profiles = {profile.id: profile for profile in boards.profiles("H100")}
    places = [(profile.id, place) for profile in profiles.values() for place in profile.placements]

    def draw_places(beside: list[tuple[int, Placement]]) -> list[tuple[int, Placement]]:
        chosen: list[tuple[int, Placement]] = []
        for place in data.draw(st.permutations(places)):
            taken = [*beside, *chosen]
            fits = not any(place[1].overlaps(other) for _, other in taken)
            if (
                fits
                and [id_ for id_, _ in taken].count(place[0]) < profiles[place[0]].most
                and data.draw(st.booleans())
            ):
                chosen.append(place)
        return chosen

    foreign = draw_places([])
    ours = draw_places(foreign)
    made = [(id_, place.start) for id_, place in foreign]
    inventory = boards.inventory(boards.reading(boards.gpu(mig=bool(made), made=made)), dynamic_mig=True)
    offered = {device.name: device for device in inventory.devices}
    left = {name: parse_quantity(value) for one in inventory.counter_sets for name, value in one.counters.items()}
    for id_, place in ours:
        spelling = profiles[id_].name.replace(".", "").replace("+", "-")
        device = offered[f"gpu-0-mig-{spelling}-{id_}-{place.start}"]
        for consumption in device.consumes_counters:
            for name, value in consumption.counters.items():
                left[name] -= parse_quantity(value)
    assert all(value >= 0 for value in left.values())
    assert ("gpu-0" in offered) is (not foreign)


def test_a_profile_whose_places_are_not_known_is_published_where_it_exists_beside_others_on_demand(boards: Any) -> None:
    gpu = boards.gpu(mig=True, made=[(14, 2)])
    profiles = tuple(replace(one, placements=() if one.id == 14 else one.placements) for one in gpu.mig.profiles)
    gpu = replace(gpu, mig=replace(gpu.mig, profiles=profiles))
    devices = boards.devices(boards.reading(gpu), dynamic_mig=True)
    assert [name for name in devices if "-2g20gb-" in name] == ["gpu-0-mig-2g20gb-14-2"]
    assert "uuid" in devices["gpu-0-mig-2g20gb-14-2"].attributes
    assert "gpu-0-mig-3g40gb-9-4" in devices
    assert "gpu-0-mig-3g40gb-9-0" not in devices
