"""Which parts of a GPU are published, decided from its mode, from what exists on it, and from what is ours. Pure.

Places that claims made are offered exactly as they were before anything was created there, so that slices stay
the same when claims come and go. A GPU instance that nobody here made is foreign: nothing that overlaps it can be
had, and it is published itself when it can be used, with exactly one compute instance that fills it. What foreign
instances took is gone from the counters, and they draw from none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from msgspec.structs import replace

from pydra import Quantity
from pydra_nvidia.hardware_types import VGPU_GUEST, Gpu, GpuInstance, Mig, Placement, Profile
from pydra_nvidia.inventory.profiles import Offer, build_table

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
