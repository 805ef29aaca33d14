"""NVIDIA GPUs: a pydra backend in the place of NVIDIA's own DRA driver, with its names, kinds and classes.

This module is what the entry point names. Nothing of NVIDIA is loaded at import.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pydra_nvidia.config import CONFIG_TYPES
from pydra_nvidia.inventory.classes import DEVICE_CLASSES
from pydra_nvidia.settings import Settings

if TYPE_CHECKING:
    from pydra_nvidia.backend import NvidiaBackend

DRIVER = "gpu.nvidia.com"
SETTINGS_TYPE = Settings

__all__ = ["CONFIG_TYPES", "DEVICE_CLASSES", "DRIVER", "SETTINGS_TYPE", "connect"]


@asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[NvidiaBackend]:
    """The node's hardware, or the one of the scenario PYDRA_NVIDIA_SCENARIO."""
    # Imported here: the webhook reads types only.
    from pydra_nvidia.composition import find_node, open_backend  # noqa: PLC0415

    async with open_backend(find_node(os.environ, settings)) as backend:
        yield backend
