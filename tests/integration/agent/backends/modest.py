"""A backend of two devices that does what it must and no more; its driver is the sim's, unless the settings say so."""

from __future__ import annotations

from pydra import Claim, Device, Inventory, PreparedDevice

DRIVER = "sim.pydra.dev"


async def discover() -> Inventory:
    return Inventory(devices=(Device(name="a"), Device(name="b")))


async def prepare(claim: Claim) -> list[PreparedDevice]:
    return [device.prepared() for device in claim.devices]


async def unprepare(claim: Claim, prepared: list[PreparedDevice]) -> None:
    """Nothing was done."""
