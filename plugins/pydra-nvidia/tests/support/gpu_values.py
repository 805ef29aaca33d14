"""A GPU as the telemetry reads it, for tests of pure functions."""

from __future__ import annotations

from pydra_nvidia.hardware_types import Architecture, Gpu


def gpu(index: int, name: str, address: str = "") -> Gpu:
    """An H100 whose UUID and, unless given, PCI address contain `name`."""
    return Gpu(
        index=index,
        minor=index,
        uuid=f"GPU-{name}",
        name="NVIDIA H100 80GB HBM3",
        brand=2,
        architecture=Architecture.HOPPER,
        compute=(9, 0),
        pci=address or f"0000:{name}:00.0",
        memory=80 << 30,
    )
