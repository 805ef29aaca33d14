"""The capacities of devices, with the names and units of NVIDIA's own driver. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pydra import Capacity, CapacityRange, Quantity, RequestPolicy
from pydra_nvidia.hardware_types import Profile
from pydra_nvidia.settings import Shares

MIB = 1024 * 1024


def round_up(memory: int) -> int:
    """The next power of two, as NVIDIA's driver publishes the memory that a function addresses; 0 for none."""
    return 1 << (memory - 1).bit_length() if memory else 0


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


def build_capacities(figures: Mapping[str, int]) -> dict[str, Capacity]:
    """Figures as capacities that one claim takes whole."""
    return {name: Capacity(build_quantity(figure)) for name, figure in figures.items()}


def build_quantity(figure: int) -> Quantity:
    """Bytes become KiB where that is exact, so that amounts of memory read as such; CEL compares the values."""
    return f"{figure // 1024}Ki" if figure >= 1024 and figure % 1024 == 0 else figure


def share_capacities(figures: Mapping[str, int], how: Shares | int) -> dict[str, Capacity] | None:
    """The capacities of a shared device; None when it is not shared.

    Where the memory is not known, a GPU has no shares of it: `memory` then leaves it to one claim.
    """
    memory = figures.get("memory", 0) // MIB * MIB  # the API wants whole steps
    if how is Shares.DISABLED or (how is Shares.MEMORY and not memory):
        return None
    others = {name: figure for name, figure in figures.items() if name != "memory"}
    capacities = {name: _free(figure) for name, figure in others.items() if figure}
    capacities |= build_capacities({name: figure for name, figure in others.items() if not figure})
    if memory:
        capacities["memory"] = _divide_memory(memory, how)
    if isinstance(how, int):
        step = 1 if how > 1 else None  # the API wants room for one
        capacities["shares"] = Capacity(
            how, RequestPolicy(default=1, valid_range=CapacityRange(min=1, max=how, step=step))
        )
    return capacities


def _divide_memory(memory: int, how: Shares | int) -> Capacity:
    """In steps of 1 MiB. A claim that asks for none gets all with `memory`, else it is not accounted for."""
    whole = build_quantity(memory)
    least = "1Mi" if how is Shares.MEMORY else 0
    default = whole if how is Shares.MEMORY else 0
    return Capacity(whole, RequestPolicy(default=default, valid_range=CapacityRange(min=least, max=whole, step="1Mi")))


def _free(figure: int) -> Capacity:
    return Capacity(figure, RequestPolicy(default=0, valid_range=CapacityRange(min=0, max=figure, step=1)))
