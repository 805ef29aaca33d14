"""A backend without a driver name, whose hints come at once, and whose sensor is a file that may go."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pydra import Claim, Device, Inventory, PreparedDevice, Sample


async def discover() -> Inventory:
    return Inventory(devices=(Device(name="a"),))


async def wait_changed() -> None:
    """Nothing has changed."""


async def measure() -> list[Sample]:
    return [Sample(name="warmth", value=float(Path(os.environ["SENSOR"]).read_text()))]


async def prepare(claim: Claim) -> list[PreparedDevice]:
    return [device.prepared() for device in claim.devices]


async def unprepare(claim: Claim, prepared: Sequence[PreparedDevice]) -> None:
    """Nothing was done."""
