"""How several claims share a GPU: which compute units each has, and the mask by which ROCm keeps to them. Pure.

HSA_CU_MASK is `0:0-7,16-23`: of the first GPU that the process sees, these compute units. Of a GPU with several XCCs,
unit i is on XCC i mod n, and an XCC of which a mask names no unit is not limited at all. So a share has as many units
of each XCC: blocks of n units, where n is the number of XCCs. A GPU of the RDNA family has other rules (pairs of units,
by shader engine), about which the kernel's files do not report enough: it is not shared.
Sources: ROCm's documentation, "Setting the number of compute units"; measured on gfx942 by GPUStack ("AMD CU-mask
conformance", July 2026); mqd_symmetrically_map_cu_mask in the kernel's drivers/gpu/drm/amd/amdkfd/kfd_mqd_manager.c.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from pydra import (
    AllocatedDevice,
    Capacity,
    CapacityRange,
    ClaimError,
    HeldClaim,
    RequestPolicy,
    TerminalError,
    parse_quantity,
)
from pydra_amd.claim_records import PlanUnknown, Units, read_holds
from pydra_amd.hardware_types import Gpu, Partition

MASK = "HSA_CU_MASK"

MIB = 1 << 20
_CDNA = 9
"""The major version of the instruction sets whose masks are as above."""


class ComputeUnitsTaken(ClaimError):
    """Fewer compute units are free than the claim was given."""

    reason = "ComputeUnitsTaken"


class ShareRefused(TerminalError):
    """A share that no mask can give."""

    reason = "ShareRefused"


def is_shareable(gpu: Gpu, one: Partition) -> bool:
    """Whether several claims can have the GPU, or the partition of it."""
    return gpu.gfx // 10000 == _CDNA and one.compute_units >= 2 * one.xccs


def build_shared_capacity(one: Partition, memory: int) -> dict[str, Capacity]:
    """A claim that does not say how much it needs gets all: memory in MiB, of which 0 are not known, units in blocks.

    SIMD units follow from compute units, and no claim takes any.
    """
    free = RequestPolicy(default=0, valid_range=CapacityRange(min=0, max=one.simds, step=1))
    capacity = {
        "computeUnits": _divide(one.compute_units // one.xccs * one.xccs, one.xccs),
        "simdUnits": Capacity(one.simds, free),
    }
    return capacity | ({"memory": _divide(f"{memory // MIB}Mi", "1Mi")} if memory >= 2 * MIB else {})


def choose_units(device: AllocatedDevice, gpu: Gpu, one: Partition, held: Iterable[HeldClaim]) -> Units:
    """The compute units for a share of the partition, beside those that other claims have; empty for all of them.

    Raises:
        ComputeUnitsTaken: the others have too many, whatever the scheduler believed.
        ShareRefused: the claim was given less than one unit of each XCC.
    """
    blocks = one.compute_units // one.xccs
    asked = int(parse_quantity(device.consumed_capacity.get("computeUnits", blocks * one.xccs)))
    if asked < one.xccs:
        raise ShareRefused(
            f"{device.device} cannot be shared by {asked} compute units: a share has at least one of each of its "
            f"{one.xccs} XCCs; ask for computeUnits in steps of {one.xccs}"
        )
    taken = {str(other.claim): _list_taken(other, device, gpu.address, one) for other in held}
    free = sorted(set(range(blocks)) - {block for some in taken.values() for block in some})
    wanted = min(asked // one.xccs, blocks)
    if len(free) < wanted:
        holders = ", ".join(sorted(name for name, some in taken.items() if some))
        raise ComputeUnitsTaken(
            f"{len(free) * one.xccs} of the {blocks * one.xccs} compute units of {device.device} are free, and the "
            f"claim was given {asked}: {holders} have the others; it can be prepared when one of them has ended"
        )
    if wanted == blocks:
        return ()
    return tuple((first * one.xccs, (last + 1) * one.xccs - 1) for first, last in _find_runs(free[:wanted]))


def build_mask(units: Units) -> Mapping[str, str]:
    """The environment for a container that has this share and no other GPU; empty for all units."""
    if not units:
        return {}
    return {MASK: "0:" + ",".join(f"{first}-{last}" if first != last else str(first) for first, last in units)}


def _divide(whole: int | str, step: int | str) -> Capacity:
    return Capacity(whole, RequestPolicy(default=whole, valid_range=CapacityRange(min=step, max=whole, step=step)))


def _list_taken(held: HeldClaim, device: AllocatedDevice, address: str, one: Partition) -> set[int]:
    """The blocks of units that a claim has of the partition; all, if it has the device and its plan cannot be read."""
    found: set[int] = set()
    try:
        holds = read_holds(held.claim)
    except PlanUnknown:
        is_its = any(other.device == device.device and not other.admin_access for other in held.claim.devices)
        return set(range(one.compute_units // one.xccs)) if is_its else found
    for hold in holds:
        if hold.units is not None and (hold.gpu, hold.index) == (address, one.index):
            for first, last in hold.units or ((0, one.compute_units - 1),):
                found.update(range(first // one.xccs, last // one.xccs + 1))
    return found


def _find_runs(blocks: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of blocks that follow each other: in such a run, number less place is the same."""
    for _, run in groupby(enumerate(blocks), lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        yield numbers[0], numbers[-1]
