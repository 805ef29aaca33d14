"""When two specs mean the same to the API server."""

from __future__ import annotations

from typing import Any

import pytest

from pydra.slices.diff import keep_times, same_content

JsonObject = dict[str, Any]


def gpu(**fields: Any) -> JsonObject:
    return {"devices": [{"name": "gpu-0", **fields}]}


def taint(**fields: Any) -> JsonObject:
    return gpu(taints=[{"key": "k", "effect": "NoSchedule", **fields}])


def memory(**fields: Any) -> JsonObject:
    return gpu(capacity={"memory": {"value": "8", **fields}})


SAME: dict[str, tuple[JsonObject, JsonObject]] = {
    "nothing and empty": ({}, {"devices": [], "sharedCounters": None}),
    "a device's absent and empty fields": (gpu(), gpu(attributes={}, taints=None)),
    "attributes in another order": (
        gpu(attributes={"a": {"int": 1}, "b": {"bool": False}}),
        gpu(attributes={"b": {"bool": False}, "a": {"int": 1}}),
    ),
    "a time that the server filled in": (taint(), taint(timeAdded="2026-01-01T00:00:00Z")),
    "what never changes": ({"driver": "a", "nodeName": "n"}, {"driver": "a", "nodeName": "n", "pool": {"name": "p"}}),
}

DIFFERENT: dict[str, tuple[JsonObject, JsonObject]] = {
    "devices in another order": (
        {"devices": [{"name": "a"}, {"name": "b"}]},
        {"devices": [{"name": "b"}, {"name": "a"}]},
    ),
    "one device more": (gpu(), {"devices": [{"name": "gpu-0"}, {"name": "gpu-1"}]}),
    "no device": (gpu(), {}),
    "another attribute": (gpu(attributes={"a": {"int": 1}}), gpu(attributes={"a": {"int": 2}})),
    "an attribute of another type": (gpu(attributes={"a": {"int": 1}}), gpu(attributes={"a": {"bool": True}})),
    "false and zero": (gpu(attributes={"a": {"bool": False}}), gpu(attributes={"a": {"int": 0}})),
    "false and no attribute": (gpu(attributes={"a": {"bool": False}}), gpu()),
    "an attribute emptied": (gpu(attributes={"a": {"ints": [1]}}), gpu(attributes={"a": {}})),
    "a list in another order": (gpu(attributes={"a": {"ints": [1, 2]}}), gpu(attributes={"a": {"ints": [2, 1]}})),
    "one attribute less": (gpu(attributes={"a": {"int": 1}, "b": {"int": 1}}), gpu(attributes={"a": {"int": 1}})),
    "another quantity": (memory(value="1Gi"), memory(value="1G")),
    "a policy dropped": (memory(requestPolicy={"default": "1"}), memory()),
    "another taint value": (taint(value="a"), taint(value="b")),
    "another effect": (taint(), taint(effect="NoExecute")),
    "another time": (taint(timeAdded="2026-01-01T00:00:02Z"), taint(timeAdded="2026-01-01T00:00:00Z")),
    "sharing dropped": (gpu(allowMultipleAllocations=True), gpu()),
    "counters dropped": ({"sharedCounters": [{"name": "c", "counters": {"m": {"value": "1"}}}]}, {}),
    "more used of the node": (
        gpu(nodeAllocatableResources={"cpu": {"mapping": {"deviceMultiplier": "1"}}}),
        gpu(nodeAllocatableResources={"cpu": {"mapping": {"deviceMultiplier": "2"}}}),
    ),
    "a field that pydra does not know": (gpu(), gpu(novelty={"a": [1]})),
    "a field of the slice that others set": (gpu(), gpu() | {"skipNodeOperations": ["*"]}),
}


@pytest.mark.parametrize(("a", "b"), SAME.values(), ids=SAME)
def test_what_means_the_same_is_the_same(a: JsonObject, b: JsonObject) -> None:
    assert same_content(a, b)


@pytest.mark.parametrize(("a", "b"), DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs_is_noticed_both_ways(a: JsonObject, b: JsonObject) -> None:
    assert not same_content(a, b)
    assert not same_content(b, a)


def test_times_are_kept_for_the_same_taint_of_the_same_device_only() -> None:
    stored: list[JsonObject] = [
        {"name": "a", "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "T1"}]},
        {"name": "b", "taints": [{"key": "k", "effect": "NoExecute", "value": "v", "timeAdded": "T2"}]},
    ]
    wanted: list[JsonObject] = [
        {"name": "b", "taints": [{"key": "k", "effect": "NoExecute", "value": "v"}, {"key": "k", "effect": "None"}]},
        {"name": "a", "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "mine"}]},
        {"name": "c", "taints": [{"key": "k", "effect": "NoSchedule"}]},
        {"name": "d"},
    ]
    kept = keep_times(wanted, stored)
    assert [[taint.get("timeAdded") for taint in device.get("taints", [])] for device in kept] == [
        ["T2", None],
        ["mine"],
        [None],
        [],
    ]
