"""Which claims may hold devices at the same time, by what the node publishes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pydra import AllocatedDevice, Capacity, Claim, CounterConsumption, CounterSet, Device, DeviceInUse, TerminalError
from pydra.claims.device_use import (
    DeviceIndex,
    Published,
    PublishedPool,
    may_meet,
)

POOL = "node-1"


def consuming(name: str, counter_set: str, *groups: str, **counters: int) -> Device:
    consumption = CounterConsumption(counter_set=counter_set, counters=counters, compatibility_groups=groups)
    return Device(name=name, consumes_counters=(consumption,))


DEVICES = (
    consuming("board-0", "slots-0", slots=4),
    consuming("board-0-half-0", "slots-0", slots=2),
    consuming("board-0-half-1", "slots-0", slots=2),
    consuming("board-1", "slots-1", slots=4),
    Device(name="shared", capacity={"memory": Capacity("16Gi")}, allow_multiple_allocations=True),
    consuming("mig-0", "slots-2", "mig", slots=1),
    consuming("mig-1", "slots-2", "mig", "any", slots=1),
    consuming("vgpu", "slots-2", "vgpu", "any", slots=1),
    consuming("other", "slots-2", slots=1),
    Device(name="plain"),
    replace(
        consuming("board-0-shared", "slots-0", slots=3),
        capacity={"memory": Capacity("16Gi")},
        allow_multiple_allocations=True,
    ),
)
SETS = tuple(CounterSet(name=f"slots-{n}", counters={"slots": 4}) for n in range(3))
PUBLISHED: Published = {POOL: PublishedPool(devices={one.name: one for one in DEVICES}, counter_sets=SETS)}


def claim(uid: str, *names: str, admin: bool = False, memory: str = "") -> Claim:
    """A claim of these devices, or of a share of them."""
    share = {"share_id": f"share-{uid}", "consumed_capacity": {"memory": memory}} if memory else {}
    devices = tuple(
        AllocatedDevice(request=f"r{n}", pool=POOL, device=name, admin_access=admin, **share)  # type: ignore[arg-type]
        for n, name in enumerate(names)
    )
    return Claim(uid=uid, namespace="ns", name=uid, devices=devices)


def holding(*claims: Claim) -> DeviceIndex:
    index = DeviceIndex(PUBLISHED)
    for one in claims:
        index.hold(one)
    return index


@pytest.mark.parametrize(
    ("held", "wanted", "problem"),
    [
        pytest.param([claim("a", "board-0-half-0")], claim("b", "board-0-half-1"), "", id="other half"),
        pytest.param([claim("a", "board-0-half-0")], claim("b", "board-0"), "slots of slots-0 is used up", id="whole"),
        pytest.param([claim("a", "board-0")], claim("b", "board-0-half-1"), "claim ns/a", id="part of a whole"),
        pytest.param([claim("a", "board-0")], claim("b", "board-1"), "", id="other board"),
        pytest.param(
            [claim("a", "board-0", admin=True)], claim("b", "board-0-half-1"), "", id="held with admin access"
        ),
        pytest.param(
            [claim("a", "board-0")], claim("b", "board-0-half-1", admin=True), "", id="wanted with admin access"
        ),
        pytest.param([claim("a", "board-0")], claim("a", "board-0"), "", id="the claim itself"),
        pytest.param([claim("a", "shared", memory="8Gi")], claim("b", "shared", memory="8Gi"), "", id="enough memory"),
        pytest.param(
            [claim("a", "shared", memory="8Gi")], claim("b", "shared", memory="9Gi"), "memory is left", id="too little"
        ),
        pytest.param(
            [claim("a", "shared", memory="16Gi")],
            claim("b", "shared", memory="1Gi", admin=True),
            "",
            id="admin access to what others use up",
        ),
        pytest.param(
            [claim("a", "shared", memory="16Gi", admin=True)],
            claim("b", "shared", memory="1Gi"),
            "",
            id="beside admin access",
        ),
        pytest.param(
            [claim("a", "shared", memory="16Gi")], claim("a", "shared", memory="16Gi"), "", id="its own share"
        ),
        pytest.param(
            [claim("a", "shared", memory="1Gi")],
            claim("b", "shared", "board-0-shared", memory="9Gi"),
            "",
            id="shares of two devices",
        ),
        pytest.param([claim("a", "shared")], claim("b", "shared", memory="1Gi"), "claim ns/a", id="a share of a whole"),
        pytest.param(
            [claim("a", "shared", memory="1Gi")], claim("b", "shared"), "claim ns/a", id="all of what is shared"
        ),
        pytest.param([], claim("b", "shared", memory="17Gi"), "", id="more than there is, and nobody else"),
        pytest.param([claim("a", "plain", memory="1")], claim("b", "plain", memory="1"), "", id="an unknown capacity"),
        pytest.param([claim("a", "gone", memory="1")], claim("b", "gone", memory="1"), "", id="an unknown device"),
        pytest.param([claim("a", "board-0")], claim("a", "board-0-half-0"), "", id="the claim allocated again"),
        pytest.param(
            [claim("a", "board-0-shared", memory="1Gi"), claim("b", "board-0-shared", memory="1Gi")],
            claim("c", "board-0-shared", memory="1Gi"),
            "",
            id="another share of a device that consumes counters once",
        ),
        pytest.param(
            [claim("a", "board-0-shared", memory="1Gi"), claim("b", "board-0-shared", memory="1Gi")],
            claim("c", "board-0-half-1"),
            "slots of slots-0 is used up",
            id="part of what is shared",
        ),
        pytest.param([claim("a", "mig-0")], claim("b", "mig-1"), "", id="a common group"),
        pytest.param([claim("a", "mig-1")], claim("b", "vgpu"), "", id="another common group"),
        pytest.param([claim("a", "mig-0")], claim("b", "vgpu"), "by their compatibility groups", id="other groups"),
        pytest.param([claim("a", "mig-0")], claim("b", "other"), "by their compatibility groups", id="no group"),
        pytest.param([claim("a", "other")], claim("b", "mig-0"), "by their compatibility groups", id="beside no group"),
        pytest.param(
            [claim("a", "mig-0"), claim("b", "mig-1")],
            claim("c", "vgpu"),
            "by their compatibility groups",
            id="no group with all",
        ),
        pytest.param([claim("a", "plain")], claim("b", "plain"), "plain of pool node-1", id="one device"),
    ],
)
def test_a_claim_gets_what_others_leave(held: list[Claim], wanted: Claim, problem: str) -> None:
    error = holding(*held).find_conflict(wanted)
    assert (error is None) == (not problem)
    assert problem in str(error or "")


def test_devices_of_one_claim_that_need_more_than_there_is_are_refused_for_good() -> None:
    error = holding().find_conflict(claim("a", "board-0", "board-0-half-0"))
    assert isinstance(error, TerminalError)
    assert "cannot be used together" in str(error)


def test_a_device_that_has_vanished_still_counts() -> None:
    index = holding(claim("a", "board-0-half-0"))
    index.published = {POOL: PublishedPool(devices={"board-0": DEVICES[0]}, counter_sets=SETS)}
    assert isinstance(index.find_conflict(claim("b", "board-0")), DeviceInUse)
    index.published = {POOL: PublishedPool(devices={"board-0": DEVICES[0]})}
    assert index.find_conflict(claim("b", "board-0")) is None


@pytest.mark.parametrize("again", [True, False])
def test_what_a_claim_held_is_free_when_it_is_released_or_holds_something_else(again: bool) -> None:
    index = holding(claim("a", "board-0"))
    if again:
        index.hold(claim("a", "board-1"))
    else:
        index.release("a")
    assert index.find_conflict(claim("b", "board-0-half-0")) is None
    assert index.find_conflict(claim("b", "board-0")) is None


@pytest.mark.parametrize(
    ("published", "written", "name"),
    [
        (["memory"], "memory", "memory"),
        (["memory"], "gpu.example.com/memory", "memory"),
        (["gpu.example.com/memory"], "memory", "gpu.example.com/memory"),
        (["gpu.example.com/memory"], "gpu.example.com/memory", "gpu.example.com/memory"),
        (["gpu.example.com/memory", "memory"], "memory", "memory"),
        (["gpu.example.com/memory", "memory"], "gpu.example.com/memory", "gpu.example.com/memory"),
        (["a.example.com/memory", "b.example.com/memory"], "memory", "memory"),
        (["a.example.com/memory"], "b.example.com/memory", "b.example.com/memory"),
        (["cores"], "memory", "memory"),
        ([], "memory", "memory"),
    ],
)
def test_shares_have_the_names_of_capacities_that_are_published(published: list[str], written: str, name: str) -> None:
    device = Device(name="d", capacity={one: Capacity(8) for one in published}, allow_multiple_allocations=True)
    asked = AllocatedDevice(request="r", pool=POOL, device="d", share_id="s", consumed_capacity={written: "1"})
    claim = Claim(uid="u", namespace="ns", name="c", devices=(asked,))
    adopted = DeviceIndex({POOL: PublishedPool(devices={"d": device})}).adopt_capacity_names(claim)
    assert adopted.devices[0].consumed_capacity == {name: "1"}
    assert DeviceIndex({}).adopt_capacity_names(claim) == claim


@pytest.mark.parametrize(
    ("names", "other", "meets"),
    [
        (["board-0"], claim("b", "board-0-half-1"), True),
        (["board-0"], claim("b", "board-1"), False),
        (["board-0"], claim("b", "gone"), True),
        (["gone"], claim("b", "board-1"), True),
        (["board-0"], claim("b"), True),
    ],
    ids=[
        "a part of it",
        "another board",
        "a device that is not published",
        "a step of one that is not published",
        "devices that are not known",
    ],
)
def test_a_claim_whose_record_cannot_be_read_may_use_what_its_devices_share(
    names: list[str], other: Claim, meets: bool
) -> None:
    assert may_meet(names, other, PUBLISHED) is meets
    assert may_meet(names, other, None)
