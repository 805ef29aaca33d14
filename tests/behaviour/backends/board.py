"""A backend whose hardware is a directory, so that tests see what was done to it, and decide what goes wrong.

Below `$BOARD_DIRECTORY`:

    devices.json            what `discover` answers: device name to health, "" for a healthy one
    held/DEVICE/UID         the device is configured for that claim
    history                 a JSON line for each step of each call
    orders/CALL.CLAIM.AT    what goes wrong in a call for the claim of that name (`*`: any) when it has come to `AT`:
                            "begin", before anything was done, or "effect", after everything was done
    reached/CALL.CLAIM.AT   the call has come to this order
    processes/PID           this process has run
    discovered              a byte for each `discover`
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from pydra import (
    Claim,
    ClaimError,
    ContainerEdits,
    Device,
    Health,
    HealthStatus,
    HeldClaim,
    Inventory,
    PreparedDevice,
    Sample,
    Version,
)

DRIVER = "board.example.com"
POLL = 0.02


class BoardConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a claim may configure."""

    volts: int = 5


CONFIG_TYPES = {"board.example.com/v1/BoardConfig": BoardConfig}
SEEN = {"devices.json": (0, 0)}
"""Which file `discover` answered from: when it was written, and its inode, as clocks of files are coarse."""


def board() -> Path:
    return Path(os.environ["BOARD_DIRECTORY"])


@asynccontextmanager
async def connect() -> AsyncIterator[object]:
    await obey("connect", "")
    yield sys.modules[__name__]


async def discover() -> Inventory:
    (board() / "processes" / str(os.getpid())).touch()
    with (board() / "discovered").open("a") as file:
        file.write(".")
    await obey("discover", "")
    SEEN["devices.json"] = _stamp()
    devices = []
    for name, message in json.loads((board() / "devices.json").read_bytes()).items():
        health = Health(status=HealthStatus.UNHEALTHY, message=message) if message else Health()
        devices.append(
            Device(
                name=name,
                attributes={"serial": f"serial-{name}", "bank": 1, "firmware": Version("1.2.3")},
                health=health,
                allow_multiple_allocations=name.startswith("shared"),
            )
        )
    return Inventory(devices=tuple(devices))


async def wait_changed() -> None:
    while _stamp() == SEEN["devices.json"]:
        await asyncio.sleep(POLL)


def _stamp() -> tuple[int, int]:
    found = (board() / "devices.json").stat()
    return found.st_mtime_ns, found.st_ino


async def measure() -> Sequence[Sample]:
    return [Sample(name="temperature_celsius", value=40.0, help="How warm it is.")]


async def prepare(claim: Claim) -> list[PreparedDevice]:
    note("prepare", claim)
    await obey("prepare", claim.name, at="begin")
    for device in claim.devices:
        holders = board() / "held" / device.device
        holders.mkdir(parents=True, exist_ok=True)
        (holders / claim.uid).touch()
    await obey("prepare", claim.name, at="effect")
    note("prepared", claim)
    edits = ContainerEdits().with_env("BOARD_CLAIM", claim.name)
    return [
        device.prepared(
            edits.with_env("BOARD_VOLTS", str((device.config(BoardConfig) or BoardConfig()).volts)),
            state={"board": claim.uid},
            attributes={"bank": 2, "resource.kubernetes.io/pciBusID": "0000:01:00.0"},
        )
        for device in claim.devices
    ]


async def unprepare(claim: Claim, prepared: Sequence[PreparedDevice]) -> None:
    note("unprepare", claim, states=[one.state for one in prepared])
    await obey("unprepare", claim.name, at="begin")
    for device in claim.devices:
        (board() / "held" / device.device / claim.uid).unlink(missing_ok=True)
    await obey("unprepare", claim.name, at="effect")
    note("unprepared", claim)


def examine(_settings: None, held: Sequence[HeldClaim]) -> Iterator[str]:
    known = {one.claim.uid for one in held}
    for device in sorted((board() / "held").iterdir()):
        for path in device.iterdir():
            if path.name not in known:
                yield f"{device.name} is configured for {path.name}, which is no claim of this node; unplug it"


def note(step: str, claim: Claim, **more: Any) -> None:
    line = {"step": step, "claim": claim.name, "uid": claim.uid, "devices": [one.device for one in claim.devices]}
    with (board() / "history").open("a") as file:
        file.write(json.dumps({**line, **more}) + "\n")


async def obey(call: str, claim: str, at: str = "begin") -> None:
    for name in (f"{call}.{claim}.{at}", f"{call}.*.{at}"):
        order = board() / "orders" / name[-255:]  # a claim's name may be as long as that of a file
        if order.exists():
            what, _, times = order.read_text().partition(" ")
            if times == "1":
                order.unlink()
            elif times:
                order.write_text(f"{what} {int(times) - 1}")
            (board() / "reached" / name).touch()
            await carry_out(what, order)


async def carry_out(what: str, order: Path) -> None:
    match what:
        case "wait":
            while order.exists():
                await asyncio.sleep(POLL)
        case "hang":
            time.sleep(600)  # noqa: ASYNC251 - it blocks the loop, as a driver's call that waits for hardware does
        case "raise":
            raise RuntimeError("the board is on fire")
        case "refuse":
            raise ClaimError("the board says no")
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
        case "print":
            os.write(1, b"hello from native code\n\x00\xff not a frame\n")
        case _:
            raise AssertionError(what)
