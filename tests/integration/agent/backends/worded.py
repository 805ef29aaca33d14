"""A backend that refuses every claim, in words of its own; the name of the claim says which."""

from __future__ import annotations

import asyncio

from pydra import Claim, ClaimError, Device, Inventory, PreparedDevice, TerminalError

DRIVER = "worded.example.com"


class BoardBusy(ClaimError):
    reason = "BoardBusy"


class BoardTooSmall(TerminalError):
    reason = "BoardTooSmall"


class Unspeakable(ClaimError):
    reason = "the board is busy"


REFUSALS = {"busy": BoardBusy("process 7 holds it"), "small": BoardTooSmall("8 of 4"), "odd": Unspeakable("no word")}


async def discover() -> Inventory:
    return Inventory(devices=tuple(Device(name=name, attributes={"name": name}) for name in REFUSALS))


async def prepare(claim: Claim) -> list[PreparedDevice]:
    async with asyncio.TaskGroup() as boards:
        for device in claim.devices:
            boards.create_task(refuse(device.device))
    return []


async def refuse(device: str) -> None:
    await asyncio.sleep(0)
    raise REFUSALS.get(device) or Unspeakable(device)


async def unprepare(claim: Claim, prepared: list[PreparedDevice]) -> None:
    """Nothing was done."""
