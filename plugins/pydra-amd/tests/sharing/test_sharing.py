"""Shares of a GPU: how much claims can ask for, and which compute units they have."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from amd_values import allocated_device, claim_of, gpu_of, held_claim, reading_of
from pydra import (
    AllocatedDevice,
    Capacity,
    CapacityRange,
    ClaimError,
    DeviceInUse,
    HeldClaim,
    RequestPolicy,
    SettingsError,
    read_settings,
)
from pydra_amd.claim_plan import plan_claim
from pydra_amd.claim_records import Units, read_holds
from pydra_amd.devices import list_offered
from pydra_amd.inventory.build import build_inventory
from pydra_amd.settings import Partitioning, Settings
from pydra_amd.sharing import ComputeUnitsTaken, ShareRefused, build_mask

NAME = "gpu-0-128"


def share(units: int | None, name: str = NAME, number: int = 0) -> AllocatedDevice:
    consumed = {} if units is None else {"computeUnits": str(units), "memory": "1Gi"}
    return allocated_device(name, share_id=f"share-{number}", consumed_capacity=consumed)


def plan(*devices: AllocatedDevice | str, held: tuple[HeldClaim, ...] = (), mode: str = "spx_nps1") -> HeldClaim:
    reading = reading_of(gpu_of(mode=mode), gpu_of(index=1))
    claim = claim_of(*devices, uid=f"uid-{len(held)}")
    planned = plan_claim(claim, list_offered(reading, Partitioning.EXISTING, sharing=True), held=held)
    return held_claim(replace(claim, plan=planned.data))


def units_in(held: HeldClaim) -> Units | None:
    return read_holds(held.claim)[0].units


def units_of(*asked: int | None, mode: str = "spx_nps1") -> list[Units | None]:
    """Of claims that come one after the other."""
    held: tuple[HeldClaim, ...] = ()
    for units in asked:
        held = (*held, plan(share(units), held=held, mode=mode))
    return [units_in(one) for one in held]


def test_shares_have_disjoint_units_and_as_many_of_each_xcc() -> None:
    assert units_of(152, 76, 76) == [((0, 151),), ((152, 223),), ((224, 295),)]  # 9 whole blocks of 8
    assert units_of(1, 37, mode="cpx_nps1") == [((0, 0),), ((1, 37),)]


def test_what_a_claim_leaves_is_filled_also_where_it_is_in_pieces() -> None:
    second = plan(share(8), held=(plan(share(8)),))
    assert units_in(plan(share(24), held=(second,))) == ((0, 7), (16, 31))
    assert build_mask(((0, 7), (16, 31), (40, 40))) == {"HSA_CU_MASK": "0:0-7,16-31,40"}


def test_a_claim_that_asks_for_nothing_has_all_without_a_mask_and_nobody_beside_it() -> None:
    whole = plan(share(None))
    assert units_in(whole) == ()
    assert build_mask(()) == {}
    with pytest.raises(ComputeUnitsTaken, match=r"0 of the 304 compute units .* given 8: default/claim-uid-0 have"):
        plan(share(8), held=(whole,))
    with pytest.raises(ComputeUnitsTaken, match="296 of the 304"):
        plan(share(None), held=(plan(share(8)),))


def test_a_device_is_shared_or_held_as_a_whole() -> None:
    with pytest.raises(DeviceInUse):
        plan(NAME, held=(plan(share(8)),))
    with pytest.raises(DeviceInUse):
        plan(share(8), held=(plan(NAME),))


def test_nothing_is_free_beside_a_share_whose_plan_cannot_be_read() -> None:
    with pytest.raises(ComputeUnitsTaken, match=r"0 of the 304 compute units .* default/claim-lost have"):
        plan(share(8), held=(held_claim(claim_of(share(8, number=1), uid="lost")),))
    assert plan(share(8), held=(held_claim(claim_of("gpu-8-136", uid="lost")),))


def test_a_share_that_no_mask_can_give_is_refused() -> None:
    with pytest.raises(ShareRefused, match="at least one of each of its 8 XCCs; ask for computeUnits in steps of 8"):
        plan(share(7))
    for others in (["gpu-8-136"], [share(8, number=1)], [allocated_device("gpu-8-136", admin_access=True)]):
        with pytest.raises(ClaimError, match="ask for a share in a claim of its own"):
            plan(share(8), *others)


def test_claims_can_ask_for_memory_and_compute_units_and_get_all_of_what_they_do_not_name() -> None:
    offered = build_inventory(reading_of(gpu_of()), Partitioning.EXISTING, sharing=True).devices
    assert [one.allow_multiple_allocations for one in offered] == [True]
    memory = "196608Mi"
    assert offered[0].capacity == {
        "memory": Capacity(
            memory, RequestPolicy(default=memory, valid_range=CapacityRange(min="1Mi", max=memory, step="1Mi"))
        ),
        "computeUnits": Capacity(304, RequestPolicy(default=304, valid_range=CapacityRange(min=8, max=304, step=8))),
        "simdUnits": Capacity(1216, RequestPolicy(default=0, valid_range=CapacityRange(min=0, max=1216, step=1))),
    }


def test_a_gpu_whose_masks_have_other_rules_is_not_shared() -> None:
    (device,) = build_inventory(reading_of(gpu_of("0x7448", mode="")), Partitioning.EXISTING, sharing=True).devices
    assert not device.allow_multiple_allocations
    assert device.capacity["memory"].policy is None


def test_sharing_and_modes_that_claims_choose_exclude_each_other() -> None:
    environ = {"PYDRA_AMD_SHARING": "true", "PYDRA_AMD_PARTITIONING": "compute"}
    with pytest.raises(SettingsError, match="sharing needs partitioning existing, not compute"):
        read_settings(Settings, "amd", "PYDRA_AMD_", environ, {})
