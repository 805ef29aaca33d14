"""Slices of a pool: what is in them and how devices are distributed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pydra.devices import (
    Capacity,
    CapacityRange,
    CounterConsumption,
    CounterSet,
    Device,
    NodeAllocatable,
    Pool,
    RequestPolicy,
    Taint,
    TaintEffect,
    Version,
)
from pydra.slices.build import build_device, build_generate_name, build_wanted, parse_index

SPECIAL = (Taint(key="example.com/sick"),)


def sizes(*devices: Device, **fields: Any) -> list[tuple[int, int]]:
    wanted = build_wanted(Pool(name="n", devices=devices, **fields), driver="gpu.example.com", node="n")
    return [(len(content.get("sharedCounters", ())), len(content.get("devices", ()))) for content in wanted.slices]


def plain(count: int, start: int = 0) -> tuple[Device, ...]:
    return tuple(Device(name=f"gpu-{number}") for number in range(start, start + count))


def test_a_device_has_all_its_fields_in_the_apis_form() -> None:
    device = Device(
        name="gpu-0",
        attributes={"z": True, "a": 5, "b": "x", "v": Version("1.2.3"), "l": ("p", "q"), "w": (Version("1.0.0"),)},
        capacity={
            "memory": Capacity("81920Mi", RequestPolicy(default="1Gi", valid_range=CapacityRange(min="1Gi", step=512))),
            "slots": Capacity(4, RequestPolicy(default=1, valid_values=(1, 2, "4000m"))),
        },
        consumes_counters=(CounterConsumption(counter_set="gpu", counters={"memory": "1024Mi"}),),
        allow_multiple_allocations=True,
        taints=(Taint(key="k", value="v", effect=TaintEffect.NO_EXECUTE, time_added="2026-01-01T01:00:00.9+01:00"),),
        binds_to_node=True,
        binding_conditions=("ready",),
        binding_failure_conditions=("failed",),
    )
    assert build_device(device) == {
        "name": "gpu-0",
        "attributes": {
            "a": {"int": 5},
            "b": {"string": "x"},
            "l": {"strings": ["p", "q"]},
            "v": {"version": "1.2.3"},
            "w": {"versions": ["1.0.0"]},
            "z": {"bool": True},
        },
        "capacity": {
            "memory": {
                "value": "80Gi",
                "requestPolicy": {"default": "1Gi", "validRange": {"min": "1Gi", "step": "512"}},
            },
            "slots": {"value": "4", "requestPolicy": {"default": "1", "validValues": ["1", "2", "4"]}},
        },
        "consumesCounters": [{"counterSet": "gpu", "counters": {"memory": {"value": "1Gi"}}}],
        "allowMultipleAllocations": True,
        "taints": [{"key": "k", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}],
        "bindsToNode": True,
        "bindingConditions": ["ready"],
        "bindingFailureConditions": ["failed"],
    }
    assert build_device(Device(name="bare")) == {"name": "bare"}


def test_a_taints_time_has_a_year_of_four_digits() -> None:
    (taint,) = build_device(Device(name="a", taints=(Taint(key="k", time_added="0999-01-01T00:00:00Z"),)))["taints"]
    assert taint["timeAdded"] == "0999-01-01T00:00:00Z"


def test_what_a_device_uses_of_the_node_is_in_the_form_of_the_release() -> None:
    resources = {
        "cpu": NodeAllocatable(capacity="cores"),
        "memory": NodeAllocatable(capacity="cores", multiplier="1024Mi", per_pod="64Mi", per_container=0),
        "hugepages-2Mi": NodeAllocatable(multiplier="2048Ki"),
    }
    device = Device(name="d", capacity={"cores": Capacity(4)}, node_allocatable=resources)
    assert build_device(device)["nodeAllocatableResources"] == {
        "cpu": {"mapping": {"capacityKey": "cores", "capacityMultiplier": "1"}},
        "hugepages-2Mi": {"mapping": {"deviceMultiplier": "2Mi"}},
        "memory": {
            "mapping": {"capacityKey": "cores", "capacityMultiplier": "1Gi"},
            "overhead": {"perPod": "64Mi", "perContainer": "0"},
        },
    }
    assert build_device(device, has_mappings=True)["nodeAllocatableResourceMappings"] == {
        "cpu": {"capacityKey": "cores", "allocationMultiplier": "1"},
        "hugepages-2Mi": {"allocationMultiplier": "2Mi"},
        "memory": {"capacityKey": "cores", "allocationMultiplier": "1Gi"},
    }


def test_only_slices_with_partitions_name_the_attribute_that_has_their_type() -> None:
    consumption = CounterConsumption(counter_set="gpu", counters={"m": 1}, compatibility_groups=("mig", "any"))
    part = Device(name="part", attributes={"profile": "1g"}, consumes_counters=(consumption,))
    pool = Pool(
        name="n",
        devices=(*plain(128), part),
        counter_sets=(CounterSet(name="gpu", counters={"m": 1}),),
        partition_type="profile",
    )
    counters, whole, parts = build_wanted(pool, driver="gpu.example.com", node="n").slices
    assert "partitionTypeAttribute" not in {**counters, **whole}
    assert parts["partitionTypeAttribute"] == "gpu.example.com/profile"
    assert parts["devices"][0]["consumesCounters"][0]["compatibilityGroups"] == ["mig", "any"]
    own = build_wanted(replace(pool, partition_type="example.com/kind"), driver="gpu.example.com", node="n").slices
    assert own[2]["partitionTypeAttribute"] == "example.com/kind"


SPLITS: dict[str, tuple[tuple[Device, ...], list[int]]] = {
    "none": ((), [0]),
    "one slice full": (plain(128), [128]),
    "one too many": (plain(129), [128, 1]),
    "a taint at the end of 64": ((*plain(63), Device(name="t", taints=SPECIAL)), [64]),
    "a taint after 64": ((*plain(64), Device(name="t", taints=SPECIAL)), [64, 1]),
    "a taint first": ((Device(name="t", taints=SPECIAL), *plain(127)), [64, 64]),
    "a taint late": ((*plain(130), Device(name="t", taints=SPECIAL)), [128, 3]),
    "a list attribute": ((Device(name="l", attributes={"a": (1,)}), *plain(64)), [64, 1]),
    "consumed counters": (
        (Device(name="p", consumes_counters=(CounterConsumption(counter_set="c", counters={"m": 1}),)), *plain(64)),
        [64, 1],
    ),
    "large devices": (
        tuple(
            Device(name=f"gpu-{n}", attributes={f"{'d' * 55}.com{n}/{'a' * 30}{m}": "x" * 64 for m in range(32)})
            for n in range(128)
        ),
        [128],
    ),
}


@pytest.mark.parametrize(("devices", "expected"), SPLITS.values(), ids=SPLITS)
def test_devices_fill_slices_up_to_the_limits(devices: tuple[Device, ...], expected: list[int]) -> None:
    assert sizes(*devices) == [(0, count) for count in expected]


def test_a_slice_stays_well_below_what_etcd_takes() -> None:
    policy = RequestPolicy(default=2**60, valid_values=tuple(2**60 + n for n in range(10)))
    capacity = {f"{'d' * 55}.com/{'a' * 30}{n:02}": Capacity(2**62, policy) for n in range(32)}
    devices = tuple(Device(name=f"gpu-{n}", capacity=capacity, allow_multiple_allocations=True) for n in range(128))
    wanted = build_wanted(Pool(name="n", devices=devices), driver="gpu.example.com", node="n")
    assert [len(content["devices"]) for content in wanted.slices] == [75, 53]
    assert all(len(msgspec.json.encode(content)) < 1_010_000 for content in wanted.slices)


def test_counter_sets_come_first_eight_to_a_slice() -> None:
    sets = tuple(CounterSet(name=f"c{n}", counters={"m": n}) for n in range(17))
    assert sizes(*plain(1), counter_sets=sets) == [(8, 0), (8, 0), (1, 0), (0, 1)]
    assert sizes(counter_sets=sets[:1]) == [(1, 0)]


@given(st.lists(st.booleans(), max_size=300))
def test_every_device_is_in_one_slice_in_its_order_and_no_slice_breaks_a_limit(special: list[bool]) -> None:
    devices = tuple(Device(name=f"d{n}", taints=SPECIAL if one else ()) for n, one in enumerate(special))
    wanted = build_wanted(Pool(name="n", devices=devices), driver="d", node="n")
    assert wanted == build_wanted(Pool(name="n", devices=devices), driver="d", node="n")
    names = [device["name"] for content in wanted.slices for device in content["devices"]]
    assert names == [device.name for device in devices]
    for content in wanted.slices:
        advanced = any("taints" in device for device in content["devices"])
        assert len(content["devices"]) <= (64 if advanced else 128)


@pytest.mark.parametrize(
    ("index", "count", "text"),
    [
        (0, 1, "00000"),
        (10, 11, "0000a"),
        (100_000, 100_001, "186a0"),
        (0xFFFFF, 0x100000, "fffff"),
        (1_048_576, 1_048_577, "100000"),
        (0, 1_048_577, "000000"),
    ],
)
def test_an_index_is_hexadecimal_and_wide_enough_for_all(index: int, count: int, text: str) -> None:
    name = build_generate_name(index, count, "gpu.example.com", "node1")
    assert name == f"{text}-gpu.example.com-node1-"
    assert parse_index(name + "x7k2p", count) == index


@pytest.mark.parametrize(
    "name",
    ["", "00000", "node1-gpu", "0000-x", "000000-x", "0000g-x", "0000A-x", "-0000-x", " 00000-x", "fffff0-x"],
)
def test_a_name_without_an_index_of_the_width_has_none(name: str) -> None:
    assert parse_index(name, 1) is None


@given(st.integers(1, 2**24), st.data())
def test_every_index_of_a_pool_is_found_again(count: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, count - 1))
    name = build_generate_name(index, count, "d", "n")
    assert parse_index(name, count) == index
    assert len(name.split("-")[0]) >= 5
