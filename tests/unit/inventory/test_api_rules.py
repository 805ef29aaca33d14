"""The API's rules for devices: one table of what is refused, and the embedded server as second opinion."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from pydra.api_name_formats import is_driver_name, is_qualified_name
from pydra.devices import (
    Capacity,
    CapacityRange,
    CounterConsumption,
    CounterSet,
    Device,
    NodeAllocatable,
    RequestPolicy,
    Taint,
    Version,
)
from pydra.inventory.api_rules import check_counter_set, check_device
from pydra.slices.build import build_device
from pydra_dev.api.errors import StatusError
from pydra_dev.api.feature_gates import build_gates
from pydra_dev.api.kinds import KINDS
from pydra_dev.apiserver.store import Store
from pydra_dev.apiserver.verbs import Api

SLICES = next(kind for kind in KINDS if kind.plural == "resourceslices")


def device(**fields: Any) -> Device:
    return Device(**{"name": "gpu-0", **fields})


def capacity(value: int | str, **policy: Any) -> Device:
    return device(
        capacity={"memory": Capacity(value, RequestPolicy(**policy) if policy else None)},
        allow_multiple_allocations=bool(policy),
    )


def grouped(*groups: str) -> Device:
    return device(
        consumes_counters=(CounterConsumption(counter_set="a", counters={"c": 1}, compatibility_groups=groups),)
    )


def using(name: str = "cpu", *, shared: bool = True, **fields: Any) -> Device:
    """A device with 8 slots that uses this of the node."""
    resources = {name: NodeAllocatable(**fields)}
    return device(capacity={"slots": Capacity(8)}, allow_multiple_allocations=shared, node_allocatable=resources)


def limits(low: int | str, high: int | str | None = None, step: int | str | None = None) -> CapacityRange:
    return CapacityRange(min=low, max=high, step=step)


GOOD = {
    "a bare device": device(),
    "a name of 63 bytes": device(name="a" * 63),
    "every kind of attribute": device(
        attributes={
            "text": "x" * 64,
            "flag": False,
            "number": -(2**63),
            "version": Version("1.2.3-rc.1+build.5"),
            "resource.kubernetes.io/pcieRoot": "pci0000:00",
            "list": ("a", "b"),
            "_under": (1, 2),
        }
    ),
    "thirty-two attributes and capacities": device(
        attributes={f"a{n}": n for n in range(16)}, capacity={f"c{n}": Capacity(n) for n in range(16)}
    ),
    "a list of 48 values": device(attributes={"list": tuple(range(48))}),
    "sixteen taints": device(taints=tuple(Taint(key=f"example.com/t{n}") for n in range(16))),
    "a taint with a time": device(taints=(Taint(key="t", value="a.b-c", time_added="2026-01-02T03:04:05Z"),)),
    "two counter sets of 32 counters": device(
        consumes_counters=tuple(
            CounterConsumption(counter_set=name, counters={f"c{n}": n for n in range(32)}) for name in "ab"
        )
    ),
    "two compatibility groups": grouped("mig", "Any text!"),
    "binding conditions": device(
        binding_conditions=tuple(f"example.com/c{n}" for n in range(4)), binding_failure_conditions=("example.com/f",)
    ),
    "a policy with values": capacity("80Gi", default="10Gi", valid_values=("10Gi", "20480Mi", "80Gi")),
    "a policy with a range": capacity("80Gi", default="2Gi", valid_range=limits("1Gi", "80Gi", "1Gi")),
    "a policy with steps without an end": capacity(9, default=3, valid_range=limits(1, step=2)),
    "a policy with an open range": capacity(8, default=2, valid_range=limits(1)),
    "a policy with only a default": capacity(8, default=2),
    "a share of the node's CPUs": using(capacity="slots"),
    "memory for each slot": using("memory", capacity="slots", multiplier="1Gi"),
    "huge pages for each device": using("hugepages-2Mi", shared=False, multiplier="512Mi"),
    "memory besides": using("memory", per_pod="0", per_container="100Mi"),
}

BAD = {
    "a name in capitals": (device(name="GPU"), "name 'GPU' must be a DNS label"),
    "an empty name": (device(name=""), "must be a DNS label"),
    "a name of 64 bytes": (device(name="a" * 64), "must be a DNS label"),
    "a name with a newline": (device(name="gpu\n"), "must be a DNS label"),
    "a name with a path": (device(name="../x"), "must be a DNS label"),
    "33 attributes and capacities": (
        device(attributes={f"a{n}": n for n in range(17)}, capacity={f"c{n}": Capacity(n) for n in range(16)}),
        "33 attributes and capacities; at most 32",
    ),
    "49 values": (device(attributes={"list": tuple(range(48)), "one": 1}), "49 attribute values"),
    "an attribute's name with a dash": (device(attributes={"a-b": 1}), "attribute 'a-b': the name must be"),
    "an attribute's name of 33 bytes": (device(attributes={"a" * 33: 1}), "the name must be"),
    "an attribute's empty domain": (device(attributes={"/a": 1}), "the name must be"),
    "an attribute's domain of 64 bytes": (device(attributes={"a" * 60 + ".com/a": 1}), "the name must be"),
    "a capacity's name": (device(capacity={"1st": Capacity(1)}), "capacity '1st': the name must be"),
    "a long text": (device(attributes={"a": "ä" * 33}), "a string of 66 bytes; at most 64"),
    "a lone surrogate": (device(attributes={"a": "\ud800"}), "not valid Unicode"),
    "a number over 64 bits": (device(attributes={"a": 2**63}), "does not fit in 64 bits"),
    "a version with a v": (device(attributes={"a": Version("v1.2.3")}), "'v1.2.3' is not a semantic version"),
    "a version of two numbers": (device(attributes={"a": Version("1.2")}), "not a semantic version"),
    "a version with a leading zero": (device(attributes={"a": Version("1.02.3")}), "not a semantic version"),
    "an empty list": (device(attributes={"a": ()}), "a list must not be empty"),
    "a mixed list": (device(attributes={"a": (1, "b")}), "all elements of a list must have one type"),
    "a list of bools and ints": (device(attributes={"a": (1, True)}), "all elements of a list must have one type"),
    "a capacity that is no quantity": (capacity("80 GB"), "'80 GB' is not a quantity"),
    "a policy on a device that is not shared": (
        device(capacity={"m": Capacity(8, RequestPolicy(default=1))}),
        "a request policy needs allow_multiple_allocations",
    ),
    "a policy with values and a range": (
        capacity(8, default=1, valid_values=(1,), valid_range=limits(1)),
        "valid_values or valid_range, not both",
    ),
    "a policy without a default": (capacity(8, valid_values=(1,)), "needs a default"),
    "a policy that is no quantity": (capacity(8, default="x"), "the policy has 'x', which is not a quantity"),
    "eleven values": (capacity(99, default=1, valid_values=tuple(range(1, 12))), "11 valid_values; at most 10"),
    "values out of order": (capacity(8, default=1, valid_values=(2, 1)), "valid_values must ascend"),
    "equal values": (capacity("1Gi", default="1Mi", valid_values=("1Mi", "1024Ki")), "valid_values must ascend"),
    "values that are equal in whole numbers": (
        capacity(8, default=1, valid_values=("500m", 1)),
        "valid_values must ascend and not repeat, even when rounded up",
    ),
    "a value above the whole": (capacity(8, default=1, valid_values=(1, 9)), "no valid value may be above"),
    "a default that is no value": (capacity(8, default=3, valid_values=(1, 2)), "must be one of the valid_values"),
    "a default below the range": (capacity(8, default=1, valid_range=limits(2)), "min 2 must not be above default 1"),
    "a range above the whole": (
        capacity("8Gi", default=1, valid_range=limits(1, "9Gi")),
        "capacity 'memory': max 9Gi must not be above capacity 8Gi",
    ),
    "a default above the range": (
        capacity(8, default=7, valid_range=limits(1, 6)),
        "capacity 'memory': default 7 must not be above max 6",
    ),
    "a step over the whole": (capacity(8, default=1, valid_range=limits(1, 8, 8)), "the step 8 must be positive"),
    "a step of zero": (capacity(8, default=1, valid_range=limits(1, 8, 0)), "the step 0 must be positive"),
    "a default between steps": (capacity(9, default=2, valid_range=limits(1, 9, 2)), "plus steps of 2"),
    "a step that is not one in whole numbers": (
        capacity(9, default=3, valid_range=limits("1500m", 9, "1500m")),
        "plus steps of 1500m, all rounded up",
    ),
    "three counter sets": (
        device(consumes_counters=tuple(CounterConsumption(counter_set=n, counters={"c": 1}) for n in "abc")),
        "consumes from 3 counter sets; at most 2",
    ),
    "a counter set twice": (
        device(consumes_counters=(CounterConsumption(counter_set="a", counters={"c": 1}),) * 2),
        "names a counter set twice",
    ),
    "no counters": (
        device(consumes_counters=(CounterConsumption(counter_set="a", counters={}),)),
        "0 counters; 1 to 32 are allowed",
    ),
    "a counter's name": (
        device(consumes_counters=(CounterConsumption(counter_set="a", counters={"C": 1}),)),
        "the counter's name 'C' must be a DNS label",
    ),
    "three compatibility groups": (grouped("a", "b", "c"), "3 compatibility_groups; at most 2"),
    "a compatibility group twice": (grouped("a", "a"), "must not be empty names, nor repeat"),
    "a compatibility group without a name": (grouped(""), "must not be empty names, nor repeat"),
    "seventeen taints": (device(taints=(Taint(key="t"),) * 17), "17 taints; at most 16"),
    "a taint's key": (device(taints=(Taint(key="a b"),)), "the key must be a label name"),
    "a taint's value": (device(taints=(Taint(key="a", value="not this!"),)), "must be a label value"),
    "a taint's time": (device(taints=(Taint(key="a", time_added="yesterday"),)), "is not RFC 3339"),
    "a taint's time without a zone": (
        device(taints=(Taint(key="a", time_added="2026-01-02T03:04:05"),)),
        "is not RFC 3339",
    ),
    "a taint's time before the year 1": (
        device(taints=(Taint(key="a", time_added="0001-01-01T00:00:00+14:00"),)),
        "is not RFC 3339",
    ),
    "five conditions": (
        device(binding_conditions=tuple("abcde"), binding_failure_conditions=("f",)),
        "binding_conditions: 5 conditions; at most 4",
    ),
    "a condition in both": (
        device(binding_conditions=("a",), binding_failure_conditions=("a",)),
        "may stand once only",
    ),
    "no failure conditions": (device(binding_conditions=("a",)), "come together or not at all"),
    "an extended resource": (using("example.com/gpu", multiplier=1), "only cpu, memory, ephemeral-storage"),
    "nothing of the node": (using(), "has neither a capacity nor a multiplier"),
    "a capacity that it does not have": (using(capacity="cores"), "the device has no capacity 'cores'"),
    "a share of a device that is not shared": (using(capacity="slots", shared=False), "counted, only with allow_"),
    "a multiplier of zero": (using(multiplier=0), "multiplier 0 must be positive"),
    "less than nothing besides": (using(per_pod="-1"), "per_pod '-1' must not be negative"),
    "an amount that is no quantity": (using(per_container="few"), "per_container 'few' is not a quantity"),
    "a condition's name": (
        device(binding_conditions=("a b",), binding_failure_conditions=("f",)),
        "'a b' must be a label name",
    ),
}


@pytest.mark.parametrize("good", GOOD.values(), ids=GOOD)
def test_a_device_within_the_rules_is_left_alone(good: Device) -> None:
    assert list(check_device(good)) == []


@pytest.mark.parametrize(("bad", "problem"), BAD.values(), ids=BAD)
def test_a_device_against_the_rules_is_named_its_fault(bad: Device, problem: str) -> None:
    [said] = check_device(bad)
    assert problem in said


def test_all_faults_of_a_device_are_said_at_once() -> None:
    problems = list(check_device(device(name="X", attributes={"a-b": Version("1")}, taints=(Taint(key="!"),))))
    assert len(problems) == 4


@pytest.mark.parametrize(
    ("counters", "problem"),
    [({}, "0 counters"), ({f"c{n}": n for n in range(33)}, "33 counters"), ({"c": "x"}, "is not a quantity")],
    ids=["none", "too many", "no quantity"],
)
def test_a_counter_set_against_the_rules_is_named_its_fault(counters: dict[str, int | str], problem: str) -> None:
    [said] = check_counter_set(CounterSet(name="gpu", counters=counters))
    assert problem in said
    name, said = check_counter_set(CounterSet(name="Gpu", counters=counters))
    assert (name, problem in said) == ("name 'Gpu' must be a DNS label", True)


def test_names_have_their_lengths() -> None:
    assert is_driver_name("a" * 63)
    assert not is_driver_name("a" * 64)
    assert is_qualified_name("GPU.example.com/memory")
    assert not is_qualified_name("gpu.example.com/")


def server() -> Api:
    gates = {"DRAListTypeAttributes": True, "DRANodeAllocatableResources": True, "DRADeviceCompatibilityGroups": True}
    return Api(store=Store(), minor=37, gates=build_gates(37, gates), clock=lambda: datetime.now(UTC), random=Random(0))


def slice_of(body: dict[str, Any]) -> dict[str, Any]:
    pool = {"name": "node", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "node", "pool": pool, "devices": [body]}
    return {"metadata": {"name": "one"}, "spec": spec}


def answer(device: Device) -> int:
    """The status with which the API server answers a slice with this device."""
    try:
        server().create(SLICES, slice_of(build_device(device)))
    except StatusError as refusal:
        return refusal.code
    return 201


def test_the_api_server_takes_what_is_within_the_rules() -> None:
    assert {name: answer(good) for name, good in GOOD.items()} == dict.fromkeys(GOOD, 201)


NOT_FOR_THE_SERVER = {  # what cannot even be written as JSON of a slice, or has no single form there
    "an empty list",
    "a mixed list",
    "a list of bools and ints",
    "a capacity that is no quantity",
    "a policy that is no quantity",
    "a lone surrogate",
    "a number over 64 bits",
    "a taint's time",  # a real server cannot decode it; the embedded one does not look
    "a taint's time without a zone",
    "a taint's time before the year 1",
    "an amount that is no quantity",
    "a share of a device that is not shared",  # the scheduler cannot count it
}


def test_the_api_server_refuses_what_is_against_the_rules() -> None:
    bad = BAD.keys() - NOT_FOR_THE_SERVER
    assert {name for name in bad if answer(BAD[name][0]) in (400, 422)} == bad
