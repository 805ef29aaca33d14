"""NVIDIA GPUs: a pydra backend in the place of NVIDIA's own DRA driver, with its names, kinds and classes.

This module is what the entry point names. Nothing of NVIDIA is loaded at import.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydra_nvidia.claim_config import CONFIG_TYPES, check_config
from pydra_nvidia.device_names import DRIVER
from pydra_nvidia.settings import Settings
from pydra_nvidia.steps import STEP_TYPES

if TYPE_CHECKING:
    from pydra import HeldClaim
    from pydra_nvidia.backend import NvidiaBackend

SETTINGS_TYPE = Settings

__all__ = [
    "CONFIG_TYPES",
    "DEVICE_CLASSES",
    "DRIVER",
    "SETTINGS_TYPE",
    "STEP_TYPES",
    "check_config",
    "connect",
    "examine",
]


def _selectors(kind: str) -> list[dict[str, Any]]:
    return [
        {
            "cel": {
                "expression": "device.driver == 'gpu.nvidia.com' && "
                f"device.attributes['gpu.nvidia.com'].?type.orValue('') == '{kind}'"
            }
        }
    ]


DEVICE_CLASSES: Mapping[str, Mapping[str, Any]] = {
    "gpu.nvidia.com": {"selectors": _selectors("gpu"), "extendedResourceName": "nvidia.com/gpu"},
    "mig.nvidia.com": {"selectors": _selectors("mig")},
    "vfio.gpu.nvidia.com": {"selectors": _selectors("vfio")},
}
"""Specs by name, those of NVIDIA's chart, so that claims which name them mean the same here.
`nvidia.com/gpu` as an extended resource is how the device plugin's pods ask."""


@asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[NvidiaBackend]:
    """The node's hardware, or the one of the scenario PYDRA_NVIDIA_SCENARIO."""
    # Imported here: the webhook reads types only.
    from pydra_nvidia.composition import open_backend  # noqa: PLC0415
    from pydra_nvidia.machine_access import find_machine  # noqa: PLC0415

    async with open_backend(find_machine(os.environ, settings)) as backend:
        yield backend


def examine(settings: Settings, _held: Sequence[HeldClaim]) -> Iterator[str]:
    """Yield what containers lack on the node that no claim can give them."""
    from pydra_nvidia.doctor_modules import examine_node  # noqa: PLC0415

    return examine_node(settings)
