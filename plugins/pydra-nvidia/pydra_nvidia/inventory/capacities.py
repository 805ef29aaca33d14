"""How much a device has, by the names of its capacities, and how that is written. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pydra import Capacity, Quantity
from pydra_nvidia.hardware import Profile

MIB = 1024 * 1024


def profile_figures(profile: Profile) -> dict[str, int]:
    """What one partition of this profile has; memory in bytes, the rest are counts."""
    return {
        "multiprocessors": profile.multiprocessors,
        "copyEngines": profile.copy_engines,
        "decoders": profile.decoders,
        "encoders": profile.encoders,
        "jpegEngines": profile.jpeg_engines,
        "ofaEngines": profile.ofa_engines,
        "memory": profile.memory_mib * MIB,
    }


def memory_figure(memory: int | None) -> dict[str, int]:
    """The memory of a whole GPU; nothing where the driver does not tell it."""
    return {} if memory is None else {"memory": memory}


def build_capacities(figures: Mapping[str, int]) -> dict[str, Capacity]:
    """Figures as capacities that one claim takes whole."""
    return {name: Capacity(build_quantity(figure)) for name, figure in figures.items()}


def build_quantity(figure: int) -> Quantity:
    """Bytes become KiB where that is exact, so that amounts of memory read as such; CEL compares the values."""
    return f"{figure // 1024}Ki" if figure >= 1024 and figure % 1024 == 0 else figure
