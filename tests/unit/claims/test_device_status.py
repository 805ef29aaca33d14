"""What the statuses of claims say of their devices, and when those that could not be written are tried again."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from pydra.checkpoint.record import Record, Stage
from pydra.claim import AllocatedDevice, Claim, PreparedDevice
from pydra.claims.device_status import build_devices, choose_pause, collect_statuses
from pydra.devices import Condition, DeviceStatus
from pydra.errors import KubeError, Unavailable
from pydra.inventory.api_rules import CONDITIONS

CLAIM = Claim(uid="u-1", namespace="ns", name="c", devices=(AllocatedDevice(request="r", pool="p", device="d"),))
DEVICE = PreparedDevice(request="r", pool="p", device="d")
RECORD = Record(claim=CLAIM, driver="drv", stage=Stage.COMPLETED, boot_id="boot", prepared=(DEVICE,), created=0.0)


def list_types(record: Record) -> dict[str, list[str]]:
    """The types of the conditions of the claims' first devices, by uid."""
    found = collect_statuses({"u-1": record}, (), (), boot_id="boot")
    return {uid: [one.type for one in statuses.entries[0][1].conditions] for uid, statuses in found.items()}


@pytest.mark.parametrize(
    "record",
    [
        replace(RECORD, stage=Stage.STARTED),
        replace(RECORD, boot_id="before"),
        replace(RECORD, prepared=()),
        replace(RECORD, claim=replace(CLAIM, name="")),
    ],
    ids=["not prepared yet", "of another boot", "without devices", "of a version that kept no names"],
)
def test_only_a_prepared_claim_whose_name_is_known_has_a_status(record: Record) -> None:
    assert list_types(RECORD) == {"u-1": ["Healthy"]}
    assert list_types(record) == {}


@pytest.mark.parametrize(
    "types", [["Healthy"], [f"Of{n}" for n in range(CONDITIONS)]], ids=["its own of this type", "no room"]
)
def test_a_backend_that_leaves_no_room_for_the_health_keeps_its_conditions(types: list[str]) -> None:
    conditions = tuple(Condition(type=one, status=True, reason="R", message="") for one in types)
    device = replace(DEVICE, status=DeviceStatus(conditions=conditions))
    assert list_types(replace(RECORD, prepared=(device,))) == {"u-1": types}


def test_shares_are_told_apart_and_devices_that_are_not_allocated_left_out() -> None:
    mine = {"driver": "drv", "pool": "p", "device": "d"}
    results = [{**mine, "shareID": "one"}, {**mine, "driver": "other", "device": "e"}]
    claim: dict[str, Any] = {"status": {"allocation": {"devices": {"results": results}}}}
    status = DeviceStatus(data={"a": 1})
    entries = [
        (replace(DEVICE, share_id="one"), status),
        (replace(DEVICE, share_id="two"), status),
        (replace(DEVICE, device="e"), status),
    ]
    assert build_devices(claim, "drv", entries, now="") == [{**mine, "shareID": "one", "data": {"a": 1}}]
    assert build_devices({"status": {}}, "drv", entries, now="") == []


@pytest.mark.parametrize(
    ("error", "first", "later"),
    [
        (Unavailable("no answer"), 1.0, 5.0),
        (Unavailable("busy", status=429, retry_after=30.0), 30.0, 30.0),
        (KubeError("forbidden", status=403), 1.0, 300.0),
    ],
    ids=["an outage", "a server that asks for time", "a refusal"],
)
def test_statuses_come_soon_after_an_outage_however_long_it_was(error: KubeError, first: float, later: float) -> None:
    assert (choose_pause(error, 1), choose_pause(error, 1000)) == (first, later)
