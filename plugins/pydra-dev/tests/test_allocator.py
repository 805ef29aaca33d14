"""What the embedded allocator says, and does beyond the release whose outcomes `test_allocation_outcomes` has."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from pydra_dev.api import schema
from pydra_dev.scheduler.allocator import (
    AllocationError,
    NamedClaim,
    NodeAllocationError,
    allocate,
    read_in_use,
    review_devices,
)
from pydra_dev.scheduler.pools import NamedSlice
from pydra_dev.scheduler.search import Features

DRIVER = "gpu.example.com"
OWN = f'device.attributes["{DRIVER}"]'
NODE = {"metadata": {"name": "n1", "labels": {"zone": "a"}}, "spec": {}}
POOL = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
JsonObject = dict[str, Any]


def a_slice(*devices: JsonObject, name: str = "s", **spec: Any) -> NamedSlice:
    body = {"driver": DRIVER, "nodeName": "n1", "pool": POOL, "devices": list(devices), **spec}
    body = {key: value for key, value in body.items() if value is not None}
    return NamedSlice(name, schema.parse_fields("ResourceSlice", schema.SliceSpec, body))


def gpus(count: int, **extra: Any) -> list[JsonObject]:
    return [{"name": f"gpu-{index}", **extra} for index in range(count)]


def request(name: str = "r", **exactly: Any) -> JsonObject:
    return {"name": name, "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1, **exactly}}


def a_claim(*requests: JsonObject, name: str = "claim", **devices: Any) -> NamedClaim:
    body = {"devices": {"requests": list(requests), **devices}}
    return NamedClaim(name, schema.parse_fields("ResourceClaim", schema.ClaimSpec, body))


def status_of(*results: JsonObject) -> schema.ClaimStatus:
    full = [{"request": "r", "driver": DRIVER, "pool": "n1", **result} for result in results]
    body = {"allocation": {"devices": {"results": full}}}
    return schema.parse_fields("ResourceClaim", schema.ClaimStatus, body)


def solve(
    slices: Sequence[NamedSlice],
    *claims: NamedClaim,
    held: Sequence[schema.ClaimStatus] = (),
    classes: JsonObject | None = None,
    groups: bool = True,
    both_names: bool = False,
    compares_lists: bool = True,
) -> list[schema.Allocation]:
    counter = itertools.count()
    parsed = {
        name: schema.parse_fields("DeviceClass", schema.ClassSpec, spec)
        for name, spec in {"gpu": {}, **(classes or {})}.items()
    }
    return list(
        allocate(
            claims,
            node=NODE,
            slices=slices,
            classes=parsed,
            in_use=read_in_use(held),
            build_uid=lambda: f"share-{next(counter)}",
            features=Features(groups=groups, both_names=both_names, compares_lists=compares_lists),
        )
    )


def picked(allocations: Sequence[schema.Allocation]) -> list[tuple[str, str]]:
    return [(result.request, result.device) for one in allocations for result in one.devices.results]


TAINT = {"key": "example.com/sick", "value": "yes", "effect": "NoSchedule"}


def partitions() -> list[NamedSlice]:
    pool = {**POOL, "resourceSliceCount": 2}
    counters = [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]

    def draw(name: str, amount: str) -> JsonObject:
        return {"name": name, "consumesCounters": [{"counterSet": "gpu-0", "counters": {"memory": {"value": amount}}}]}

    devices = [draw("whole", "80Gi"), draw("half-0", "40Gi"), draw("half-1", "40Gi"), draw("third", "27Gi")]
    return [
        a_slice(name="a", pool=pool, devices=None, sharedCounters=counters),
        a_slice(*devices, name="b", pool=pool),
    ]


def compatible(*groups: str) -> list[NamedSlice]:
    """A pool of devices of one counter set with these compatibility groups."""
    pool = {**POOL, "resourceSliceCount": 2}
    counters = [{"name": "board", "counters": {"slots": {"value": "9"}}}]
    draw = {"counterSet": "board", "counters": {"slots": {"value": "1"}}}
    devices = [
        {"name": f"d{index}", "consumesCounters": [{**draw, "compatibilityGroups": text.split()}]}
        for index, text in enumerate(groups)
    ]
    return [
        a_slice(name="a", pool=pool, devices=None, sharedCounters=counters),
        a_slice(*devices, name="b", pool=pool),
    ]


@pytest.mark.parametrize(
    ("groups", "held", "devices"),
    [
        (["x", "y", "x"], [], ["d0", "d2"]),
        (["x y", "y z", "z x"], [], ["d0", "d1"]),
        (["", "x", ""], [], ["d0", "d2"]),
        (["x", "y", "x", "y z"], ["d1"], ["d3"]),
        (["x", "", ""], ["d1"], ["d2"]),
        (["x", "y"], ["d0"], []),
    ],
)
def test_devices_of_a_counter_set_are_used_at_once_only_with_a_common_group(
    groups: list[str], held: list[str], devices: list[str]
) -> None:
    slices, in_use = compatible(*groups), [status_of({"device": name}) for name in held]
    claim = a_claim(request(count=max(len(devices), 1)))
    if devices:
        assert [device for _, device in picked(solve(slices, claim, held=in_use))] == devices
        claim = a_claim(request(count=len(devices) + 1))
    with pytest.raises(AllocationError, match=r"not compatible with what is in use of board|satisfied together"):
        solve(slices, claim, held=in_use)


def test_a_scheduler_that_does_not_know_groups_takes_nothing_of_a_pool_with_some() -> None:
    with pytest.raises(AllocationError, match="need the feature gate DRADeviceCompatibilityGroups"):
        solve(compatible("x", ""), a_claim(request()), groups=False)


@pytest.mark.parametrize(
    ("published", "requested", "in_1_37"),
    [
        ("memory", "memory", True),
        (f"{DRIVER}/memory", f"{DRIVER}/memory", True),
        ("memory", f"{DRIVER}/memory", False),
        (f"{DRIVER}/memory", "memory", False),
    ],
)
@pytest.mark.parametrize("both_names", [False, True])
def test_requests_name_capacities_with_or_without_the_driver_from_1_38_on(
    published: str, requested: str, in_1_37: bool, both_names: bool
) -> None:
    slices = [a_slice({"name": "d", "capacity": {published: {"value": "8"}}, "allowMultipleAllocations": True})]
    claim = a_claim(request(capacity={"requests": {requested: "3"}}))
    if in_1_37 or both_names:
        [allocation] = solve(slices, claim, both_names=both_names)
        assert allocation.devices.results[0].consumed_capacity == {published: "3"}
        held = [status_of({"device": "d", "shareID": "s", "consumedCapacity": {requested: "6"}})]
        with pytest.raises(AllocationError, match="not enough"):
            solve(slices, claim, held=held, both_names=both_names)
    else:
        with pytest.raises(AllocationError, match=f"has no capacity {requested}"):
            solve(slices, claim)


SHARED = {
    "name": "gpu-0",
    "allowMultipleAllocations": True,
    "capacity": {
        "memory": {
            "value": "80Gi",
            "requestPolicy": {"default": "10Gi", "validRange": {"min": "10Gi", "step": "5Gi", "max": "70Gi"}},
        }
    },
}


def numa(name: str, node: int) -> JsonObject:
    return {"name": name, "attributes": {"numa": {"int": node}}}


def drawing(*devices: JsonObject) -> list[NamedSlice]:
    """A pool of devices that each draw all of a counter set of their own."""
    pool, counters = {**POOL, "resourceSliceCount": 2}, {"slots": {"value": "1"}}
    draw = [{**one, "consumesCounters": [{"counterSet": one["name"], "counters": counters}]} for one in devices]
    sets = [{"name": one["name"], "counters": counters} for one in devices]
    return [
        a_slice(name="a", pool=pool, devices=None, sharedCounters=sets),
        a_slice(*draw, name="b", pool=pool),
    ]


def memory(amount: str) -> JsonObject:
    return {"capacity": {"requests": {"memory": amount}}}


def cel(expression: str) -> JsonObject:
    return {"cel": {"expression": expression}}


FOUR = (a_slice(*gpus(4)),)
EVERY = a_claim(request(allocationMode="All", count=0))
UNKNOWN_COUNTER = [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]
NEWER = {**POOL, "generation": 2, "resourceSliceCount": 2}


@pytest.mark.parametrize(
    ("slices", "held", "claim", "why"),
    [
        pytest.param(
            FOUR,
            (),
            a_claim(request(deviceClassName="none")),
            "claim claim, request r: device class none does not exist",
            id="class",
        ),
        pytest.param(
            FOUR,
            (),
            a_claim(request(count=33)),
            "claim claim: number of requested devices 33 exceeds the claim limit of 32",
            id="33",
        ),
        pytest.param(
            FOUR,
            (),
            a_claim(request(selectors=[cel("device.nonsense")])),
            "selector #0: CEL compile error: compilation failed: ERROR: <input>: undefined field 'nonsense'",
            id="CEL that does not compile",
        ),
        pytest.param(
            FOUR,
            (),
            a_claim(request(selectors=[cel('device.attributes["x"].y == 1')])),
            "claim claim, request r: selector #0: CEL runtime error: no such key: y of domain x .device gpu.exam",
            id="CEL error",
        ),
        pytest.param(
            FOUR,
            (),
            a_claim(request(selectors=[cel("true"), cel("1 > 2")])),
            r"of 0 that match 0 are available .4 not selected by the request: 1 > 2",
            id="not selected",
        ),
        pytest.param(
            FOUR,
            (),
            a_claim(request(count=5)),
            r"wants 5 devices of class gpu, of 4 that match 4 are available",
            id="too few",
        ),
        pytest.param(
            FOUR,
            ({"device": "gpu-1"},),
            EVERY,
            r"wants all devices of class gpu, of 4 that match 3 are available \(1 in use",
            id="all",
        ),
        pytest.param((a_slice(),), (), EVERY, "of 0 that match 0 are available", id="all of none"),
        pytest.param(
            (a_slice(*gpus(1, taints=[TAINT])),),
            (),
            a_claim(request()),
            r"1 tainted example\.com/sick=yes:NoSchedule, which the request does not tolerate",
            id="taint",
        ),
        pytest.param(
            partitions(),
            ({"device": "whole"},),
            a_claim(request()),
            "3 short of counter gpu-0/memory",
            id="counter",
        ),
        pytest.param(
            (a_slice(SHARED),),
            ({"device": "gpu-0", "shareID": "x", "consumedCapacity": {"memory": "60Gi"}},),
            a_claim(request(**memory("25Gi"))),
            "1 has not enough memory left: 25Gi of 80Gi is requested",
            id="share",
        ),
        pytest.param(
            (a_slice(SHARED),),
            (),
            a_claim(request(**memory("75Gi"))),
            "1 gives at most 70Gi memory to one request, 75Gi is requested",
            id="largest share",
        ),
        pytest.param(
            (a_slice(SHARED),),
            (),
            a_claim(request(capacity={"requests": {"memroy": "1"}})),
            r'1 has no capacity memroy \(did you mean "memory"\?\)',
            id="no capacity",
        ),
        pytest.param(
            (a_slice(SHARED),),
            (),
            a_claim(request(capacity={"requests": {"cpu": "1"}})),
            r"1 has no capacity cpu, but memory\)$",
            id="another capacity",
        ),
        pytest.param(
            drawing(numa("a", 0), numa("b", 0), numa("c", 1)),
            (),
            a_claim(request(count=3), constraints=[{"matchAttribute": f"{DRIVER}/numa"}]),
            "1 against matchAttribute gpu.example.com/numa: has 1, the devices before it 0",
            id="a constraint, where devices draw counters",
        ),
        pytest.param(
            (a_slice(numa("a", 0)),),
            (),
            a_claim(request(selectors=[cel('device.attributes["gpu.exmaple.com"].numa == 1')])),
            r'no such key: numa of domain gpu.exmaple.com \(did you mean "gpu.example.com"\?\)',
            id="domain",
        ),
        pytest.param(
            (a_slice(numa("a", 0)),),
            (),
            a_claim(request(selectors=[cel(f"{OWN}.index == 1")])),
            r"no such key: index \(of gpu.example.com it has numa\)",
            id="attribute with another name",
        ),
        pytest.param(
            (a_slice(numa("a", 0)),),
            (),
            a_claim(request(selectors=[cel(f'{OWN}.?slot.orValue(0) == 0 && device.attributes["x"].y == 1')])),
            r"no such key: y of domain x \(dev",
            id="attribute after one that may be absent",
        ),
        pytest.param(
            (a_slice(numa("a", 0)),),
            (),
            a_claim(request(selectors=[cel(f'{OWN}.?slot.orValue(0) == 0 && {OWN}.numa > "0"')])),
            r"no such overload: _>_\(int64, string\) \(dev",
            id="type of an attribute after one that may be absent",
        ),
        pytest.param(
            (a_slice(numa("a", 0)),),
            (),
            a_claim(request(), constraints=[{"matchAttribute": f"{DRIVER}/nmua"}]),
            r'the device has no such attribute \(did you mean "gpu.example.com/numa"\?\)',
            id="misspelt attribute of a constraint",
        ),
        pytest.param(
            (a_slice(numa("a", 0)),),
            (),
            a_claim(request(), constraints=[{"matchAttribute": f"{DRIVER}/slot"}]),
            r"the device has no such attribute\)$",
            id="other attribute of a constraint",
        ),
        pytest.param(
            (a_slice(*gpus(1), name="a"), a_slice({"name": "new"}, name="b", pool=NEWER)),
            (),
            a_claim(request()),
            "pool gpu.example.com/n1 is incomplete: 1 of 2 slices of generation 2",
            id="incomplete pool",
        ),
        pytest.param(
            (a_slice({"name": "a"}, {"name": "a"}),),
            (),
            a_claim(request()),
            "device a appears more than once",
            id="device twice",
        ),
        pytest.param(
            (a_slice({"name": "a", "consumesCounters": UNKNOWN_COUNTER}),),
            (),
            a_claim(request()),
            "device a draws from unknown counter s/c",
            id="unknown counter",
        ),
    ],
)
def test_what_cannot_be_allocated_says_why(
    slices: Sequence[NamedSlice], held: Sequence[JsonObject], claim: NamedClaim, why: str
) -> None:
    with pytest.raises(AllocationError, match=why):
        solve(slices, claim, held=[status_of(one) for one in held])


def test_a_selector_that_fails_only_for_a_device_in_use_keeps_no_other_node_from_the_pod() -> None:
    claim = a_claim(request(selectors=[cel(f'device.attributes["{DRIVER}"].numa == 1')]))
    with pytest.raises(NodeAllocationError, match="no such key: numa"):
        solve([a_slice({"name": "used"}, numa("far", 0))], claim, held=[status_of({"device": "used"})])


def test_shares_of_nothing_are_taken_back_as_any_others() -> None:
    free = {"name": "free", "allowMultipleAllocations": True, "capacity": {"memory": {"value": "8Gi"}}}
    nothing = request("a", count=1, capacity={"requests": {"memory": "0"}})
    with pytest.raises(NodeAllocationError):
        solve([a_slice(free)], a_claim(nothing, {**nothing, "name": "b"}, request("c", selectors=[cel("false")])))


def test_a_review_says_for_each_device_why_a_request_does_not_have_it() -> None:
    own = f'device.attributes["{DRIVER}"]'
    devices = [
        numa("used", 0),
        numa("picked", 1),
        numa("sick", 1) | {"taints": [TAINT]},
        numa("small", 1) | {"capacity": {"memory": {"value": "1Gi"}}},
        numa("far", 0),
        numa("spare", 1),
        {"name": "none"},
    ]
    for device in devices:
        device.setdefault("capacity", {"memory": {"value": "8Gi"}})
    selector = {"cel": {"expression": f"has({own}.numa)"}}
    wanted = request(selectors=[selector], capacity={"requests": {"memory": "2Gi"}})
    claim = a_claim(wanted, constraints=[{"matchAttribute": f"{DRIVER}/numa"}])
    reviews = review_devices(
        [claim],
        node=NODE,
        slices=[a_slice(*devices)],
        classes={"gpu": schema.ClassSpec()},
        in_use=read_in_use([status_of({"device": "used"}), status_of({"device": "none"})]),
    )
    assert [(one.device[-1], one.picked, one.reason) for one in reviews.devices] == [
        ("used", False, "in use"),
        ("picked", True, ""),
        ("sick", False, "tainted example.com/sick=yes:NoSchedule, which the request does not tolerate"),
        ("small", False, "has 1Gi memory, 2Gi is requested"),
        ("far", False, "against matchAttribute gpu.example.com/numa: has 0, the devices before it 1"),
        ("spare", False, ""),
        ("none", False, f"not selected by the request: has({own}.numa)"),
    ]


def test_a_scheduler_that_compares_no_lists_adds_no_device_with_one_to_others() -> None:
    number, lists = (
        {"name": name, "attributes": {"numa": value}}
        for name, value in (("number", {"int": 1}), ("lists", {"ints": [0, 1]}))
    )
    slices = [a_slice(number, lists)]
    same, other = (
        a_claim(request("a"), request("b"), constraints=[{constraint: f"{DRIVER}/numa"}])
        for constraint in ("matchAttribute", "distinctAttribute")
    )
    assert picked(solve(slices, same)) == [("a", "number"), ("b", "lists")]
    with pytest.raises(AllocationError, match=r"the scheduler of Kubernetes 1\.36 compares no lists"):
        solve(slices, same, compares_lists=False)
    with pytest.raises(AllocationError):
        solve(slices, other)
    assert picked(solve(slices, other, compares_lists=False)) == [("a", "lists"), ("b", "number")]


def test_a_claim_without_requests_is_allocated_without_devices() -> None:
    assert picked(solve(FOUR, a_claim())) == []
    assert picked(solve(FOUR, a_claim(), a_claim(request()))) == [("r", "gpu-0")]


def test_requests_that_exclude_each_other_say_so() -> None:
    devices = [numa(f"d{index}", index) for index in range(40)]
    claim = a_claim(request("a", count=4), request("b", count=4), constraints=[{"matchAttribute": f"{DRIVER}/numa"}])
    with pytest.raises(AllocationError) as caught:
        solve([a_slice(*devices)], claim)
    assert "the requests of claim cannot be satisfied together: request a finds no device" in str(caught.value)
    assert "against matchAttribute gpu.example.com/numa: has " in str(caught.value)


def test_a_hopeless_search_gives_up() -> None:
    pool = {**POOL, "resourceSliceCount": 2}
    counters = [{"name": "c", "counters": {"power": {"value": "100"}}}]
    draw = {"consumesCounters": [{"counterSet": "c", "counters": {"power": {"value": "10"}}}]}
    slices = [
        a_slice(name="a", pool=pool, devices=None, sharedCounters=counters),
        a_slice(*gpus(30, **draw), name="b", pool=pool),
    ]
    with pytest.raises(AllocationError, match="no combination of devices found after 100000 attempts"):
        solve(slices, a_claim(request(count=11)))
