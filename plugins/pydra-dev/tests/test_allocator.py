"""First-fit allocation, by tables of slices, claims and what is held already."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from pydra_dev import schema
from pydra_dev.allocator import AllocationError, NamedClaim, allocate, read_in_use, review_devices
from pydra_dev.pools import NamedSlice

DRIVER = "gpu.example.com"
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


def sub(name: str, **extra: Any) -> JsonObject:
    return {"name": name, "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1, **extra}


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
            groups=groups,
            both_names=both_names,
        )
    )


def picked(allocations: Sequence[schema.Allocation]) -> list[tuple[str, str]]:
    return [(result.request, result.device) for one in allocations for result in one.devices.results]


def test_the_first_free_device_is_taken() -> None:
    assert picked(solve([a_slice(*gpus(3))], a_claim(request()), held=[status_of({"device": "gpu-0"})])) == [
        ("r", "gpu-1")
    ]


def test_the_claims_of_a_pod_share_no_device() -> None:
    claims = [a_claim(request(count=2), name="a"), a_claim(request(), name="b")]
    assert picked(solve([a_slice(*gpus(3))], *claims)) == [("r", "gpu-0"), ("r", "gpu-1"), ("r", "gpu-2")]


def test_slices_are_tried_in_the_order_of_their_names() -> None:
    pool = {**POOL, "resourceSliceCount": 2}
    slices = [a_slice({"name": "late"}, name="b", pool=pool), a_slice({"name": "early"}, name="a", pool=pool)]
    assert picked(solve(slices, a_claim(request()))) == [("r", "early")]


def test_a_selector_chooses() -> None:
    devices = [
        {"name": "a", "attributes": {"model": {"string": "A"}}},
        {"name": "b", "attributes": {"model": {"string": "B"}}},
    ]
    cel = {"cel": {"expression": f'device.attributes["{DRIVER}"].model == "B"'}}
    assert picked(solve([a_slice(*devices)], a_claim(request(selectors=[cel])))) == [("r", "b")]
    classes = {"gpu": {"selectors": [cel]}}
    assert picked(solve([a_slice(*devices)], a_claim(request()), classes=classes)) == [("r", "b")]


def test_all_means_every_device_or_nothing() -> None:
    everything = a_claim(request(allocationMode="All", count=0))
    assert len(picked(solve([a_slice(*gpus(3))], everything))) == 3
    with pytest.raises(
        AllocationError, match=r"wants all devices of class gpu, of 3 that match 2 can be had \(1 in use"
    ):
        solve([a_slice(*gpus(3))], everything, held=[status_of({"device": "gpu-1"})])
    with pytest.raises(AllocationError, match="of 0 that match 0 can be had"):
        solve([a_slice()], everything)


def test_the_first_alternative_that_fits_is_chosen() -> None:
    either = a_claim({"name": "r", "firstAvailable": [sub("many", count=5), sub("few", count=2)]})
    assert picked(solve([a_slice(*gpus(3))], either)) == [("r/few", "gpu-0"), ("r/few", "gpu-1")]


def test_an_earlier_choice_is_taken_back_when_a_later_request_needs_it() -> None:
    devices = [
        {"name": "a", "attributes": {"big": {"bool": True}}},
        {"name": "b", "attributes": {"big": {"bool": False}}},
    ]
    big = {"cel": {"expression": f'device.attributes["{DRIVER}"].big'}}
    claim = a_claim(request("any"), request("big", selectors=[big]))
    assert picked(solve([a_slice(*devices)], claim)) == [("any", "b"), ("big", "a")]


TAINT = {"key": "example.com/sick", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        pytest.param({"key": "example.com/sick", "operator": "Exists"}, True, id="exists"),
        pytest.param({"operator": "Exists"}, True, id="everything"),
        pytest.param({"key": "example.com/sick", "operator": "Equal", "value": "yes"}, True, id="equal"),
        pytest.param({"key": "example.com/sick", "operator": "Equal", "value": "no"}, False, id="other value"),
        pytest.param({"key": "other", "operator": "Exists"}, False, id="other key"),
        pytest.param({"operator": "Exists", "effect": "NoExecute"}, False, id="other effect"),
    ],
)
def test_a_tainted_device_needs_a_toleration(toleration: JsonObject, tolerated: bool) -> None:
    slices, claim = [a_slice(*gpus(1, taints=[TAINT]))], a_claim(request(tolerations=[toleration]))
    if tolerated:
        assert picked(solve(slices, claim)) == [("r", "gpu-0")]
    else:
        with pytest.raises(AllocationError, match=r"1 tainted example\.com/sick=yes:NoSchedule"):
            solve(slices, claim)


def test_a_taint_without_effect_keeps_nobody_away() -> None:
    assert picked(solve([a_slice(*gpus(1, taints=[{**TAINT, "effect": "None"}]))], a_claim(request())))


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


def test_partitions_draw_from_one_counter() -> None:
    held = [status_of({"device": "half-1"})]
    assert picked(solve(partitions(), a_claim(request()), held=held)) == [("r", "half-0")]
    with pytest.raises(AllocationError, match="3 short of counter gpu-0/memory"):
        solve(partitions(), a_claim(request()), held=[status_of({"device": "whole"})])
    two = solve(partitions(), a_claim(request(count=2)))
    assert picked(two) == [("r", "half-0"), ("r", "half-1")]


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


def test_a_shared_device_is_given_in_shares() -> None:
    claim = a_claim(request(capacity={"requests": {"memory": "12Gi"}}))
    (allocation,) = solve([a_slice(SHARED)], claim)
    (result,) = allocation.devices.results
    assert (result.share_id, result.consumed_capacity) == ("share-0", {"memory": "15Gi"})
    (plain,) = solve([a_slice(SHARED)], a_claim(request()))
    assert plain.devices.results[0].consumed_capacity == {"memory": "10Gi"}


def test_a_share_must_fit_in_what_is_left() -> None:
    held = [status_of({"device": "gpu-0", "shareID": "x", "consumedCapacity": {"memory": "60Gi"}})]
    assert solve([a_slice(SHARED)], a_claim(request(capacity={"requests": {"memory": "20Gi"}})), held=held)
    with pytest.raises(AllocationError, match="1 has not enough memory left: 25Gi of 80Gi is asked for"):
        solve([a_slice(SHARED)], a_claim(request(capacity={"requests": {"memory": "25Gi"}})), held=held)
    with pytest.raises(AllocationError, match="1 gives at most 70Gi memory to one request, 75Gi is asked for"):
        solve([a_slice(SHARED)], a_claim(request(capacity={"requests": {"memory": "75Gi"}})))
    with pytest.raises(AllocationError, match="1 has no capacity cores"):
        solve([a_slice(SHARED)], a_claim(request(capacity={"requests": {"cores": "1"}})))


def test_a_claim_is_given_several_shares_of_a_device_for_as_many_requests() -> None:
    (allocation,) = solve([a_slice(SHARED)], a_claim(*(request(f"r{index}") for index in range(8))))
    assert len({result.share_id for result in allocation.devices.results}) == 8
    with pytest.raises(AllocationError):
        solve([a_slice(SHARED)], a_claim(*(request(f"r{index}") for index in range(9))))
    with pytest.raises(AllocationError, match="wants 2 devices"):
        solve([a_slice(SHARED)], a_claim(request(count=2)))


def test_admin_access_takes_what_is_in_use_and_holds_nothing() -> None:
    admin = a_claim(request(adminAccess=True))
    (allocation,) = solve([a_slice(*gpus(1))], admin, held=[status_of({"device": "gpu-0"})])
    assert allocation.devices.results[0].admin_access is True
    held = [status_of({"device": "gpu-0", "adminAccess": True})]
    assert picked(solve([a_slice(*gpus(1))], a_claim(request()), held=held)) == [("r", "gpu-0")]


def numa(name: str, node: int) -> JsonObject:
    return {"name": name, "attributes": {"numa": {"int": node}}}


def test_matching_devices_have_the_attribute_in_common() -> None:
    devices = [numa("a", 0), numa("b", 1), numa("c", 1), {"name": "d"}]
    constraint = {"matchAttribute": f"{DRIVER}/numa"}
    claim = a_claim(request(count=2), constraints=[constraint])
    assert picked(solve([a_slice(*devices)], claim)) == [("r", "b"), ("r", "c")]
    with pytest.raises(AllocationError, match="cannot be satisfied together"):
        solve([a_slice(*devices)], a_claim(request(count=3), constraints=[constraint]))


def test_distinct_devices_differ_in_the_attribute() -> None:
    devices = [numa("a", 0), numa("b", 0), numa("c", 1)]
    claim = a_claim(request("x"), request("y"), constraints=[{"distinctAttribute": f"{DRIVER}/numa"}])
    assert picked(solve([a_slice(*devices)], claim)) == [("x", "a"), ("y", "c")]


def test_only_the_newest_generation_counts_and_only_whole() -> None:
    newer = {**POOL, "generation": 2, "resourceSliceCount": 2}
    with pytest.raises(AllocationError, match=r"pool gpu.example.com/n1 is incomplete: 1 of 2 slices of generation 2"):
        solve([a_slice(*gpus(1), name="a"), a_slice({"name": "new"}, name="b", pool=newer)], a_claim(request()))


@pytest.mark.parametrize(
    ("devices", "problem"),
    [
        pytest.param([{"name": "a"}, {"name": "a"}], "device a appears more than once", id="device twice"),
        pytest.param(
            [{"name": "a", "consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]}],
            "device a draws from unknown counter s/c",
            id="unknown counter",
        ),
    ],
)
def test_nothing_is_taken_from_an_invalid_pool(devices: list[JsonObject], problem: str) -> None:
    with pytest.raises(AllocationError, match=problem):
        solve([a_slice(*devices)], a_claim(request()))


@pytest.mark.parametrize(
    ("spec", "selector"),
    [
        pytest.param(
            {},
            {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]},
            id="node name",
        ),
        pytest.param({"nodeName": None, "allNodes": True}, None, id="all nodes"),
        pytest.param(
            {
                "nodeName": None,
                "nodeSelector": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
                },
            },
            {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]},
            id="node selector",
        ),
    ],
)
def test_the_allocation_says_which_nodes_it_is_for(spec: JsonObject, selector: JsonObject | None) -> None:
    (allocation,) = solve([a_slice(*gpus(1), **spec)], a_claim(request()))
    assert allocation.node_selector == selector


def test_the_devices_of_other_nodes_are_out_of_reach() -> None:
    elsewhere = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}]}
    slices = [
        a_slice(*gpus(1), name="a", nodeName="n2"),
        a_slice(*gpus(1), name="b", driver="net.example.com", nodeName=None, nodeSelector=elsewhere),
    ]
    with pytest.raises(AllocationError, match="of 0 that match 0 can be had"):
        solve(slices, a_claim(request()))


def test_devices_may_choose_their_nodes_one_by_one() -> None:
    devices = [{"name": "far", "nodeName": "n2"}, {"name": "near", "nodeName": "n1"}]
    slices = [a_slice(*devices, nodeName=None, perDeviceNodeSelection=True)]
    assert picked(solve(slices, a_claim(request()))) == [("r", "near")]


def opaque(**parameters: Any) -> JsonObject:
    return {"opaque": {"driver": DRIVER, "parameters": parameters}}


def test_the_class_s_configuration_comes_first_and_the_claim_s_for_what_was_chosen() -> None:
    claim = a_claim(
        request("a"),
        {"name": "b", "firstAvailable": [sub("x", count=9), sub("y")]},
        config=[
            {"requests": ["a"], **opaque(only="a")},
            {"requests": ["b/x"], **opaque(only="not chosen")},
            {"requests": ["b/y", "b"], **opaque(only="y")},
            opaque(everything=True),
        ],
    )
    (allocation,) = solve([a_slice(*gpus(2))], claim, classes={"gpu": {"config": [opaque(default=1)]}})
    told = [(one.source, one.requests, one.opaque and one.opaque.parameters) for one in allocation.devices.config]
    assert told == [
        ("FromClass", ("a", "b/y"), {"default": 1}),
        ("FromClaim", ("a",), {"only": "a"}),
        ("FromClaim", ("b/y", "b"), {"only": "y"}),
        ("FromClaim", (), {"everything": True}),
    ]


@pytest.mark.parametrize(
    ("claim", "why"),
    [
        pytest.param(
            a_claim(request(deviceClassName="none")),
            "claim claim, request r: device class none does not exist",
            id="class",
        ),
        pytest.param(
            a_claim(request(count=33)),
            "claim claim: number of requested devices 33 exceeds the claim limit of 32",
            id="33",
        ),
        pytest.param(
            a_claim(request(selectors=[{"cel": {"expression": "device.nonsense"}}])),
            "selector #0: CEL compile error: compilation failed: ERROR: <input>: undefined field 'nonsense'",
            id="CEL that does not compile",
        ),
        pytest.param(
            a_claim(request(selectors=[{"cel": {"expression": 'device.attributes["x"].y == 1'}}])),
            "claim claim, request r: selector #0: CEL runtime error: no such key: y .device gpu.example.com/n1/gpu-0",
            id="CEL error",
        ),
        pytest.param(
            a_claim(request(selectors=[{"cel": {"expression": "true"}}, {"cel": {"expression": "1 > 2"}}])),
            r"of 0 that match 0 can be had .4 not selected by the request: 1 > 2",
            id="not selected",
        ),
        pytest.param(
            a_claim(request(count=5)), r"wants 5 devices of class gpu, of 4 that match 4 can be had", id="too few"
        ),
    ],
)
def test_what_cannot_be_allocated_says_why(claim: NamedClaim, why: str) -> None:
    with pytest.raises(AllocationError, match=why):
        solve([a_slice(*gpus(4))], claim)


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
        in_use=read_in_use([status_of({"device": "used"})]),
    )
    assert [(one.device[-1], one.picked, one.reason) for one in reviews.devices] == [
        ("used", False, "in use"),
        ("picked", True, ""),
        ("sick", False, "tainted example.com/sick=yes:NoSchedule"),
        ("small", False, "has 1Gi memory, 2Gi is asked for"),
        ("far", False, "against matchAttribute gpu.example.com/numa: has 0, the devices before it 1"),
        ("spare", False, ""),
        ("none", False, f"not selected by the request: has({own}.numa)"),
    ]


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
