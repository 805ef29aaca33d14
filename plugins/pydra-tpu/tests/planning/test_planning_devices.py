"""What is published of a machine."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pydra import HealthStatus
from pydra_tpu.geometry import Bounds
from pydra_tpu.hardware_types import Host
from pydra_tpu.inventory import build_inventory
from pydra_tpu.settings import Offer
from tpu_values import chip_of, host_of

V5E = host_of("v5litepod", 8, Bounds(2, 4))


def test_a_v5e_host_of_eight_chips_is_fifteen_devices_with_the_whole_host_first() -> None:
    devices = build_inventory(V5E).devices
    assert [one.name for one in devices] == [
        "2x4-0",
        *("2x2-0", "2x2-4"),
        *("1x2-0", "1x2-2", "1x2-4", "1x2-6"),
        *(f"chip-{index}" for index in range(8)),
    ]
    assert [one.attributes["wholeHost"] for one in devices] == [True, *[False] * 14]
    assert {one.attributes["chipCount"] for one in devices} == {8}
    assert len({one.attributes["uuid"] for one in devices}) == 15


def test_each_device_takes_the_counters_of_its_chips() -> None:
    inventory = build_inventory(V5E)
    (counters,) = inventory.counter_sets
    assert counters.counters == {f"chip-{index}": 1 for index in range(8)}
    taken = {one.name: {*one.consumes_counters[0].counters} for one in inventory.devices}
    assert taken["2x4-0"] == {*counters.counters}
    assert taken["2x2-4"] == {"chip-4", "chip-5", "chip-6", "chip-7"}
    assert taken["chip-3"] == {"chip-3"}


@pytest.mark.parametrize(
    ("offer", "names"), [(Offer.CHIPS, [f"chip-{index}" for index in range(4)]), (Offer.HOST, ["2x2x1-0"])]
)
def test_an_admin_may_offer_chips_or_the_host_only_which_take_the_counters_of_their_chips(
    offer: Offer, names: list[str]
) -> None:
    inventory, everything = (build_inventory(host_of("v4", 4), one) for one in (offer, Offer.SUB_SLICES))
    assert [one.name for one in inventory.devices] == names
    assert inventory.counter_sets == everything.counter_sets
    assert all(one in everything.devices for one in inventory.devices)


@pytest.mark.parametrize(
    ("host", "place"),
    [
        (V5E, (0, 0, 0)),
        (host_of("v5p", 4, Bounds(4, 4, 4), worker_id=7), (2, 2, 1)),
        (host_of("v6e", 4, Bounds(4, 4), worker_id=3), (2, 2, 0)),
        (host_of("v6e", 1, Bounds(1, 1)), (0, 0, 0)),
    ],
)
def test_a_whole_host_says_where_in_the_slice_it_begins_and_a_part_of_it_does_not(
    host: Host, place: tuple[int, int, int]
) -> None:
    whole, *parts = build_inventory(host).devices
    assert tuple(whole.attributes[axis] for axis in "xyz") == place
    assert not [part.name for part in parts if {"x", "y", "z"} & part.attributes.keys()]


@pytest.mark.parametrize(
    ("host", "kind", "bounds", "wrap"),
    [
        (V5E, "v5litepod-8", "1,1,1", "false,false,false"),
        (host_of("v5litepod", 4, Bounds(8, 16), worker_id=3), "v5litepod-128", "4,8,1", "false,true,false"),
        (host_of("v6e", 4, Bounds(16, 16)), "v6e-256", "8,8,1", "true,true,false"),
        (host_of("v3", 4, Bounds(16, 16)), "v3-512", "8,8,1", "false,false,false"),
        (host_of("v3", 4, Bounds(16, 16), wrap=(True, True, False)), "v3-512", "8,8,1", "true,true,false"),
        (host_of("v5p", 4, Bounds(4, 4, 8)), "v5p-256", "2,2,8", "true,true,true"),
        (host_of("v5p", 4, Bounds(4, 4, 8), wrap=(False,) * 3), "v5p-256", "2,2,8", "false,false,false"),
    ],
)
def test_every_device_says_of_which_slice_it_is(host: Host, kind: str, bounds: str, wrap: str) -> None:
    for device in build_inventory(host).devices:
        said = [device.attributes[name] for name in ("acceleratorType", "hostBounds", "wrap")]
        assert said == [kind, bounds, wrap]


@pytest.mark.parametrize(
    "host",
    [
        host_of("v5p", 4),
        host_of("v5p", 4, Bounds(4, 4, 4)),
        host_of("v5p", 4, Bounds(4, 4, 4), worker_id=16),
        host_of("v5p", 4, Bounds(2, 3, 4), worker_id=0),
    ],
    ids=["no topology", "no worker id", "a worker id beyond the slice", "a topology that hosts do not fill"],
)
def test_where_a_chip_is_remains_open_until_the_slice_is_known(host: Host) -> None:
    assert not {"x", "y", "z"} & build_inventory(host).devices[0].attributes.keys()


def test_what_is_not_known_is_left_out() -> None:
    whole = build_inventory(replace(host_of("v5p", 4), uuid="")).devices[0]
    unknown = {"topology", "accelerator", "acceleratorType", "hostBounds", "wrap", "workerId", "uuid"}
    assert not unknown & whole.attributes.keys()
    assert not [name for name in whole.attributes if "/" in name]


def test_a_device_is_as_ill_as_its_chips() -> None:
    gone = replace(V5E, chips=(*V5E.chips[:5], chip_of("v5litepod", 5, node_exists=False), *V5E.chips[6:]))
    ill = {one.name: one.health for one in build_inventory(gone).devices if one.health.status is HealthStatus.UNHEALTHY}
    assert {*ill} == {"2x4-0", "2x2-4", "1x2-4", "chip-5"}
    assert {one.reason for one in ill.values()} == {"NodeGone"}
    assert "/dev/vfio/5 of chip 5" in ill["chip-5"].message


@pytest.mark.parametrize(
    ("host", "words"),
    [
        (host_of("v5litepod", 7), "chips of this machine: 7, of a TPU v5e host: 1 or 4 or 8"),
        (Host(chips=(chip_of("v4", 0), chip_of("v5p", 1))), "different generations (TPU v4, TPU v5p)"),
    ],
)
def test_chips_that_cannot_be_a_mesh_are_not_offered_and_it_is_said_why(host: Host, words: str) -> None:
    inventory = build_inventory(host)
    assert inventory.devices == ()
    assert inventory.counter_sets == ()
    assert words in inventory.unreadable[0]


def test_a_machine_without_chips_is_an_empty_inventory() -> None:
    assert build_inventory(Host()) == build_inventory(Host(), Offer.CHIPS)
    assert build_inventory(Host()).unreadable == ()


def test_hosts_of_a_slice_can_be_lined_up_by_its_name_and_their_worker_ids() -> None:
    for name, told in (("train-1", "train-1"), (None, None), ("x" * 65, None)):
        host = host_of("v5p", 4, Bounds(2, 2, 4), worker_id=3, slice_name=name)
        for device in build_inventory(host).devices:
            assert (device.attributes.get("sliceName"), device.attributes["workerId"]) == (told, 3)
