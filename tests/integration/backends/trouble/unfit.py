"""Backends that break the contract, and some that open their handles in `connect`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec

import pydra

DRIVER = "Not A Name"


def discover() -> None: ...


async def unprepare() -> None: ...


class _ConnectsToNothing:
    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        yield object()


class _Live:
    async def discover(self) -> pydra.Inventory:
        return pydra.Inventory(devices=(pydra.Device(name="from-connect"),))

    async def prepare(self, claim: pydra.Claim, /) -> list[pydra.PreparedDevice]:
        return [device.prepared() for device in claim.devices]

    async def unprepare(self, claim: pydra.Claim, prepared: Any, /) -> None: ...


class _Connects:
    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[_Live]:
        directory = Path(os.environ["FAULTY_DIR"])
        if (directory / "absent").exists():
            raise FileNotFoundError("the driver is not loaded")
        (directory / "connected").write_text("opened")
        try:
            yield _Live()
        finally:
            (directory / "connected").write_text("opened closed")


class _ConnectHangs:
    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[_Live]:
        await asyncio.sleep(0)
        self.connect_hangs()
        yield _Live()

    def connect_hangs(self) -> None:
        time.sleep(3600)


class _ConnectsInSync:
    @contextlib.contextmanager
    def connect(self) -> Iterator[_Live]:
        yield _Live()


class _Settings(msgspec.Struct, frozen=True, kw_only=True):
    shares: int = 4


class _TakesSettings:
    DRIVER = "Not A Name"
    SETTINGS_TYPE = _Settings

    @contextlib.asynccontextmanager
    async def connect(self, settings: _Settings) -> AsyncIterator[_Live]:
        yield _Live()


connects_to_nothing = _ConnectsToNothing()
connects_in_sync = _ConnectsInSync()
connects = _Connects()
takes_settings = _TakesSettings()
connect_hangs = _ConnectHangs()
