"""Feature gates that are off: which ones a server dropped fields for, and what is published without them."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pydra.devices import (
    Capacity,
    CounterConsumption,
    CounterSet,
    Device,
    NodeAllocatable,
    Pool,
    RequestPolicy,
    Taint,
    TaintEffect,
)
from pydra.inventory.api_rules import is_compatible
from pydra.slices.build import WantedPool, build_wanted
from pydra.slices.server_limitations import (
    ALLOCATABLE,
    BINDING,
    EFFECT_NONE,
    GROUPS,
    LISTS,
    OVERHEADS,
    PARTITION_TYPE,
    PARTITIONS,
    SHARES,
    TAINTS,
    FieldsDropped,
    apply_modifications,
    build_probe,
    find_modification,
    find_refused,
    has_lists,
    name_gates,
    reduce_pool,
)

GATES = (ALLOCATABLE, BINDING, GROUPS, LISTS, PARTITIONS, SHARES, TAINTS)
BOARD = CounterSet(name="board", counters={"slots": 4, "memory": "16Gi"})


def part(name: str, slots: int, memory: str = "1Gi", counter_set: str = "board", groups: str = "") -> Device:
    counters: dict[str, int | str] = {"slots": slots, "memory": memory}
    consumption = CounterConsumption(
        counter_set=counter_set, counters=counters, compatibility_groups=tuple(groups.split())
    )
    return Device(name=name, consumes_counters=(consumption,))


PLAIN = Device(name="plain", attributes={"model": "x"})
SICK = Device(name="sick", taints=(Taint(key="example.com/sick"),))
EVICTED = Device(name="evicted", taints=(Taint(key="example.com/sick", effect=TaintEffect.NO_EXECUTE),))
NOTED = Device(name="noted", taints=(Taint(key="example.com/old", effect=TaintEffect.NONE),))
BOUND = Device(name="bound", binding_conditions=("example.com/a",), binding_failure_conditions=("example.com/b",))
LOCAL = Device(name="local", binds_to_node=True)
SHARED = Device(
    name="shared",
    allow_multiple_allocations=True,
    capacity={"memory": Capacity("8Gi", RequestPolicy(default="1Gi"))},
)
CPUS = Device(
    name="cpus",
    allow_multiple_allocations=True,
    capacity={"cores": Capacity(8)},
    node_allocatable={
        "cpu": NodeAllocatable(capacity="cores", multiplier="1500m", per_pod=1),
        "memory": NodeAllocatable(per_container="1Gi"),
    },
)
NUMA = "resource.kubernetes.io/numaNode"
LISTED = Device(name="listed", attributes={"peers": ("a", "b"), "model": "x"})


@pytest.mark.parametrize(
    ("gates", "device", "published"),
    [
        ({TAINTS}, SICK, None),
        ({TAINTS}, EVICTED, None),
        ({TAINTS}, NOTED, Device(name="noted")),
        ({BINDING}, BOUND, None),
        ({BINDING}, LOCAL, Device(name="local")),
        ({SHARES}, SHARED, Device(name="shared", capacity={"memory": Capacity("8Gi")})),
        ({LISTS}, LISTED, Device(name="listed", attributes={"model": "x"})),
        ({LISTS}, Device(name="near", attributes={NUMA: (3, 2)}), Device(name="near", attributes={NUMA: 3})),
        ({ALLOCATABLE}, CPUS, replace(CPUS, node_allocatable={})),
        (
            {OVERHEADS},
            CPUS,
            replace(CPUS, node_allocatable={"cpu": NodeAllocatable(capacity="cores", multiplier="1500m")}),
        ),
        (
            {SHARES, OVERHEADS},
            CPUS,
            Device(
                name="cpus",
                capacity={"cores": Capacity(8)},
                node_allocatable={"cpu": NodeAllocatable(multiplier="12000000000n")},
            ),
        ),
        ({PARTITIONS}, part("whole", 4), Device(name="whole")),
        ({PARTITIONS}, part("over", 5), None),
        ({PARTITIONS}, part("stray", 1, counter_set="nowhere"), None),
        (set(GATES), PLAIN, PLAIN),
        ({PARTITIONS}, SICK, SICK),
        (set(), BOUND, BOUND),
    ],
)
def test_a_device_is_published_without_the_fields_or_not_at_all(
    gates: set[str], device: Device, published: Device | None
) -> None:
    found = reduce_pool(Pool(name="p", devices=(device, PLAIN), counter_sets=(BOARD,)), gates)
    assert found.pool.devices == ((published,) if published is not None else ()) + (PLAIN,)
    assert found.withheld == (() if published is not None else (device.name,))


@pytest.mark.parametrize(
    ("devices", "published"),
    [
        ([part("whole", 4), part("half-0", 2), part("half-1", 2)], ["whole"]),
        ([part("half-0", 2), part("half-1", 2), part("whole", 4)], ["half-0", "half-1"]),
        ([part("half-0", 2), part("whole", 4), part("quarter", 1)], ["half-0", "quarter"]),
        ([part("greedy", 1, "16Gi"), part("quarter", 1), PLAIN], ["greedy", "plain"]),
    ],
    ids=["the whole board first", "halves first", "what still fits", "any of the counters"],
)
def test_of_partitions_those_are_published_that_fit_beside_each_other(
    devices: list[Device], published: list[str]
) -> None:
    found = reduce_pool(Pool(name="p", devices=tuple(devices), counter_sets=(BOARD,)), {PARTITIONS})
    assert [device.name for device in found.pool.devices] == published
    assert not found.pool.counter_sets


@pytest.mark.parametrize(
    ("devices", "published"),
    [
        ([part("mig", 2, groups="mig"), part("vgpu", 2, groups="vgpu"), part("other", 1, groups="mig")], "mig other"),
        ([part("plain", 1), part("mig", 2, groups="mig"), part("vgpu", 4, groups="vgpu")], "plain vgpu"),
        ([part("whole", 4), part("mig", 2, groups="mig"), part("half", 2, groups="mig any")], "whole mig half"),
        ([part("a", 1, groups="x y"), part("b", 1, groups="y z"), part("c", 1, groups="z x")], "a b"),
        ([part("mig", 2, groups="mig"), part("vgpu", 2, counter_set="other", groups="vgpu")], "mig vgpu"),
    ],
    ids=[
        "another group",
        "none beside a group",
        "what the counters exclude anyway",
        "one group for all",
        "another counter set",
    ],
)
def test_without_compatibility_groups_no_devices_are_published_that_may_not_be_used_at_once(
    devices: list[Device], published: str
) -> None:
    other = CounterSet(name="other", counters=BOARD.counters)
    found = reduce_pool(Pool(name="p", devices=tuple(devices), counter_sets=(BOARD, other)), {GROUPS})
    assert [device.name for device in found.pool.devices] == published.split()
    assert not any(one.compatibility_groups for device in found.pool.devices for one in device.consumes_counters)
    assert reduce_pool(Pool(name="p", devices=tuple(devices), counter_sets=(BOARD, other)), ()).withheld == ()


def test_a_board_that_is_sick_does_not_make_room_for_its_partitions() -> None:
    whole = part("whole", 4)
    sick = Device(name="whole", consumes_counters=whole.consumes_counters, taints=SICK.taints)
    pool = Pool(name="p", devices=(sick, part("half", 2)), counter_sets=(BOARD,))
    assert reduce_pool(pool, {PARTITIONS, TAINTS}).pool.devices == (), "a pod may still have the whole board"


@st.composite
def devices(draw: st.DrawFn) -> tuple[Device, ...]:
    """Up to eight devices that draw on two counter sets of four slots, with taints and shares."""
    made = []
    for number in range(draw(st.integers(0, 8))):
        drawn = draw(st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 5), max_size=2))
        effects = draw(st.lists(st.sampled_from(TaintEffect), max_size=2))
        made.append(
            Device(
                name=f"d-{number}",
                consumes_counters=tuple(
                    CounterConsumption(
                        counter_set=name,
                        counters={"slots": slots},
                        compatibility_groups=tuple(draw(st.sets(st.sampled_from("xy")))),
                    )
                    for name, slots in drawn.items()
                ),
                taints=tuple(Taint(key=f"example.com/{place}", effect=one) for place, one in enumerate(effects)),
                allow_multiple_allocations=draw(st.booleans()),
            )
        )
    return tuple(made)


def fit(one: Device, other: Device) -> bool:
    """Whether four slots of each set are enough for both."""
    used: dict[str, int] = {}
    for consumption in (*one.consumes_counters, *other.consumes_counters):
        used[consumption.counter_set] = used.get(consumption.counter_set, 0) + int(consumption.counters["slots"])
    return all(slots <= 4 for slots in used.values())


@given(devices(), st.sets(st.sampled_from(GATES)))
def test_whatever_the_gates_nothing_is_published_that_could_be_given_out_twice(
    made: tuple[Device, ...], gates: set[str]
) -> None:
    sets = tuple(CounterSet(name=name, counters={"slots": 4}) for name in ("a", "b"))
    found = reduce_pool(Pool(name="p", devices=made, counter_sets=sets), gates)
    by_name = {device.name: device for device in made}
    names = [device.name for device in found.pool.devices]
    assert sorted([*names, *found.withheld]) == sorted(by_name)
    if PARTITIONS in gates:
        for counter_set in ("a", "b"):
            used = chain.from_iterable(by_name[name].consumes_counters for name in names)
            assert sum(int(one.counters["slots"]) for one in used if one.counter_set == counter_set) <= 4
    if PARTITIONS in gates or GROUPS in gates:
        for one, other in combinations([by_name[name] for name in names], 2):
            assert is_compatible(one.consumes_counters, [other.consumes_counters]) or not fit(one, other)
    if TAINTS in gates:
        assert all(taint.effect is TaintEffect.NONE for name in names for taint in by_name[name].taints)
    assert reduce_pool(found.pool, gates).pool == found.pool, "a second time finds nothing more"


@pytest.mark.parametrize(
    "device", [SICK, NOTED, BOUND, LOCAL, SHARED, LISTED, CPUS, part("part", 1)], ids=lambda device: device.name
)
def test_what_depends_on_a_gate_is_known_and_nothing_else(device: Device) -> None:
    assert build_probe(Pool(name="p", devices=(PLAIN, device))).devices == (device,)
    (whole,) = build_wanted(Pool(name="p", devices=(device,)), driver="d", node="n").slices
    assert has_lists(whole) is (device is LISTED)
    left = reduce_pool(Pool(name="p", devices=(device,), counter_sets=(BOARD,)), GATES).pool
    assert not build_probe(left).devices
    (reduced,) = build_wanted(left, driver="d", node="n").slices
    assert name_gates(whole, reduced), "the server's loss would have named the gate"


JsonObject = dict[str, Any]


def gpu(**fields: Any) -> JsonObject:
    return {"devices": [{"name": "gpu-0", **fields}]}


LOSSES: dict[str, tuple[JsonObject, JsonObject, tuple[str, ...]]] = {
    "taints": (gpu(taints=[{"key": "k"}]), gpu(), ("DRADeviceTaints",)),
    "one of two taints": (
        gpu(taints=[{"key": "k"}, {"key": "l"}]),
        gpu(taints=[{"key": "k"}]),
        ("DRADeviceTaints",),
    ),
    "counters": ({"sharedCounters": [{"name": "c"}]}, {}, ("DRAPartitionableDevices",)),
    "consumption": (gpu(consumesCounters=[{"counterSet": "c"}]), gpu(), ("DRAPartitionableDevices",)),
    "binding": (gpu(bindingConditions=["a"]), gpu(), ("DRADeviceBindingConditions",)),
    "binding to the node": (gpu(bindsToNode=True), gpu(), ("DRADeviceBindingConditions",)),
    "sharing": (gpu(allowMultipleAllocations=True), gpu(), ("DRAConsumableCapacity",)),
    "a policy": (
        gpu(capacity={"m": {"value": "1", "requestPolicy": {"default": "1"}}}),
        gpu(capacity={"m": {"value": "1"}}),
        ("DRAConsumableCapacity",),
    ),
    "two things": (
        gpu(taints=[{"key": "k"}], allowMultipleAllocations=True),
        gpu(),
        ("DRAConsumableCapacity", "DRADeviceTaints"),
    ),
    "what is used of the node": (
        gpu(nodeAllocatableResources={"cpu": {"mapping": {"deviceMultiplier": "1"}}}),
        gpu(),
        ("overheads of node allocatable resources",),
    ),
    "what is used of the node, in 1.36": (
        gpu(nodeAllocatableResourceMappings={"cpu": {"allocationMultiplier": "1"}}),
        gpu(),
        ("DRANodeAllocatableResources",),
    ),
    "compatibility groups": (
        gpu(consumesCounters=[{"counterSet": "c", "compatibilityGroups": ["a"]}]),
        gpu(consumesCounters=[{"counterSet": "c"}]),
        ("DRADeviceCompatibilityGroups",),
    ),
    "the type of partitions": (
        {"partitionTypeAttribute": "example.com/type"},
        {},
        ("DRAPartitionableDevicesType",),
    ),
    "something else": (gpu(novelty=True), gpu(), ()),
}


@pytest.mark.parametrize(("sent", "stored", "gates"), LOSSES.values(), ids=LOSSES)
def test_a_loss_names_its_gate(sent: JsonObject, stored: JsonObject, gates: tuple[str, ...]) -> None:
    assert name_gates(sent, stored) == gates
    assert name_gates(sent, sent) == ()


@pytest.mark.parametrize(("sent", "stored", "gates"), LOSSES.values(), ids=LOSSES)
def test_what_was_dropped_is_not_asked_for_again_until_something_else_is(
    sent: JsonObject, stored: JsonObject, gates: tuple[str, ...]
) -> None:
    wanted = WantedPool(driver="d", name="p", node="n", slices=(gpu(), sent))
    modification = find_modification(sent, {"spec": sent}, {"spec": stored})
    assert modification is not None
    assert apply_modifications(wanted, {1: modification}).slices == (gpu(), {k: v for k, v in stored.items() if v})
    changed = WantedPool(driver="d", name="p", node="n", slices=(gpu(), {**sent, "devices": [{"name": "new"}]}))
    assert apply_modifications(changed, {1: modification}) == changed


def test_the_type_of_partitions_is_only_published_where_it_is_known() -> None:
    pool = Pool(name="p", devices=(part("whole", 4),), counter_sets=(BOARD,), partition_type="type")
    assert reduce_pool(pool, {PARTITION_TYPE}).pool == replace(pool, partition_type="")
    assert reduce_pool(pool, {PARTITION_TYPE}).withheld == ()


def test_a_faithful_server_gives_nothing_to_adopt() -> None:
    assert find_modification(gpu(), {"spec": gpu()}, {"spec": gpu(taints=[])}) is None


def test_the_warning_names_the_gates_and_what_is_not_published() -> None:
    warning = str(FieldsDropped(pool="p", gates=("DRADeviceTaints", "DRAListTypeAttributes"), withheld=("a", "b")))
    assert warning == (
        'pool "p": some fields are dropped by the API server, probably because these feature gates are off: '
        "DRADeviceTaints, DRAListTypeAttributes. Turn them on in the control plane and the kubelets "
        "(DRADeviceTaints: on by default from Kubernetes 1.36; DRAListTypeAttributes exists from Kubernetes 1.36). "
        "Not published until then, since unsafe without: a, b"
    )
    many = tuple(f"part-{number}" for number in range(200))
    assert len(str(FieldsDropped(pool="p" * 253, gates=("DRAPartitionableDevices",), withheld=many)).encode()) < 1024
    assert str(FieldsDropped(pool="p", gates=())).endswith("for a reason that is not known")
    refused = FieldsDropped(pool="p", gates=(EFFECT_NONE,), refused=("gpu-3 (taints: Too many: 5)",))
    assert str(refused) == (
        'pool "p": Taints with the effect None are left out, which Kubernetes accepts from 1.35. '
        "Not published, because the API server refuses them: gpu-3 (taints: Too many: 5)"
    )


TOO_MANY = "taints: Too many: 5: must have at most 4 items"


@pytest.mark.parametrize(
    ("refusal", "found"),
    [
        (f"spec.devices[1].{TOO_MANY}", {"b": TOO_MANY}),
        (
            f"[spec.devices[0].{TOO_MANY}, spec.devices[0].name: Required value, spec.devices[1].{TOO_MANY}]",
            {"a": TOO_MANY, "b": TOO_MANY},
        ),
        ("spec.devices: Too many: 129: must have at most 128 items", {}),
        (f"spec.devices[7].{TOO_MANY}", {}),
    ],
)
def test_a_refusal_names_the_devices_that_it_is_about(refusal: str, found: dict[str, str]) -> None:
    content = {"devices": [{"name": "a"}, {"name": "b"}]}
    text = f'the API server answered 422 Invalid: ResourceSlice.resource.k8s.io "0-x" is invalid: {refusal}'
    assert find_refused(text, content) == found
