"""ComputeDomains on a node: a pydra backend in the place of the kubelet plugin of NVIDIA's `compute-domain.nvidia.com`.

This module is what the entry point `nvidia-compute-domain` names. Nothing of NVIDIA is loaded at import.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydra_nvidia.compute_domain.claim_config import CONFIG_TYPES
from pydra_nvidia.compute_domain.names import CHANNEL_CLASS, DAEMON_CLASS, DRIVER
from pydra_nvidia.compute_domain.settings import Settings
from pydra_nvidia.compute_domain.steps import STEP_TYPES

if TYPE_CHECKING:
    from pydra_nvidia.compute_domain.backend import ComputeDomainBackend

SETTINGS_TYPE = Settings

__all__ = ["CONFIG_TYPES", "DEVICE_CLASSES", "DRIVER", "SETTINGS_TYPE", "STEP_TYPES", "connect"]

_TYPE = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].?type.orValue('')"
DEVICE_CLASSES: Mapping[str, Mapping[str, Any]] = {
    name: {"selectors": [{"cel": {"expression": expression}}]}
    for name, expression in (
        (DAEMON_CLASS, f"{_TYPE} == 'daemon'"),
        (CHANNEL_CLASS, f"{_TYPE} == 'channel' && device.attributes['{DRIVER}'].?id.orValue(-1) == 0"),
    )
}
"""Specs by name, those of NVIDIA's chart: its controller makes claims for them."""


@asynccontextmanager
async def connect(settings: Settings) -> AsyncIterator[ComputeDomainBackend]:
    """The node's fabric and IMEX channels, or those of the scenario PYDRA_NVIDIA_COMPUTE_DOMAIN_SCENARIO."""
    # Imported here: the webhook reads types only.
    from pydra_nvidia.compute_domain.backend import ComputeDomainBackend  # noqa: PLC0415
    from pydra_nvidia.machine_access import find_machine  # noqa: PLC0415

    yield ComputeDomainBackend(find_machine({}, settings.of_node()), settings)
