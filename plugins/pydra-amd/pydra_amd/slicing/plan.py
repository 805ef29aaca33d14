"""Decides what a claim holds and what is done for it, before anything is touched. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pydra import AllocatedDevice, Claim, ClaimError, DeviceInUse, UnknownDevice
from pydra_amd.held_claims import PlanUnknown
from pydra_amd.offering import Offered
from pydra_amd.steps import Entry, Hold, SetComputeMode, Step


class ModeConflict(ClaimError):
    """The GPU is in use in another partition mode than the claim needs."""

    reason = "ModeConflict"


def plan_claim(
    claim: Claim,
    offered: Mapping[str, Offered],
    *,
    entries: Sequence[Entry],
    unread: Iterable[Claim] = (),
) -> Entry:
    """The claim's entry. `entries` is what the other claims hold, `unread` are those of which that is not known.

    Raises:
        UnknownDevice: this node does not have one of the devices.
        DeviceInUse: another claim holds it, whatever the scheduler believed.
        ModeConflict: another claim holds a part of the GPU in another mode, or this one asks for two modes of one GPU.
        PlanUnknown: a claim whose plan cannot be read may hold a part of the GPU.
    """
    wanted = [(one, find_offered(one, offered)) for one in claim.devices]
    holds = tuple(
        Hold(device=found.name, gpu=found.gpu.address, mode=found.mode, index=found.index, admin=one.admin_access)
        for one, found in wanted
    )
    _refuse_conflicts(holds, entries)
    _refuse_unread(holds, unread, offered)
    begun = [step for entry in entries for step in entry.steps]
    steps = _plan_modes([found for one, found in wanted if not one.admin_access], begun)
    return Entry(uid=claim.uid, name=f"{claim.namespace}/{claim.name}", holds=holds, steps=tuple(steps))


def find_offered(device: AllocatedDevice, offered: Mapping[str, Offered]) -> Offered:
    """What the device means. Raises UnknownDevice."""
    found = offered.get(device.device)
    if found is None:
        names = ", ".join(sorted(offered)) or "none"
        raise UnknownDevice(f"this node has no device {device.device}; it has {names}")
    return found


def _refuse_conflicts(holds: Sequence[Hold], entries: Sequence[Entry]) -> None:
    mine = [hold for hold in holds if not hold.admin]
    for position, hold in enumerate(mine):
        for other in mine[:position]:
            if other.gpu == hold.gpu and other.mode != hold.mode:
                raise ModeConflict(
                    f"devices {other.device} and {hold.device} of this claim are of one GPU ({hold.gpu}) and need "
                    f"different modes of it ({other.mode}, {hold.mode}); ask for partitions of one mode"
                )
        for entry in entries:
            for held in entry.holds:
                if held.admin or held.gpu != hold.gpu:
                    continue
                if held.mode != hold.mode:
                    raise ModeConflict(
                        f"{hold.device} needs the mode {hold.mode} of GPU {hold.gpu}, and claim {entry.name} has "
                        f"{held.device}, which needs {held.mode}; the mode can change when that claim has ended"
                    )
                if held.index == hold.index:
                    raise DeviceInUse(hold.device, entry.name)


def _refuse_unread(holds: Sequence[Hold], unread: Iterable[Claim], offered: Mapping[str, Offered]) -> None:
    mine = {hold.gpu: hold for hold in holds if not hold.admin}
    for claim in unread:
        for one in claim.devices:
            found = offered.get(one.device)
            if found is not None and found.gpu.address in mine and not one.admin_access:
                raise PlanUnknown(
                    f"{mine[found.gpu.address].device} cannot be prepared: the claim with uid {claim.uid} has "
                    f"{one.device} of the same GPU, and its plan cannot be read; delete the pods that use that claim"
                )


def _plan_modes(wanted: Sequence[Offered], begun: Sequence[Step]) -> Iterator[SetComputeMode]:
    """A step for each GPU whose mode is not what it must be; one that another claim began is this claim's too.

    So the mode before is remembered as long as any claim needs the other, whichever of them ends last.
    """
    known = {step.gpu: step for step in begun}
    for address, one in sorted({one.gpu.address: one for one in wanted}.items()):
        if one.mode is None or one.gpu.mode is None:
            continue
        if (step := known.get(address)) is not None and step.target == one.mode.compute:
            yield step
        elif one.mode != one.gpu.mode:
            yield SetComputeMode(gpu=address, before=one.gpu.mode.compute, target=one.mode.compute)
