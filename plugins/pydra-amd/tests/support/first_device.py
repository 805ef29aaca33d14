"""The AMD backend with the device first that FIRST_DEVICE names, which is the one that conformance checks prepare."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

import pydra_amd
from pydra import Inventory
from pydra_amd import CONFIG_TYPES, DEVICE_CLASSES, DRIVER, SETTINGS_TYPE, STEP_TYPES
from pydra_amd.backend import AmdBackend

__all__ = ["CONFIG_TYPES", "DEVICE_CLASSES", "DRIVER", "SETTINGS_TYPE", "STEP_TYPES", "connect"]


class _Reordered:
    def __init__(self, backend: AmdBackend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def discover(self) -> Inventory:
        found = await self._backend.discover()
        first = os.environ["FIRST_DEVICE"]
        return replace(found, devices=tuple(sorted(found.devices, key=lambda one: one.name != first)))


@asynccontextmanager
async def connect(settings: pydra_amd.Settings) -> AsyncIterator[_Reordered]:
    """The node's hardware, or the one of the scenario."""
    async with pydra_amd.connect(settings) as backend:
        yield _Reordered(backend)
