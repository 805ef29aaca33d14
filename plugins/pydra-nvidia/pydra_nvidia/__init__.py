"""NVIDIA GPUs: a pydra backend in the place of NVIDIA's own DRA driver, with its names, kinds and classes.

This module is what the entry point names. Nothing of NVIDIA is loaded at import.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pydra_nvidia.config import CONFIG_TYPES
from pydra_nvidia.inventory.classes import DEVICE_CLASSES

if TYPE_CHECKING:
    from pydra_nvidia.backend import NvidiaBackend

DRIVER = "gpu.nvidia.com"

__all__ = ["CONFIG_TYPES", "DEVICE_CLASSES", "DRIVER", "connect"]


@asynccontextmanager
async def connect() -> AsyncIterator[NvidiaBackend]:
    """The node's hardware, or the one of the scenario PYDRA_NVIDIA_SCENARIO; settings are PYDRA_NVIDIA_*."""
    from pydra_nvidia.composition import open_backend  # noqa: PLC0415 - the webhook reads types only

    async with open_backend() as backend:
        yield backend
