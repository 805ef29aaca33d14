"""What a GPU does, as the kernel's files report it: memory, activity, power, temperature.

What a GPU does not have, and what cannot be read now, is left out.
Source: the kernel's Documentation/gpu/amdgpu/thermal.rst.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from pydra_amd.host.amdgpu import BOUND
from pydra_pci import Tree

_MICRO, _MILLI = 1e6, 1e3


class Sensors(msgspec.Struct, frozen=True, kw_only=True):
    """What a GPU does now: bytes, shares of time in percent, watts, degrees Celsius by sensor; None: not known."""

    memory_total: float | None = None
    memory_used: float | None = None
    busy: float | None = None
    memory_busy: float | None = None
    power: float | None = None
    power_limit: float | None = None
    temperatures: Mapping[str, float] = {}


def read_sensors(tree: Tree, address: str) -> Sensors:
    """Of a GPU, all its partitions together."""
    folder = tree.sys(f"{BOUND}/{address}")
    monitor = next((f"{folder}/hwmon/{name}" for name in tree.names(f"{folder}/hwmon")), "")
    labels = [name for name in tree.names(monitor) if re.fullmatch(r"temp\d+_label", name)]
    found = {
        tree.read(f"{monitor}/{name}"): _read_number(tree, f"{monitor}/{name.removesuffix('label')}input", _MILLI)
        for name in labels
    }
    power = _read_number(tree, f"{monitor}/power1_average", _MICRO)
    memory = _read_number(tree, f"{folder}/mem_info_vram_total") or None  # 0: it has none of its own
    return Sensors(
        memory_total=memory,
        memory_used=_read_number(tree, f"{folder}/mem_info_vram_used") if memory else None,
        busy=_read_number(tree, f"{folder}/gpu_busy_percent"),
        memory_busy=_read_number(tree, f"{folder}/mem_busy_percent"),
        power=_read_number(tree, f"{monitor}/power1_input", _MICRO) if power is None else power,
        power_limit=_read_number(tree, f"{monitor}/power1_cap", _MICRO),
        temperatures={label: value for label, value in found.items() if label and value is not None},
    )


def _read_number(tree: Tree, path: str, divisor: float = 1.0) -> float | None:
    text = tree.read(path)
    return int(text) / divisor if re.fullmatch(r"-?\d{1,20}", text) else None
