"""Who may have a device while others have it."""

from __future__ import annotations

import pytest

from pydra.claim import AllocatedDevice, Claim
from pydra.claims.device_index import DeviceHolders, may_share


def device(
    name: str = "gpu-0", *, pool: str = "node-1", share: str | None = None, admin: bool = False
) -> AllocatedDevice:
    return AllocatedDevice(request="r", pool=pool, device=name, share_id=share, admin_access=admin)


def claim(uid: str, *devices: AllocatedDevice) -> Claim:
    return Claim(uid=uid, namespace="ns", name=f"claim-{uid}", devices=devices)


@pytest.mark.parametrize(
    ("one", "other", "allowed"),
    [
        (device(), device(), False),
        (device(admin=True), device(), True),
        (device(), device(admin=True), True),
        (device(admin=True), device(admin=True), True),
        (device(share="a"), device(share="b"), True),
        (device(share="a"), device(share="a"), False),
        (device(share="a"), device(), False),
        (device(), device(share="a"), False),
    ],
    ids=["plain", "admin-first", "admin-second", "both-admin", "shares", "same-share", "share-first", "share-second"],
)
def test_two_claims_hold_one_device_only_with_admin_access_or_shares_of_their_own(
    one: AllocatedDevice, other: AllocatedDevice, allowed: bool
) -> None:
    holders = DeviceHolders()
    holders.hold("a", [claim("a", one)])
    assert may_share(one, other) is allowed
    assert (holders.conflict(claim("b", other)) is None) is allowed


def test_a_conflict_names_the_device_and_its_holder() -> None:
    holders = DeviceHolders()
    holders.hold("a", [claim("a", device("gpu-0"), device("gpu-1"))])
    conflict = holders.conflict(claim("b", device("gpu-2"), device("gpu-1")))
    assert conflict is not None
    assert (conflict.device, conflict.holder) == ("gpu-1 of pool node-1", "ns/claim-a")


def test_devices_of_one_name_in_two_pools_are_two_devices() -> None:
    holders = DeviceHolders()
    holders.hold("a", [claim("a", device(pool="node-1"))])
    assert holders.conflict(claim("b", device(pool="fabric"))) is None


def test_a_claim_is_not_in_its_own_way() -> None:
    holders = DeviceHolders()
    holders.hold("a", [claim("a", device())])
    assert holders.conflict(claim("a", device(), device("gpu-1"))) is None


def test_a_claim_on_its_way_from_one_device_to_another_holds_both_then_one() -> None:
    holders = DeviceHolders()
    old, new = claim("a", device("gpu-0")), claim("a", device("gpu-1"))
    holders.hold("a", [old, new])
    assert holders.conflict(claim("b", device("gpu-0")))
    assert holders.conflict(claim("b", device("gpu-1")))
    holders.hold("a", [new])
    assert holders.conflict(claim("b", device("gpu-0"))) is None
    assert holders.conflict(claim("b", device("gpu-1")))


def test_a_third_claim_is_refused_when_one_of_the_sharers_holds_the_device_for_itself() -> None:
    holders = DeviceHolders()
    holders.hold("monitor", [claim("monitor", device(admin=True))])
    holders.hold("a", [claim("a", device())])
    conflict = holders.conflict(claim("b", device()))
    assert conflict is not None
    assert conflict.holder == "ns/claim-a"


def test_what_is_released_is_free_and_nothing_is_remembered_of_it() -> None:
    holders = DeviceHolders()
    holders.hold("a", [claim("a", device())])
    holders.hold("b", [claim("b", device(admin=True))])
    holders.release("a")
    holders.release("never-held")
    assert holders.conflict(claim("c", device())) is None
    assert holders.holders("node-1", "gpu-0") == {"b"}
    holders.release("b")
    assert holders.holders("node-1", "gpu-0") == frozenset()
