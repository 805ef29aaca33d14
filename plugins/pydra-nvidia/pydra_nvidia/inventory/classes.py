"""The DeviceClasses of NVIDIA's chart, with its expressions, so that claims which name them mean the same here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _selectors(kind: str) -> list[dict[str, Any]]:
    return [
        {
            "cel": {
                "expression": "device.driver == 'gpu.nvidia.com' && "
                f"device.attributes['gpu.nvidia.com'].type == '{kind}'"
            }
        }
    ]


DEVICE_CLASSES: Mapping[str, Mapping[str, Any]] = {
    "gpu.nvidia.com": {"selectors": _selectors("gpu"), "extendedResourceName": "nvidia.com/gpu"},
    "mig.nvidia.com": {"selectors": _selectors("mig")},
    "vfio.gpu.nvidia.com": {"selectors": _selectors("vfio")},
}
"""Specs by name. `nvidia.com/gpu` as an extended resource is how the device plugin's pods ask."""
