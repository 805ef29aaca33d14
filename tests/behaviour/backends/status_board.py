"""The board of `board`, of whose devices it says something in the claims' status.

It has `restore` and no `plan`, and reads from the agent which claims are held.

Below `$BOARD_DIRECTORY`:

    addresses.json          the address that a claim's devices have now, by the claim's uid; absent: none
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

from msgspec.structs import replace

from pydra import (
    Claim,
    ClaimDeviceStatus,
    Condition,
    DeviceStatus,
    HeldClaim,
    Inventory,
    NetworkData,
    PreparedDevice,
    held_claims,
)

board: Any = import_module("board")
CONFIG_TYPES, DRIVER = board.CONFIG_TYPES, board.DRIVER
unprepare, wait_changed = board.unprepare, board.wait_changed
READY = Condition(type="Ready", reason="Powered", message="It has power.")


@asynccontextmanager
async def connect() -> AsyncIterator[object]:
    yield sys.modules[__name__]


async def restore(held: Sequence[HeldClaim]) -> None:
    """End nothing."""


async def discover() -> Inventory:
    found: Inventory = await board.discover()
    return replace(found, claim_statuses=tuple(read_addresses()))


def read_addresses() -> Iterator[ClaimDeviceStatus]:
    path = board.board() / "addresses.json"
    for uid, address in json.loads(path.read_bytes()).items() if path.exists() else ():
        network = NetworkData(interface_name="net1", ips=(address,))
        status = DeviceStatus(conditions=(READY,), network_data=network)
        for device in [device for one in held_claims() if one.claim.uid == uid for device in one.claim.devices]:
            warning = f"{address} is for documentation only" if address.startswith("2001:db8:") else ""
            yield ClaimDeviceStatus(claim_uid=uid, device=device.device, status=status, warning=warning)


async def prepare(claim: Claim) -> list[PreparedDevice]:
    network = NetworkData(interface_name="net0")
    status = DeviceStatus(conditions=(READY,), data={"board": claim.name}, network_data=network)
    return [replace(one, status=status) for one in await board.prepare(claim)]
