"""A backend that plans and restores; `PLANNING_DIR` holds what it is to do, and its journal."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

import pydra

DRIVER = "planning.example.com"
SURVIVES_REBOOT = True
ONE_POD = True
_DIRECTORY = Path(os.environ["PLANNING_DIR"])


class Careless(msgspec.Struct):
    """A type whose rule raises a KeyError for modes that it does not know."""

    mode: str

    def __post_init__(self) -> None:
        _ = {"fast": 1}[self.mode]


CONFIG_TYPES = {"planning.example.com/v1/Careless": Careless}


def _note(what: str, *details: Any) -> None:
    with (_DIRECTORY / "journal").open("a") as journal:
        journal.write(" ".join([what, *map(json.dumps, details)]) + "\n")


async def discover() -> pydra.Inventory:
    _note("discover")
    return pydra.Inventory()


async def plan(claim: pydra.Claim, held: Sequence[pydra.HeldClaim]) -> Any:
    if claim.devices[0].device == "unplannable":
        return {"a": float("nan")}
    return {"slot": 1 + max((one.plan["slot"] for one in held), default=0)}


async def restore(held: Sequence[pydra.HeldClaim]) -> None:
    _note("restore", [[one.claim.uid, one.completed, len(one.prepared), one.plan] for one in held])
    if (_DIRECTORY / "broken").exists():
        raise RuntimeError("a register is stuck")
    if (_DIRECTORY / "fatal").exists():
        os.abort()


async def prepare(claim: pydra.Claim) -> list[pydra.PreparedDevice]:
    seconds = await asyncio.to_thread(pydra.time_left)
    _note("prepare", claim.plan, 0 < seconds <= 20)
    return [device.prepared(state=claim.plan) for device in claim.devices]


async def unprepare(claim: pydra.Claim, prepared: Sequence[pydra.PreparedDevice]) -> None:
    _note("unprepare", claim.plan, len(prepared), [one.plan for one in pydra.held_claims()])


async def inherit(directory: str) -> pydra.Inheritance:
    _note("inherit")
    return pydra.Inheritance()
