"""Requests of claims for one of the driver's devices."""

from __future__ import annotations

from typing import Any

from pydra_nvidia import DRIVER


def request_for(device: str, profile: str = "") -> dict[str, Any]:
    """Of a kind (`gpu`, `mig`, `vfio`), or of that of a device by its name."""
    classes = {"gpu": "gpu.nvidia.com", "mig": "mig.nvidia.com", "vfio": "vfio.gpu.nvidia.com"}
    kind = device if device in classes else "vfio" if "vfio" in device else "mig" if "-mig-" in device else "gpu"
    exactly: dict[str, Any] = {"deviceClassName": classes[kind]}
    if profile:
        expression = f"device.attributes['{DRIVER}'].profile == '{profile}'"
        exactly["selectors"] = [{"cel": {"expression": expression}}]
    return {"name": "gpu", "exactly": exactly}
