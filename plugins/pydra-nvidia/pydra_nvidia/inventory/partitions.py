"""Which parts of a GPU are published: decided from its mode, from what exists on it, and from what is ours. Pure.

Places that claims made are offered exactly as they were before anything was created there, so that slices stay
the same when claims come and go. A GPU instance that nobody here made is foreign: nothing that overlaps it can be
had, and it is published itself when it can be used, with exactly one compute instance that fills it. What foreign
instances took is gone from the counters, and they draw from none.

Counters keep overlapping partitions apart, and are NVIDIA's: one for each capacity, at its maximum over the profiles,
and one for each memory slice. Where these would let the scheduler give more instances of a profile than the GPU can
hold (none of today's GPUs), the profile has a counter of its own besides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

import msgspec
from msgspec.structs import replace

from pydra import Capacity, Quantity
from pydra_nvidia.hardware_types import VGPU_GUEST, Gpu, GpuInstance, Mig, Placement, Profile
from pydra_nvidia.inventory.capacities import build_capacities, build_quantity, profile_figures

WHOLE_ONLY: Mapping[str, Quantity] = {"gpu": 1}
"""The counters of a GPU that is not partitioned, so that it is either used here or passed through."""


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that exists, and stays; or one that a claim has and that somebody removed."""

    instance: GpuInstance
    profile: Profile

    @property
    def uuid(self) -> str:
        """Its compute instance's; empty where it was removed."""
        return self.instance.compute[0].uuid if self.instance.compute else ""


class Offering(msgspec.Struct, frozen=True, kw_only=True):
    """What is published of a GPU. `counters` empty: there is no counter set; the whole GPU draws all of it.

    `profiled`: the whole GPU's capacities are those of its profiles.
    """

    whole: bool
    offers: tuple[Offer, ...] = ()
    adopted: tuple[Adopted, ...] = ()
    counters: Mapping[str, Quantity] = {}
    profiled: bool = False


def decide_offering(gpu: Gpu, *, owned: Collection[Placement], dynamic: bool, passthrough: bool) -> Offering:
    """`owned` are the places of this GPU that claims made; `passthrough`: the node can pass GPUs through."""
    mig = gpu.mig
    if mig is not None and dynamic and _can_partition(gpu, mig):
        return _offer_places(mig, owned)
    whole = mig is None or not mig.enabled
    return Offering(
        whole=whole,
        adopted=() if mig is None or whole else _adopt(mig, mig.instances),
        counters=WHOLE_ONLY if whole and passthrough else {},
    )


def with_removed(offering: Offering, gpu: Gpu, removed: Collection[tuple[int, Placement]]) -> Offering:
    """With partitions, by profile and place, that somebody removed and that claims have: they stay explicable."""
    profiles = {profile.id: profile for profile in gpu.mig.profiles} if gpu.mig is not None else {}
    offered = {(one.profile.id, one.placement) for one in offering.offers}
    missing = [one for one in removed if one not in offered and one[0] in profiles]
    if not missing:
        return offering
    found = (
        Adopted(instance=GpuInstance(id=-1, profile=profile, placement=placement), profile=profiles[profile])
        for profile, placement in missing
    )
    return replace(offering, adopted=(*offering.adopted, *found))


def _can_partition(gpu: Gpu, mig: Mig) -> bool:
    """Whether partitions can be made when they are needed: it is known where. Ampere needs a reset for its mode."""
    places = any(profile.placements for profile in mig.profiles)
    return gpu.virtualization != VGPU_GUEST and places and (mig.resetless or mig.enabled)


def _offer_places(mig: Mig, owned: Collection[Placement]) -> Offering:
    table = build_table(mig.profiles)
    foreign = [instance for instance in mig.instances if instance.placement not in owned]
    offers = tuple(
        offer for offer in table.offers if not any(instance.placement.overlaps(offer.placement) for instance in foreign)
    )
    whole = mig.resetless and not foreign
    left = table.left_beside((instance.profile, instance.placement) for instance in foreign)
    return Offering(
        whole=whole,
        offers=offers,
        adopted=_adopt(mig, foreign),
        counters=left if whole or offers else {},
        profiled=True,
    )


def _adopt(mig: Mig, instances: Collection[GpuInstance]) -> tuple[Adopted, ...]:
    """Those that can be used, small ones first."""
    profiles = {profile.id: profile for profile in mig.profiles}
    usable = [
        Adopted(instance=instance, profile=profiles[instance.profile])
        for instance in instances
        if instance.profile in profiles
        and [compute.slices for compute in instance.compute] == [profiles[instance.profile].slices]
    ]
    return tuple(sorted(usable, key=lambda one: (one.profile.slices, one.profile.memory_mib, one.instance.placement)))


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

    Profiles of one size differ in their engines: the plain one comes before the one with media engines.
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
