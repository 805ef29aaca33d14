"""A backend that measures how many claims the node holds."""

from __future__ import annotations

from collections.abc import Sequence

from pydra import Claim, Device, HeldClaim, Inventory, PreparedDevice, Sample, held_claims

DRIVER = "counting.example.com"


async def restore(held: Sequence[HeldClaim]) -> None:
    """Nothing was done; who has this may read held claims."""


async def discover() -> Inventory:
    return Inventory(devices=(Device(name="a"),))


async def measure() -> list[Sample]:
    return [Sample(name="held", value=len(held_claims()))]


async def prepare(claim: Claim) -> list[PreparedDevice]:
    return [device.prepared() for device in claim.devices]


async def unprepare(claim: Claim, prepared: list[PreparedDevice]) -> None:
    """Nothing was done."""
