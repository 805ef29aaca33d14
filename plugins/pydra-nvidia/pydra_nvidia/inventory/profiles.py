"""What the profiles of a GPU make of it: places to offer, and counters that keep overlapping ones apart. Pure.

Counters are NVIDIA's: one for each capacity, at its maximum over the profiles, and one for each memory slice. Where
these would let the scheduler give more instances of a profile than the GPU can hold (none of today's GPUs), the
profile has a counter of its own besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from pydra import Capacity, Quantity
from pydra_nvidia.hardware_types import Placement, Profile
from pydra_nvidia.inventory.capacities import build_capacities, build_quantity, profile_figures

_COUNTERS = {"copyEngines": "copy-engines", "jpegEngines": "jpeg-engines", "ofaEngines": "ofa-engines"}
"""How counters are called that are not called as their capacity."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that the GPU could have: its capacities, and what it draws from the counters."""

    profile: Profile
    placement: Placement
    capacities: Mapping[str, Capacity]
    draws: Mapping[str, Quantity]


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """All partitions of a GPU in the order of offering, the counters, and the whole GPU's capacities.

    `counted` are the ids of profiles with a counter of their own.
    """

    offers: tuple[Offer, ...]
    counters: Mapping[str, int]
    capacities: Mapping[str, Capacity]
    counted: frozenset[int] = frozenset()

    def left_beside(self, present: Iterable[tuple[int, Placement]]) -> dict[str, Quantity]:
        """The counters, less what these partitions (profile's id and place) have taken already."""
        left = dict(self.counters)
        profiles = {offer.profile.id: offer.profile for offer in self.offers}
        for id_, placement in present:
            taken = _slices(placement)
            if id_ in profiles:
                taken |= _draws(profiles[id_], placement, self.counted)
            left |= {name: max(left[name] - amount, 0) for name, amount in taken.items() if name in left}
        return _quantities(left)


@lru_cache(maxsize=64)  # a node has one or two kinds of GPU
def build_table(profiles: tuple[Profile, ...]) -> Table:
    """Small profiles first, since the scheduler takes the first that fits; a place that blocks fewer others before.

    Profiles of one size are told apart by their engines: the plain one comes before the one with media engines.
    """
    places = [(profile, placement) for profile in profiles for placement in profile.placements]
    figures = {profile.id: profile_figures(profile) for profile in profiles}
    most = {name: max(one[name] for one in figures.values()) for name in next(iter(figures.values()), {})}
    slices = max((placement.start + placement.size for _, placement in places), default=0)
    counters = {_counter(name): amount for name, amount in most.items()} | _slices(Placement(0, slices))
    counted = frozenset(profile.id for profile in profiles if not _is_bounded(profile, counters))
    counters |= {_own_counter(profile.id): profile.most for profile in profiles if profile.id in counted}

    def order(place: tuple[Profile, Placement]) -> tuple[int, ...]:
        profile, placement = place
        engines = sum(
            amount for name, amount in figures[profile.id].items() if name not in ("memory", "multiprocessors")
        )
        blocked = sum(placement.overlaps(other) for _, other in places)
        return profile.slices, profile.memory_mib, engines, profile.id, blocked, placement.start

    return Table(
        offers=tuple(
            Offer(
                profile=profile,
                placement=placement,
                capacities=build_capacities(figures[profile.id]),
                draws=_quantities(_draws(profile, placement, counted)),
            )
            for profile, placement in sorted(places, key=order)
        ),
        counters=counters,
        capacities=build_capacities(most),
        counted=counted,
    )


def _is_bounded(profile: Profile, counters: Mapping[str, int]) -> bool:
    """Whether the counters allow no more instances of the profile than the GPU can hold."""
    fitting, end = 0, 0
    for placement in sorted(profile.placements, key=lambda one: one.start + one.size):
        if placement.start >= end:
            fitting, end = fitting + 1, placement.start + placement.size
    return fitting <= profile.most or any(
        figure * (profile.most + 1) > counters[_counter(name)] for name, figure in profile_figures(profile).items()
    )


def _draws(profile: Profile, placement: Placement, counted: frozenset[int]) -> dict[str, int]:
    own = {_own_counter(profile.id): 1} if profile.id in counted else {}
    return {_counter(name): figure for name, figure in profile_figures(profile).items()} | _slices(placement) | own


def _slices(placement: Placement) -> dict[str, int]:
    return {f"memory-slice-{number}": 1 for number in range(placement.start, placement.start + placement.size)}


def _counter(capacity: str) -> str:
    return _COUNTERS.get(capacity, capacity)


def _own_counter(profile: int) -> str:
    return f"profile-{profile}"


def _quantities(amounts: Mapping[str, int]) -> dict[str, Quantity]:
    return {name: build_quantity(amount) if name == "memory" else amount for name, amount in amounts.items()}
