"""CPUs: a pydra backend in the place of Kubernetes' own CPU driver, with its names.

This module is what the entry point names. Nothing of the node is read at import.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydra_cpu.claim_config import CONFIG_TYPES, check_config
from pydra_cpu.devices import DRIVER
from pydra_cpu.settings import Settings

if TYPE_CHECKING:
    from pydra import HeldClaim
    from pydra_cpu.backend import CpuBackend

SETTINGS_TYPE = Settings

__all__ = ["CONFIG_TYPES", "DEVICE_CLASSES", "DRIVER", "SETTINGS_TYPE", "check_config", "connect", "examine"]

DEVICE_CLASSES: Mapping[str, Mapping[str, Any]] = {
    DRIVER: {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
}
"""Specs by name: that of Kubernetes' own driver."""


@asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[CpuBackend]:
    """The node's CPUs, and its container runtime."""
    # Imported here: the webhook reads types only.
    from pydra_cpu.composition import open_backend  # noqa: PLC0415

    async with open_backend(settings) as backend:
        yield backend


def examine(settings: Settings, held: Sequence[HeldClaim]) -> Iterator[str]:
    """Yield which containers of the node do not have the CPUs that claims give them. Raises PydraError."""
    from pydra_cpu.doctor_container_cpus import compare_containers  # noqa: PLC0415

    return compare_containers(settings, held)
