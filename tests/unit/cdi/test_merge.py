"""The edits of several devices: conflicts, and what they share."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydra.cdi.edits import ContainerEdits, DeviceNode, Hook
from pydra.cdi.merge import find_conflicts, normal_edits, share_edits
from tests.unit.cdi import strategies

NOTHING = ContainerEdits()


@pytest.mark.parametrize(
    ("first", "second", "conflict"),
    [
        pytest.param(
            NOTHING.with_env("VISIBLE", "0"),
            NOTHING.with_env("VISIBLE", "1"),
            'environment variable VISIBLE: device a sets "0", device b sets "1"',
            id="a variable",
        ),
        pytest.param(
            NOTHING.with_device_node("/dev/ctl", permissions="rw"),
            NOTHING.with_device_node("/dev//ctl", permissions="r"),
            'device node /dev/ctl: device a sets path="/dev/ctl" permissions="rw", '
            'device b sets path="/dev//ctl" permissions="r"',
            id="a device node, spelt in two ways",
        ),
        pytest.param(
            NOTHING.with_mount("/opt/a", "/lib/x"),
            NOTHING.with_mount("/opt/b", "/lib/x"),
            'mount at /lib/x: device a sets host_path="/opt/a", device b sets host_path="/opt/b"',
            id="a mount",
        ),
        pytest.param(
            NOTHING.with_net_device("eth0", "net0"),
            NOTHING.with_net_device("eth0", "net1"),
            'host interface eth0: device a sets name="net0", device b sets name="net1"',
            id="a host interface with two names",
        ),
        pytest.param(
            NOTHING.with_net_device("eth0", "net0"),
            NOTHING.with_net_device("eth1", "net0"),
            'container interface net0: device a sets host_interface_name="eth0", '
            'device b sets host_interface_name="eth1"',
            id="two host interfaces of one name",
        ),
        pytest.param(
            NOTHING.with_intel_rdt(clos_id="gold"),
            NOTHING.with_intel_rdt(schemata=["L3:0=f"]),
            'Intel RDT: device a sets clos_id="gold" schemata=[], device b sets clos_id="" schemata=["L3:0=f"]',
            id="Intel RDT, of which a runtime keeps one",
        ),
    ],
)
def test_two_devices_that_want_different_things_are_both_named_with_what_they_want(
    first: ContainerEdits, second: ContainerEdits, conflict: str
) -> None:
    assert find_conflicts([("device a", first), ("device b", second)]) == (conflict,)


def test_a_third_device_conflicts_with_the_first_that_wrote() -> None:
    owned = [("a", NOTHING.with_env("X", "1")), ("b", NOTHING.with_env("X", "1")), ("c", NOTHING.with_env("X", "2"))]
    assert find_conflicts(owned) == ('environment variable X: a sets "1", c sets "2"',)


def test_a_long_value_is_shown_in_part() -> None:
    (conflict,) = find_conflicts([("a", NOTHING.with_env("X", "y" * 5000)), ("b", NOTHING.with_env("X", ""))])
    assert len(conflict) < 300


@given(edits=strategies.edits)
def test_two_devices_that_want_the_same_do_not_conflict(edits: ContainerEdits) -> None:
    normal = normal_edits(edits)
    alone = find_conflicts([("a", normal)])
    assert find_conflicts([("a", normal), ("b", normal)])[: len(alone)] == alone
    if not alone:
        assert find_conflicts([("a", normal), ("b", normal)]) == ()


@given(edits=strategies.edits, data=st.data())
def test_the_order_in_which_a_backend_lists_things_does_not_matter(edits: ContainerEdits, data: st.DataObject) -> None:
    if find_conflicts([("a", normal_edits(edits))]):
        return
    shuffled = ContainerEdits(
        env=dict(data.draw(st.permutations(list(edits.env.items())))),
        device_nodes=tuple(data.draw(st.permutations(edits.device_nodes))),
        mounts=tuple(data.draw(st.permutations(edits.mounts))),
        hooks=edits.hooks,
        net_devices=tuple(data.draw(st.permutations(edits.net_devices))),
        intel_rdt=edits.intel_rdt,
        additional_gids=tuple(data.draw(st.permutations(edits.additional_gids))),
    )
    assert normal_edits(shuffled) == normal_edits(edits)


def test_what_says_nothing_is_left_out() -> None:
    node = DeviceNode(path="/dev/a", host_path="/dev/a", optional=True)
    edits = ContainerEdits(device_nodes=(node, node), additional_gids=(5, 0, 5), hooks=(_hook("a"), _hook("a")))
    assert normal_edits(edits) == ContainerEdits(
        device_nodes=(DeviceNode(path="/dev/a"),), additional_gids=(5,), hooks=(_hook("a"),)
    )


def test_what_all_devices_share_is_taken_out_of_each() -> None:
    common = NOTHING.with_env("LIB", "1").with_mount("/lib").with_hook("poststop", "/a").with_additional_gids(44)
    first, second = common.with_device_node("/dev/a"), common.with_device_node("/dev/b")
    assert share_edits([first, second]) == (
        common,
        (NOTHING.with_device_node("/dev/a"), NOTHING.with_device_node("/dev/b")),
    )


def test_hooks_are_shared_only_as_far_as_their_order_allows() -> None:
    first = ContainerEdits(hooks=(_hook("links"), _hook("own"), _hook("cache")))
    second = ContainerEdits(hooks=(_hook("links"), _hook("cache")))
    shared, (one, other) = share_edits([first, second])
    assert [hook.path for hook in shared.hooks] == ["/links"]
    assert [hook.path for hook in one.hooks] == ["/own", "/cache"]
    assert [hook.path for hook in other.hooks] == ["/cache"]


def test_a_device_that_shares_everything_keeps_its_own_but_for_hooks() -> None:
    common = NOTHING.with_env("LIB", "1").with_hook("poststop", "/a")
    shared, (one, other) = share_edits([common, common.with_device_node("/dev/b")])
    assert shared == common
    assert one == NOTHING.with_env("LIB", "1")
    assert other == NOTHING.with_device_node("/dev/b")


def test_devices_with_nothing_but_the_same_hooks_share_nothing() -> None:
    edits = ContainerEdits(hooks=(_hook("a"),))
    assert share_edits([edits, edits]) == (NOTHING, (edits, edits))


def test_one_device_shares_with_nobody() -> None:
    edits = NOTHING.with_env("A", "1")
    assert share_edits([edits]) == (NOTHING, (edits,))


@settings(max_examples=40)
@given(several=st.lists(strategies.edits.filter(lambda edits: not edits.is_empty), min_size=1, max_size=3))
def test_shared_and_own_edits_together_say_what_was_asked(several: list[ContainerEdits]) -> None:
    several = [normal_edits(edits) for edits in several]
    shared, kept = share_edits(several)
    for edits, own in zip(several, kept, strict=True):
        assert not own.is_empty
        assert {**shared.env, **own.env} == edits.env
        assert {*shared.device_nodes, *own.device_nodes} == set(edits.device_nodes)
        assert {*shared.mounts, *own.mounts} == set(edits.mounts)
        assert (*shared.hooks, *own.hooks) == edits.hooks
        assert {*shared.net_devices, *own.net_devices} == set(edits.net_devices)
        assert (own.intel_rdt or shared.intel_rdt) == edits.intel_rdt
        assert {*shared.additional_gids, *own.additional_gids} == set(edits.additional_gids)


def _hook(name: str) -> Hook:
    return Hook(hook_name="createContainer", path=f"/{name}")
