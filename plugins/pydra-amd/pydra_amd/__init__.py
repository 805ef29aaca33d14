"""AMD GPUs: a pydra backend in the place of AMD's own DRA driver, with its names, and with partitions on demand.

This module is what the entry point names. Nothing of AMD's libraries is loaded at import.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydra_amd.claim_config import CONFIG_TYPES
from pydra_amd.devices import DRIVER
from pydra_amd.settings import Settings
from pydra_amd.steps import STEP_TYPES

if TYPE_CHECKING:
    from pydra_amd.backend import AmdBackend

SETTINGS_TYPE = Settings

__all__ = ["CONFIG_TYPES", "DEVICE_CLASSES", "DRIVER", "SETTINGS_TYPE", "STEP_TYPES", "connect"]


def _select(condition: str) -> dict[str, Any]:
    return {"selectors": [{"cel": {"expression": condition}}]}


_TYPE = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].?type.orValue('')"

DEVICE_CLASSES: Mapping[str, Mapping[str, Any]] = {
    DRIVER: {**_select(f"{_TYPE} != 'vfio'"), "extendedResourceName": "amd.com/gpu"},
    f"{DRIVER}-spx": _select(f"{_TYPE} == 'amdgpu'"),
    f"vfio.{DRIVER}": _select(f"{_TYPE} == 'vfio'"),
}
"""Specs by name: all devices of containers, which the device plugin's resource stands for too, and whole GPUs, both as
AMD's; and GPUs for virtual machines."""


@asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[AmdBackend]:
    """The node's hardware, or the one of the scenario PYDRA_AMD_SCENARIO."""
    # Imported here: the webhook reads types only.
    from pydra_amd.composition import open_backend  # noqa: PLC0415

    async with open_backend(settings) as backend:
        yield backend
