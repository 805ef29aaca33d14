"""The plan for a pool's slices, case by case: what there is, what is wanted, and the number of API calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra.slices.build import WantedPool
from pydra.slices.diff import Create, Plan, Update, plan_slices, same_content
from pydra.slices.server_limitations import ServerModification, apply_modifications, find_modification, name_gates

DRIVER, NODE, POOL = "gpu.example.com", "node1", "pool1"
NOON, BEFORE = "2026-01-01T12:00:00Z", "2025-01-01T12:00:00Z"

JsonObject = dict[str, Any]


def devices(*names: str, **fields: Any) -> JsonObject:
    return {"devices": [{"name": name, **fields} for name in names]}


def tainted(*taints: JsonObject) -> JsonObject:
    return devices("gpu-0", taints=list(taints))


def taint(key: str = "sick", **fields: Any) -> JsonObject:
    return {"key": key, "effect": "NoSchedule", **fields}


def wanted(*slices: JsonObject) -> WantedPool:
    return WantedPool(driver=DRIVER, name=POOL, node=NODE, slices=slices)


def stored(name: str, content: JsonObject, *, gen: int = 1, count: int = 1, pool: str = POOL) -> JsonObject:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "7", "labels": {"by": "somebody"}},
        "spec": {
            "driver": DRIVER,
            "pool": {"name": pool, "generation": gen, "resourceSliceCount": count},
            "nodeName": NODE,
            **content,
        },
    }


def at(index: int, content: JsonObject, **keywords: Any) -> JsonObject:
    return stored(f"{index:05x}-{DRIVER}-{NODE}-abcde", content, **keywords)


def three(*contents: JsonObject, gen: int = 1) -> list[JsonObject]:
    return [at(index, content, gen=gen, count=len(contents)) for index, content in enumerate(contents)]


A, B, C, D = devices("gpu-a"), devices("gpu-b"), devices("gpu-c"), devices("gpu-d")
COUNTERS = {"sharedCounters": [{"name": "gpu-0", "counters": {"memory": {"value": "80Gi"}}}]}
PARTITIONS = devices("part-0", consumesCounters=[{"counterSet": "gpu-0", "counters": {"memory": {"value": "40Gi"}}}])
BOUND = devices("gpu-0", bindingConditions=["example.com/ready"], bindingFailureConditions=["example.com/failed"])
SHARED = devices("gpu-0", allowMultipleAllocations=True)


def drop(*fields: str) -> Callable[[JsonObject], JsonObject]:
    """An API server whose gates are off: these fields of the spec and of its devices do not survive."""

    def store(body: JsonObject) -> JsonObject:
        spec = copy.deepcopy(body["spec"])
        kept = [{k: v for k, v in device.items() if k not in fields} for device in spec.get("devices", [])]
        spec = {key: value for key, value in spec.items() if key not in fields}
        return {**body, "spec": {**spec, **({"devices": kept} if kept else {})}}

    return store


def keep(body: JsonObject) -> JsonObject:
    return copy.deepcopy(body)


@dataclass(frozen=True, kw_only=True)
class Case:
    """`before` and `want`, then the calls: created, updated, deleted; `gen` and `count` that all slices have after."""

    before: list[JsonObject] = field(default_factory=list)
    want: WantedPool
    calls: tuple[int, int, int]
    gen: int = 1
    count: int = 1
    server: Callable[[JsonObject], JsonObject] = keep
    gates: tuple[str, ...] = ()
    times: dict[str, str] = field(default_factory=dict)


CASES = {
    "a slice is created": Case(want=wanted(A), calls=(1, 0, 0)),
    "an empty pool is one empty slice": Case(want=wanted({"devices": []}), calls=(1, 0, 0)),
    "an unchanged slice is kept": Case(before=[at(0, A)], want=wanted(A), calls=(0, 0, 0)),
    "a taint without a time equals one with": Case(
        before=[at(0, tainted(taint(timeAdded=NOON)))], want=wanted(tainted(taint())), calls=(0, 0, 0)
    ),
    "a taint whose time really differs is updated": Case(
        before=[at(0, tainted(taint(timeAdded=NOON)))],
        want=wanted(tainted(taint(timeAdded=BEFORE))),
        calls=(0, 1, 0),
        times={"sick": BEFORE},
    ),
    "an added taint leaves the time of the others": Case(
        before=[at(0, tainted(taint(timeAdded=NOON)))],
        want=wanted(tainted(taint(), taint("worse"))),
        calls=(0, 1, 0),
        times={"sick": NOON},
    ),
    "a taint of another effect starts again": Case(
        before=[at(0, tainted(taint(timeAdded=NOON)))],
        want=wanted(tainted(taint() | {"effect": "NoExecute"})),
        calls=(0, 1, 0),
        times={"sick": ""},
    ),
    "dropped taints are noticed and not asked for again": Case(
        before=[at(0, devices("gpu-0"))],
        want=wanted(tainted(taint())),
        calls=(0, 1, 0),
        server=drop("taints"),
        gates=("DRADeviceTaints",),
    ),
    "a dropped consumable capacity is noticed": Case(
        before=[at(0, devices("gpu-0"))],
        want=wanted(SHARED),
        calls=(0, 1, 0),
        server=drop("allowMultipleAllocations"),
        gates=("DRAConsumableCapacity",),
    ),
    "one slice with other devices is changed in place": Case(before=[at(0, A)], want=wanted(B), calls=(0, 1, 0)),
    "one of two changed slices keeps the generation": Case(
        before=three(A, B), want=wanted(A, C), calls=(0, 1, 0), count=2
    ),
    "a slice whose index is taken is redundant": Case(
        before=[at(0, A), stored(f"00000-{DRIVER}-{NODE}-zzzzz", A)], want=wanted(A), calls=(0, 0, 1)
    ),
    "a device with another attribute is updated": Case(
        before=[at(0, devices("gpu-0", attributes={"model": {"string": "a"}}))],
        want=wanted(devices("gpu-0", attributes={"model": {"string": "b"}})),
        calls=(0, 1, 0),
    ),
    "one of many devices is updated with one call": Case(
        before=[at(0, devices(*(f"gpu-{n}" for n in range(128))))],
        want=wanted(devices(*(f"gpu-{n}" for n in range(127)), "new")),
        calls=(0, 1, 0),
    ),
    "three unchanged slices are kept": Case(before=three(A, B, C), want=wanted(A, B, C), calls=(0, 0, 0), count=3),
    "slices of mixed generations without indexes are replaced": Case(
        before=[stored("x", A), stored("y", B, gen=2), stored("z", C)], want=wanted(D), calls=(1, 0, 3), gen=3
    ),
    "one of three slices changed": Case(before=three(A, B, C), want=wanted(A, D, C), calls=(0, 1, 0), count=3),
    "two of three slices changed touch all in a new generation": Case(
        before=three(A, B, C), want=wanted(D, devices("gpu-e"), C), calls=(0, 3, 0), gen=2, count=3
    ),
    "one of three slices removed": Case(before=three(A, B, C), want=wanted(A, B), calls=(0, 2, 1), gen=2, count=2),
    "two slices become one": Case(before=three(A, B), want=wanted(A), calls=(0, 1, 1), count=1),
    "a fourth slice added": Case(before=three(A, B, C), want=wanted(A, B, C, D), calls=(1, 3, 0), gen=2, count=4),
    "a lost slice comes back in a new generation": Case(
        before=three(A, B, C)[:2], want=wanted(A, B, C), calls=(1, 2, 0), gen=2, count=3
    ),
    "slices of an older generation are obsolete": Case(
        before=[at(0, A, gen=1, count=2), at(1, B, gen=2, count=2)], want=wanted(A, B), calls=(1, 1, 1), gen=3, count=2
    ),
    "partitionable devices get slices for counters and for devices": Case(
        want=wanted(COUNTERS, PARTITIONS), calls=(2, 0, 0), count=2
    ),
    "dropped counters are noticed in each slice": Case(
        want=wanted(COUNTERS, PARTITIONS),
        calls=(2, 0, 0),
        count=2,
        server=drop("sharedCounters", "consumesCounters"),
        gates=("DRAPartitionableDevices", "DRAPartitionableDevices"),
    ),
    "binding conditions are created": Case(want=wanted(BOUND), calls=(1, 0, 0)),
    "dropped binding conditions are noticed": Case(
        want=wanted(BOUND),
        calls=(1, 0, 0),
        server=drop("bindingConditions", "bindingFailureConditions"),
        gates=("DRADeviceBindingConditions",),
    ),
    "slices with random names are replaced by indexed ones": Case(
        before=[stored(f"{NODE}-{DRIVER}-{n}", c, count=3) for n, c in zip("xyz", (A, B, C), strict=True)],
        want=wanted(A, B, C),
        calls=(3, 0, 3),
        gen=2,
        count=3,
    ),
    "of mixed names the indexed slice stays": Case(
        before=[at(0, A, count=3), stored("random-y", B, count=3), stored("random-z", C, count=3)],
        want=wanted(A, B, C),
        calls=(2, 1, 2),
        gen=2,
        count=3,
    ),
    "slices of a pool of another name go": Case(before=[at(0, A, pool="former")], want=wanted(A), calls=(1, 0, 1)),
    "an edit of the slice's count by hand is undone": Case(before=[at(0, A, count=7)], want=wanted(A), calls=(0, 1, 0)),
}


def apply(plan: Plan, before: list[JsonObject], server: Callable[[JsonObject], JsonObject]) -> list[JsonObject]:
    slices = {body["metadata"]["name"]: body for body in before}
    for delete in plan.deletes:
        gone = slices.pop(delete.name)
        assert (delete.uid, delete.resource_version) == (gone["metadata"]["uid"], gone["metadata"]["resourceVersion"])
    for update in plan.updates:
        assert update.body["metadata"] == slices[update.name]["metadata"], "metadata is others' too"
        slices[update.name] = server(update.body)
    for create in plan.creates:
        name = create.body["metadata"]["generateName"] + "fghij"
        assert name not in slices
        slices[name] = server({**create.body, "metadata": {"name": name, "uid": name, "resourceVersion": "8"}})
    return list(slices.values())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_pool_is_brought_to_what_is_wanted_with_the_fewest_calls(case: Case) -> None:
    before = copy.deepcopy(case.before)
    plan = plan_slices(case.want, before, node_uid="node-uid")

    assert before == case.before, "a plan changes nothing that it is given"
    assert (len(plan.creates), len(plan.updates), len(plan.deletes)) == case.calls
    after = apply(plan, before, case.server)
    pools = {(body["spec"]["pool"]["generation"], body["spec"]["pool"]["resourceSliceCount"]) for body in after}
    assert pools == {(case.gen, case.count)}
    assert len(after) == case.count
    for device in (device for body in after for device in body["spec"].get("devices", [])):
        for one in device.get("taints", []):
            assert one.get("timeAdded", "") == case.times.get(one["key"], one.get("timeAdded", ""))

    modifications, gates = dropped(case, plan)
    assert gates == case.gates
    again = apply_modifications(case.want, modifications)
    assert len(plan_slices(again, after, node_uid="node-uid")) == 0, "a second round finds nothing to do"


def dropped(case: Case, plan: Plan) -> tuple[dict[int, ServerModification], tuple[str, ...]]:
    modifications: dict[int, ServerModification] = {}
    gates: tuple[str, ...] = ()
    writes: tuple[Update | Create, ...] = (*plan.updates, *plan.creates)
    for write in writes:
        answer = case.server(write.body)
        modification = find_modification(case.want.slices[write.index], write.body, answer)
        if modification is not None:
            modifications[write.index] = modification
            gates += name_gates(write.body["spec"], answer["spec"])
    return modifications, gates


def test_a_created_slice_belongs_to_its_node_and_carries_its_index() -> None:
    [create] = plan_slices(wanted(A), [], node_uid="node-uid").creates
    assert create.body == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {
            "generateName": "00000-gpu.example.com-node1-",
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "node-uid", "controller": True}
            ],
        },
        "spec": {
            "driver": DRIVER,
            "nodeName": NODE,
            "pool": {"name": POOL, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "gpu-a"}],
        },
    }


def test_deletes_come_in_the_order_of_names_whatever_the_cache_gives() -> None:
    before = [stored(name, A, pool="another") for name in "zaqm"]
    assert [delete.name for delete in plan_slices(wanted(A), before).deletes] == ["a", "m", "q", "z"]


names = st.lists(st.sampled_from([f"gpu-{n}" for n in range(6)]), max_size=3, unique=True)


@given(
    before=st.lists(st.tuples(st.integers(0, 4), names, st.integers(1, 3), st.booleans()), max_size=6),
    want=st.lists(names, min_size=1, max_size=4),
)
def test_any_mess_becomes_one_whole_generation_and_then_rests(
    before: list[tuple[int, list[str], int, bool]], want: list[list[str]]
) -> None:
    slices = [
        stored(f"{index:05x}-{DRIVER}-{n}" if named else f"random-{n}", devices(*content), gen=gen)
        for n, (index, content, gen, named) in enumerate(before)
    ]
    pool = wanted(*(devices(*content) for content in want))
    after = apply(plan_slices(pool, slices, node_uid="node-uid"), slices, keep)

    assert len({body["spec"]["pool"]["generation"] for body in after}) == 1
    in_order = sorted(after, key=lambda body: str(body["metadata"]["name"]))
    assert len(in_order) == len(want)
    assert all(same_content(a, b["spec"] | {}) for a, b in zip(pool.slices, in_order, strict=True))
    assert len(plan_slices(pool, after, node_uid="node-uid")) == 0
