"""The devices that a scenario makes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra import HealthStatus, Inventory, Version
from pydra_sim.hardware import build_inventory, find_parts
from pydra_sim.scenario import Group, Scenario


def inventory(*groups: Group, **scenario: object) -> Inventory:
    return build_inventory(Scenario(groups=groups, **scenario), unhealthy={}, unplugged=frozenset())  # type: ignore[arg-type]


def test_the_default_machine_has_eight_accelerators_on_two_numa_nodes() -> None:
    devices = inventory(Group()).devices
    nodes = Counter(device.attributes["resource.kubernetes.io/numaNode"] for device in devices)
    assert [device.name for device in devices] == [f"accel-{number}" for number in range(8)]
    assert nodes == {0: 4, 1: 4}


def test_an_accelerator_says_what_it_is() -> None:
    device = inventory(Group(memory=80, cores=100), driver_version="2.3.4").devices[5]
    assert device.attributes["type"] == "accelerator"
    assert device.attributes["index"] == 5
    assert device.attributes["driverVersion"] == Version("2.3.4")
    assert device.attributes["resource.kubernetes.io/pciBusID"] == "0000:45:00.0"
    assert device.attributes["resource.kubernetes.io/pcieRoot"] == "pci0000:01"
    assert device.capacity["memory"].value == "80Gi"
    assert device.capacity["cores"].value == 100


def test_identities_differ_between_accelerators_and_stay_the_same_between_reads() -> None:
    first, second = inventory(Group()), inventory(Group())
    assert first == second
    assert len({device.attributes["uuid"] for device in first.devices}) == 8


def test_partitions_and_the_whole_draw_from_the_counters_of_one_accelerator() -> None:
    found = inventory(Group(count=1, slices=4, partitions=(1, 2), memory=64, cores=128))
    assert [device.name for device in found.devices] == [
        "accel-0",
        "accel-0-1of4-0",
        "accel-0-1of4-1",
        "accel-0-1of4-2",
        "accel-0-1of4-3",
        "accel-0-2of4-0",
        "accel-0-2of4-2",
    ]
    (counters,) = found.counter_sets
    last = found.devices[-1]
    assert counters.counters == {"memory": "64Gi", "cores": 128, **{f"slice-{number}": 1 for number in range(4)}}
    assert last.consumes_counters[0].counters == {"memory": "32Gi", "cores": 64, "slice-2": 1, "slice-3": 1}
    assert last.attributes["parentUUID"] == found.devices[0].attributes["uuid"]
    assert "uuid" not in last.attributes


@given(
    st.integers(2, 16).flatmap(
        lambda slices: st.tuples(st.just(slices), st.sets(st.integers(1, slices - 1), min_size=1))
    )
)
def test_two_partitions_overlap_exactly_when_they_draw_from_the_same_slice(shape: tuple[int, set[int]]) -> None:
    slices, sizes = shape
    scenario = Scenario(groups=(Group(count=1, slices=slices, partitions=tuple(sizes), memory=slices, cores=slices),))
    parts = list(find_parts(scenario).values())
    for one in parts:
        for other in parts:
            taken = set(range(one.start, one.start + one.size)) & set(range(other.start, other.start + other.size))
            assert one.overlaps(other) == bool(taken)


def test_a_shared_accelerator_may_be_held_by_many_claims_in_steps() -> None:
    device = inventory(Group(count=1, shared=True)).devices[0]
    policy = device.capacity["memory"].policy
    assert device.allow_multiple_allocations
    assert policy is not None
    assert policy.default == "64Gi"
    assert policy.valid_range is not None
    assert policy.valid_range.step == "1Gi"


@pytest.mark.parametrize("name", ["accel-0", "accel-0-1of2-1"])
def test_what_ails_a_device_is_told_with_it(name: str) -> None:
    devices = inventory(Group(count=2, slices=2, partitions=(1,)), unhealthy={"accel-0": "too hot"}).devices
    health = {device.name: device.health for device in devices}
    assert health[name].status is HealthStatus.UNHEALTHY
    assert health[name].message == "too hot"
    assert health["accel-1"].status is HealthStatus.HEALTHY


def test_an_unplugged_accelerator_takes_its_partitions_and_counters_with_it() -> None:
    found = inventory(Group(count=2, slices=2, partitions=(1,)), unplugged=("accel-0",))
    assert [device.name for device in found.devices] == ["accel-1", "accel-1-1of2-0", "accel-1-1of2-1"]
    assert [counters.name for counters in found.counter_sets] == ["accel-1"]


def test_addresses_differ_on_a_machine_with_hundreds_of_accelerators() -> None:
    devices = inventory(Group(name="a", count=200), Group(name="b", count=200)).devices
    assert len({device.attributes["resource.kubernetes.io/pciBusID"] for device in devices}) == 400
