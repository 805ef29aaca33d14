"""A backend with settings of its own, that logs; `flood` in its settings says what it sends without end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

import pydra

DRIVER = "tuned.example.com"
_log = logging.getLogger("tuned.hardware")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    max_shares: Annotated[int, Meta(ge=1)] = 4
    flood: str = ""


SETTINGS_TYPE = Settings


class ShareConfig(msgspec.Struct, frozen=True):
    shares: int = 1


CONFIG_TYPES = {"tuned.example.com/v1/ShareConfig": ShareConfig}


def check_config(config: ShareConfig, settings: Settings) -> Iterator[str]:
    if config.shares > settings.max_shares:
        yield f"shares: found {config.shares}, the admin allows {settings.max_shares}"


class _Live:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def discover(self) -> pydra.Inventory:
        return pydra.Inventory(devices=(pydra.Device(name="a", attributes={"shares": self._settings.max_shares}),))

    async def plan(self, claim: pydra.Claim, held: Sequence[pydra.HeldClaim], /) -> Any:
        return {"device": claim.devices[0].device}

    async def restore(self, held: Sequence[pydra.HeldClaim], /) -> None: ...

    async def prepare(self, claim: pydra.Claim, /) -> list[pydra.PreparedDevice]:
        _log.info("preparing %d devices", len(claim.devices))
        await asyncio.to_thread(_log.warning, "from a thread")
        try:
            raise ValueError("a bad register")
        except ValueError:
            _log.exception("register 7")
        if self._settings.flood:
            self._flood()
        return [device.prepared() for device in claim.devices]

    async def unprepare(self, claim: pydra.Claim, prepared: Sequence[pydra.PreparedDevice], /) -> None: ...

    def _flood(self) -> None:
        for number in range(5000):
            if self._settings.flood == "records":
                _log.info("record %d", number)
            else:
                frame = msgspec.msgpack.encode({"type": "reply", "id": 10**6 + number, "result": None})
                os.write(int(sys.orig_argv[-3]), len(frame).to_bytes(4, "big") + frame)


@contextlib.asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[_Live]:
    yield _Live(settings)
