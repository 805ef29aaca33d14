"""Network interfaces: a pydra backend in the place of DRANET, with its names.

This module is what the entry point names. Nothing of the node is read at import.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydra_net.claim_config import CONFIG_TYPES
from pydra_net.device_names import DRIVER
from pydra_net.settings import Settings
from pydra_net.steps import STEP_TYPES

if TYPE_CHECKING:
    from pydra import HeldClaim
    from pydra_net.backend import NetBackend

SETTINGS_TYPE = Settings
ONE_POD = True

__all__ = ["CONFIG_TYPES", "DEVICE_CLASSES", "DRIVER", "ONE_POD", "SETTINGS_TYPE", "STEP_TYPES", "connect", "examine"]

DEVICE_CLASSES: Mapping[str, Mapping[str, Any]] = {
    DRIVER: {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
}
"""Specs by name."""


@asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[NetBackend]:
    """The node's interfaces, and its container runtime."""
    # Imported here: the webhook reads types only.
    from pydra_net.composition import open_backend  # noqa: PLC0415

    async with open_backend(settings) as backend:
        yield backend


def examine(settings: Settings, held: Sequence[HeldClaim]) -> Iterator[str]:
    """Yield which interfaces are not where claims say, or not as they say. Raises NamespaceGone."""
    from pydra_net.doctor_claim_interfaces import examine_node  # noqa: PLC0415

    return examine_node(settings, held)
