"""The devices of a host: their names, and the sub-slice that each stands for. Pure.

chip-3    one chip, by its place on the host
2x2-4     a sub-slice, or the whole host: its shape, and its first chip
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from pydra_tpu.generations import Generation
from pydra_tpu.geometry import SubSlice, list_sub_slices
from pydra_tpu.hardware_types import Host
from pydra_tpu.settings import Offer

DRIVER = "tpu.google.com"


def list_offered(host: Host, offer: Offer) -> Mapping[str, SubSlice]:
    """The sub-slices that are published, by the name of their device; none for chips that form no mesh."""
    if not host.chips or [*find_mesh_problems(host)]:
        return {}
    count = len(host.chips)
    sizes = {Offer.SUB_SLICES: (1, 2, 4, 8), Offer.CHIPS: (1,), Offer.HOST: (count,)}[offer]
    generation = host.chips[0].generation
    whole, *parts = list_sub_slices(count)
    # Not the shape that a source reports: a device must not have another name when the source answers later.
    found = (replace(whole, bounds=generation.host_bounds(count)), *parts)
    wanted = [one for one in found if len(one.chips) in sizes and not _splits_group(one, host)]
    return {name_device(one, generation): one for one in wanted}


def name_device(sub_slice: SubSlice, generation: Generation) -> str:
    """`chip-3`, or the shape and the first chip: `2x2-4`."""
    first = sub_slice.chips[0]
    return f"chip-{first}" if len(sub_slice.chips) == 1 else f"{generation.topology(sub_slice.bounds)}-{first}"


def _splits_group(sub_slice: SubSlice, host: Host) -> bool:
    """Whether a chip of it shares an IOMMU group, which only one process can open, with a chip outside of it."""
    groups = {group for index in sub_slice.chips for group in host.chips[index].groups}
    return any(groups & chip.groups for chip in host.chips if chip.index not in sub_slice.chips)


def find_mesh_problems(host: Host) -> list[str]:
    """Why these chips cannot be a mesh; empty if they can, or if there are none."""
    if not host.chips:
        return []
    generations = sorted({chip.generation.product for chip in host.chips})
    if len(generations) > 1:
        return [f"the chips of this machine are of different generations ({', '.join(generations)}): none is offered"]
    count, allowed = len(host.chips), host.chips[0].generation.host_chips
    if count not in allowed:
        usual = " or ".join(map(str, allowed))
        return [f"chips of this machine: {count}, of a {generations[0]} host: {usual}; none is offered"]
    expected = host.facts.host_chips
    if expected not in (None, count):
        source = host.facts.sources.get("host_chips", "")
        return [f"chips of this machine: {count}, expected by {source}: {expected}; none is offered"]
    return []
