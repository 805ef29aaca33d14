"""A backend in the place of another driver, whose record is `old.json`: a claim's uid, namespace and name.

While a file `alive` lies beside it, that driver still runs.
"""

from __future__ import annotations

import json
from pathlib import Path

from pydra import (
    AllocatedDevice,
    Claim,
    ClaimError,
    ContainerEdits,
    Device,
    Inheritance,
    InheritedClaim,
    Inventory,
    PreparedDevice,
)

DRIVER = "heir.example.com"
EDITS = ContainerEdits().with_env("HEIRLOOM", "a")


async def discover() -> Inventory:
    return Inventory(devices=(Device(name="a"), Device(name="b")))


async def prepare(claim: Claim) -> list[PreparedDevice]:
    return [device.prepared(EDITS) for device in claim.devices]


async def unprepare(claim: Claim, prepared: list[PreparedDevice]) -> None:
    print("given back", claim.uid, [device.state for device in prepared])  # noqa: T201 - output is the agent's log


async def inherit(directory: str) -> Inheritance:
    old = Path(directory, "old.json")
    if Path(directory, "alive").exists():
        raise ClaimError("the old driver still runs; remove it first")
    if not old.exists():
        return Inheritance()
    claim = Claim(**json.loads(old.read_text()), devices=(AllocatedDevice(request="r", pool="node", device="a"),))
    prepared = tuple(device.prepared(EDITS, state="old") for device in claim.devices)
    return Inheritance(claims=(InheritedClaim(claim=claim, prepared=prepared),), files=(str(old),))
