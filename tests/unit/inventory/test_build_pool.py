"""From inventories to pools: what is left out, what is tainted, and when health changes take effect."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pydra.devices import (
    CounterConsumption,
    CounterSet,
    Device,
    DeviceHealth,
    Health,
    HealthStatus,
    Inventory,
    Taint,
    TaintEffect,
)
from pydra.inventory.api_rules import check_device
from pydra.inventory.build_pool import Published, build_pool
from pydra.inventory.health_debounce import HealthPolicy, Snapshot, mark_unavailable, observe

WELL = Health()
SICK = Health(status=HealthStatus.UNHEALTHY, message="XID 79: the GPU fell off the bus", reason="XID79")
SICKER = Health(status=HealthStatus.UNHEALTHY, message="row remap failed", reason="RowRemap")
UNKNOWN = Health(status=HealthStatus.UNKNOWN, message="no answer from the driver")
POLICY = HealthPolicy(
    effect=TaintEffect.NO_SCHEDULE,
    unhealthy_after=5.0,
    healthy_after=30.0,
    stale_effect=TaintEffect.NO_SCHEDULE,
    stale_after=60.0,
)


def inventory(*devices: Device, **fields: Any) -> Inventory:
    return Inventory(devices=devices, **fields)


def gpu(health: Health = WELL, **fields: Any) -> Device:
    return Device(**{"name": "gpu-0", "health": health, **fields})


def publish(snapshot: Snapshot, policy: HealthPolicy = POLICY, **quarantined: str) -> Published:
    names = {name.replace("_", "-"): reason for name, reason in quarantined.items()}
    return build_pool(snapshot, driver="gpu.example.com", pool="node1", policy=policy, quarantined=names)


def once(*devices: Device, **fields: Any) -> Published:
    return publish(observe(Snapshot(), inventory(*devices, **fields), now=0.0, policy=POLICY))


def seen(
    *reports: tuple[float, Health], policy: HealthPolicy = POLICY
) -> tuple[Snapshot, HealthStatus, tuple[Taint, ...]]:
    snapshot = Snapshot()
    for now, health in reports:
        snapshot = observe(snapshot, inventory(gpu(health)), now=now, policy=policy)
    published = publish(snapshot, policy)
    return snapshot, published.health[0].status, published.pool.devices[0].taints


def test_what_the_backend_could_not_read_is_reported_beside_the_devices_until_it_is_read() -> None:
    first = observe(Snapshot(), inventory(gpu(), unreadable=("board 3: no answer",)), now=0.0, policy=POLICY)
    assert publish(first).unreadable == ("board 3: no answer",)
    assert [device.name for device in publish(first).pool.devices] == ["gpu-0"]
    assert publish(observe(first, inventory(gpu()), now=1.0, policy=POLICY)).unreadable == ()


def test_a_faultless_inventory_is_published_as_it_is() -> None:
    devices = (Device(name="gpu-1"), Device(name="gpu-0"))
    published = once(*devices)
    assert published.pool.name == "node1"
    assert published.pool.devices == devices, "the backend's order is the order of allocation"
    assert published.dropped == published.problems == ()
    assert published.health == tuple(
        DeviceHealth(pool="node1", device=name, status=HealthStatus.HEALTHY) for name in ("gpu-1", "gpu-0")
    )


def test_one_bad_device_is_left_out_with_its_faults_and_the_others_stay() -> None:
    published = once(Device(name="gpu-0"), Device(name="GPU 1", attributes={"a-b": 1}), Device(name="gpu-2"))
    assert [device.name for device in published.pool.devices] == ["gpu-0", "gpu-2"]
    [problem] = published.dropped
    assert problem.startswith("device 'GPU 1' is not published: name 'GPU 1' must be a DNS label")
    assert "attribute 'a-b'" in problem
    assert [health.device for health in published.health] == ["gpu-0", "gpu-2"]


def test_of_two_devices_of_one_name_the_first_is_kept() -> None:
    published = once(gpu(attributes={"which": "first"}), gpu(attributes={"which": "second"}))
    assert [device.attributes["which"] for device in published.pool.devices] == ["first"]
    assert published.dropped == ("device 'gpu-0' is not published: the name is taken by another one, which is kept",)


def test_a_bad_counter_set_costs_the_devices_that_draw_from_it_only() -> None:
    def part(name: str, counter_set: str, counter: str = "memory") -> Device:
        consumption = CounterConsumption(counter_set=counter_set, counters={counter: 1})
        return Device(name=name, consumes_counters=(consumption,))

    published = once(
        part("a", "good"),
        part("b", "empty"),
        part("c", "absent"),
        part("d", "good", "compute"),
        counter_sets=(CounterSet(name="good", counters={"memory": 8}), CounterSet(name="empty", counters={})),
    )
    assert [device.name for device in published.pool.devices] == ["a"]
    assert [one.name for one in published.pool.counter_sets] == ["good"]
    assert published.problems == ("counter set 'empty' is not published: counters: 0 counters; 1 to 32 are allowed",)
    assert published.dropped == (
        "device 'b' is not published: consumes from counter set 'empty', which the pool does not have",
        "device 'c' is not published: consumes from counter set 'absent', which the pool does not have",
        "device 'd' is not published: consumes counter 'compute', which counter set 'good' does not have",
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("profile", ""),
        ("model", "partition_type 'model' is not published: device 'part' has no such attribute with a string"),
        ("memory", "partition_type 'memory' is not published: device 'part' has no such attribute with a string"),
        ("a/b/c", "partition_type 'a/b/c' is not published: it must be the name of an attribute"),
    ],
)
def test_the_type_of_partitions_is_a_string_that_all_of_them_have(name: str, problem: str) -> None:
    consumption = CounterConsumption(counter_set="gpu", counters={"memory": 1})
    part = Device(name="part", attributes={"profile": "1g", "memory": 1}, consumes_counters=(consumption,))
    published = once(
        part,
        Device(name="whole", attributes={"model": "x"}),
        counter_sets=(CounterSet(name="gpu", counters={"memory": 8}),),
        partition_type=name,
    )
    assert len(published.pool.devices) == 2
    assert published.problems == ((problem,) if problem else ())
    assert published.pool.partition_type == ("" if problem else name)


def test_a_device_that_is_sick_when_first_seen_is_tainted_at_once() -> None:
    _, status, taints = seen((0, SICK))
    assert status is HealthStatus.UNHEALTHY
    assert taints == (Taint(key="gpu.example.com/unhealthy", value="XID79", effect=TaintEffect.NO_SCHEDULE),)


SETTLING = {
    "a short illness is not believed": ([(0, WELL), (1, SICK), (5.9, SICK)], False),
    "a long one is": ([(0, WELL), (1, SICK), (6, SICK)], True),
    "one that breaks off starts again": ([(0, WELL), (1, SICK), (5, WELL), (5.5, SICK), (10, SICK)], False),
    "a silence does not count as well": ([(0, WELL), (1, SICK), (6, SICK), (7, UNKNOWN), (99, UNKNOWN)], True),
    "a silence breaks off a beginning illness": ([(0, WELL), (1, SICK), (3, UNKNOWN), (6, SICK)], False),
    "a short recovery is not believed": ([(0, SICK), (10, WELL), (39.9, WELL)], True),
    "a long one is well": ([(0, SICK), (10, WELL), (40, WELL)], False),
    "a relapse starts the recovery again": ([(0, SICK), (10, WELL), (35, SICK), (36, WELL), (65, WELL)], True),
}


@pytest.mark.parametrize(("reports", "sick"), SETTLING.values(), ids=SETTLING)
def test_health_settles_after_its_time(reports: list[tuple[float, Health]], sick: bool) -> None:
    _, _, taints = seen(*reports)
    assert bool(taints) is sick


def test_without_a_delay_an_illness_is_believed_at_once() -> None:
    _, status, taints = seen((0, WELL), (1, SICK), policy=replace(POLICY, unhealthy_after=0.0))
    assert (status, bool(taints)) == (HealthStatus.UNHEALTHY, True)


def test_the_latest_cause_is_reported_of_a_sick_device() -> None:
    snapshot, _, [taint] = seen((0, SICK), (1, SICKER))
    assert taint.value == "RowRemap"
    assert publish(snapshot).health[0].message == "row remap failed"


def test_a_recovering_device_is_still_called_unhealthy_with_its_cause() -> None:
    snapshot, status, _ = seen((0, SICK), (1, WELL))
    assert status is HealthStatus.UNHEALTHY
    assert publish(snapshot).health[0].message == SICK.message


def test_the_next_time_to_look_is_when_something_settles() -> None:
    assert seen((0, WELL))[0].debounced_at is None
    assert seen((0, WELL), (1, SICK))[0].debounced_at == 6
    assert seen((0, SICK), (1, WELL))[0].debounced_at == 31


def test_an_answer_that_changes_nothing_gives_the_same_snapshot() -> None:
    once = observe(Snapshot(), inventory(gpu(SICK), Device(name="gpu-1")), now=0, policy=POLICY)
    assert observe(once, inventory(gpu(SICK), Device(name="gpu-1")), now=99, policy=POLICY) is once
    settling = observe(once, inventory(gpu(WELL), Device(name="gpu-1")), now=100, policy=POLICY)
    assert observe(settling, inventory(gpu(WELL), Device(name="gpu-1")), now=130, policy=POLICY) is not settling
    assert observe(mark_unavailable(once, "down"), once.inventory, now=99, policy=POLICY).unavailable == ""


def test_a_device_that_says_unknown_is_unknown_to_the_kubelet_and_not_tainted() -> None:
    snapshot, status, taints = seen((0, WELL), (1, UNKNOWN))
    assert (status, taints) == (HealthStatus.UNKNOWN, ())
    assert publish(snapshot).health[0].message == "no answer from the driver"


def test_while_the_backend_is_down_the_pool_stays_and_health_is_unknown() -> None:
    snapshot = observe(Snapshot(), inventory(gpu(SICK), Device(name="gpu-1")), now=0, policy=POLICY)
    before, during = publish(snapshot), publish(mark_unavailable(snapshot, "the backend died of signal 11"))
    assert during.pool == before.pool
    assert {(one.status, one.message) for one in during.health} == {
        (HealthStatus.UNKNOWN, "the backend died of signal 11")
    }
    assert (
        publish(observe(mark_unavailable(snapshot, ""), inventory(gpu(SICK)), now=1, policy=POLICY)).health
        == before.health[:1]
    )


@pytest.mark.parametrize(
    ("effect", "taints"),
    [
        (None, ()),
        (
            TaintEffect.NO_EXECUTE,
            (Taint(key="gpu.example.com/unhealthy", value="XID79", effect=TaintEffect.NO_EXECUTE),),
        ),
    ],
    ids=["none", "NoExecute"],
)
def test_the_effect_of_an_illness_is_a_policy(effect: TaintEffect | None, taints: tuple[Taint, ...]) -> None:
    policy = replace(POLICY, unhealthy_after=0.0, effect=effect)
    assert seen((0, SICK), policy=policy)[1:] == (HealthStatus.UNHEALTHY, taints)


@pytest.mark.parametrize(
    ("health", "taint"),
    [
        ({"taint": "xid"}, Taint(key="gpu.example.com/xid", value="79")),
        ({"taint": "health.example.org/xid"}, Taint(key="health.example.org/xid", value="79")),
        (
            {"taint": "gpu-unavailable", "effect": TaintEffect.NO_EXECUTE},
            Taint(key="gpu.example.com/gpu-unavailable", value="79", effect=TaintEffect.NO_EXECUTE),
        ),
    ],
    ids=["a key below the driver's name", "a key of another domain", "an effect of its own"],
)
def test_a_backend_may_name_the_taint_and_its_effect(health: dict[str, Any], taint: Taint) -> None:
    sick = Health(status=HealthStatus.UNHEALTHY, reason="79", **health)
    assert seen((0, sick))[2] == (taint,)
    assert seen((0, sick), policy=replace(POLICY, unhealthy_after=0.0, effect=None))[2] == ()


@pytest.mark.parametrize("status", [HealthStatus.UNHEALTHY, HealthStatus.UNKNOWN])
def test_a_reason_without_a_message_is_the_message(status: HealthStatus) -> None:
    assert once(gpu(Health(status=status, reason="hot"))).health[0].message == "hot"


def test_a_key_that_no_taint_can_have_does_not_hide_the_illness() -> None:
    published = once(gpu(Health(status=HealthStatus.UNHEALTHY, taint="no key!", reason="hot")))
    assert published.pool.devices[0].taints == (Taint(key="gpu.example.com/unhealthy", value="hot"),)
    assert published.problems == (
        "device 'gpu-0': health.taint 'no key!' is not a valid key of a taint; 'unhealthy' is used",
    )


def test_a_quarantined_device_is_tainted_beside_its_own_taints_with_other_keys() -> None:
    own = Taint(key="example.com/lab", effect=TaintEffect.NONE)
    same = Taint(key="gpu.example.com/quarantined", value="by-the-backend")
    snapshot = observe(Snapshot(), inventory(gpu(taints=(same, own))), now=0, policy=POLICY)
    published = publish(snapshot, gpu_0="signal 11!")
    assert published.pool.devices[0].taints == (Taint(key="gpu.example.com/quarantined", value="signal-11"), own)


def test_sixteen_taints_of_the_backend_make_room_for_the_agents() -> None:
    many = tuple(Taint(key=f"example.com/t{n}") for n in range(16))
    published = once(gpu(SICK, taints=many))
    [device] = published.pool.devices
    assert len(device.taints) == 16
    assert device.taints[0].key == "gpu.example.com/unhealthy"
    assert published.problems == ("device 'gpu-0': at most 16 taints are allowed; left out: example.com/t15",)


def test_a_device_that_left_is_forgotten() -> None:
    snapshot, *_ = seen((0, SICK))
    snapshot = observe(snapshot, inventory(), now=1, policy=POLICY)
    snapshot = observe(snapshot, inventory(gpu(WELL)), now=2, policy=POLICY)
    assert publish(snapshot).pool.devices[0].taints == ()


texts = st.text(max_size=40)
devices = st.builds(
    Device,
    name=st.one_of(st.sampled_from(["gpu-0", "gpu-1"]), texts),
    attributes=st.dictionaries(texts, st.one_of(texts, st.integers(), st.booleans()), max_size=3),
    taints=st.lists(st.builds(Taint, key=texts, value=texts), max_size=2).map(tuple),
    health=st.builds(
        Health, status=st.sampled_from(HealthStatus), reason=texts, taint=st.one_of(st.just("xid"), texts)
    ),
)


@given(st.lists(devices, max_size=5))
def test_whatever_a_backend_says_what_is_published_is_within_the_rules(found: list[Device]) -> None:
    published = once(*found)
    assert not [problem for device in published.pool.devices for problem in check_device(device)]
    names = [device.name for device in published.pool.devices]
    assert len(names) == len(set(names)) == len(published.health)
    assert len(names) + len(published.dropped) == len(found)
