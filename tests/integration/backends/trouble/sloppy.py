"""A backend that keeps the letter of the contract and little of its spirit."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

import pydra

_counter = itertools.count()
_prepared: set[str] = set()


class Lenient(msgspec.Struct):
    n: int = 0


CONFIG_TYPES = {"sloppy.example.com/v1/Lenient": Lenient}


async def discover() -> pydra.Inventory:
    return pydra.Inventory(
        devices=(
            pydra.Device(name="a", attributes={"time": next(_counter)}),
            pydra.Device(name="Not_A_Label"),
        )
    )


async def prepare(claim: pydra.Claim, /) -> list[pydra.PreparedDevice]:
    _prepared.add(claim.uid)
    edits = pydra.ContainerEdits(env={"": "x"})
    return [device.prepared(edits, next(_counter)) for device in claim.devices]


async def unprepare(claim: pydra.Claim, prepared: Any, /) -> None:
    _prepared.remove(claim.uid)


async def wait_changed() -> None:
    raise RuntimeError("no udev")


async def measure() -> list[pydra.Sample]:
    return [pydra.Sample(name="x", value=1.0, device="z")]
