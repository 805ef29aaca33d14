"""Google TPUs: a pydra backend in the place of Google's own DRA driver, with its names, and with sub-slices of a host.

This module is what the entry point names. Nothing of Google's libraries is loaded at import.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydra_tpu.claim_config import CONFIG_TYPES
from pydra_tpu.devices import DRIVER
from pydra_tpu.settings import Settings

if TYPE_CHECKING:
    from pydra_tpu.backend import TpuBackend

SETTINGS_TYPE = Settings

__all__ = ["CONFIG_TYPES", "DEVICE_CLASSES", "DRIVER", "SETTINGS_TYPE", "connect"]


def _select(condition: str) -> dict[str, Any]:
    return {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}' && {condition}"}}]}


SHAPES = ("1x2", "2x2", "2x4", "1x2x1", "2x1x1", "2x2x1")
"""All but single chips, as generations with two and with three dimensions write them."""

DEVICE_CLASSES: Mapping[str, Mapping[str, Any]] = {
    DRIVER: {
        **_select(f"device.capacity['{DRIVER}'].?chips.orValue(quantity('1')).compareTo(quantity('1')) == 0"),
        "extendedResourceName": "google.com/tpu",
    },
    f"host.{DRIVER}": _select(f"device.attributes['{DRIVER}'].?wholeHost.orValue(false)"),
    **{
        f"{shape}.{DRIVER}": _select(f"device.attributes['{DRIVER}'].?shape.orValue('') == '{shape}'")
        for shape in SHAPES
    },
}
"""Specs by name. In Google's class of the name `tpu.google.com` each device is a chip, and claims ask for all of them
or for a number: with sub-slices beside them, that class must leave these out to mean the same. The devices of Google's
driver, on nodes that have it, lack `chips`, `wholeHost` and `shape`: each is a chip."""


@asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[TpuBackend]:
    """The node's hardware, or the one of the scenario PYDRA_TPU_SCENARIO."""
    # Imported here: the webhook reads types only.
    from pydra_tpu.composition import open_backend  # noqa: PLC0415

    async with open_backend(settings) as backend:
        yield backend
