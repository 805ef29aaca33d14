"""The steps of held claims: by kind, by device and by pod. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from pydra import AllocatedDevice, Claim, HeldClaim, StepStage
from pydra_net.steps import GiveInterface, GiveRdma, InterfaceStep, ShareInterface, Step

_INTERFACES = (GiveInterface, ShareInterface)


def list_interfaces(held: Sequence[HeldClaim]) -> list[InterfaceStep]:
    """The interfaces that claims of the node have, left over ones included."""
    return [one.step for claim in held for one in claim.claim.steps if isinstance(one.step, _INTERFACES)]


def list_gives(held: Sequence[HeldClaim]) -> list[GiveInterface]:
    """Those that are moved."""
    return [one for one in list_interfaces(held) if isinstance(one, GiveInterface)]


def list_holders(held: Sequence[HeldClaim], own: Sequence[InterfaceStep]) -> list[tuple[InterfaceStep, str]]:
    """The interfaces that claims have, with words for the claim, and those of the claim that is planned."""
    theirs = [(step, f"claim {one.claim}") for one in held for step in list_interfaces((one,))]
    return [*theirs, *((step, "the same claim") for step in own)]


def list_rdma(held: Sequence[HeldClaim]) -> list[GiveRdma]:
    """The RDMA devices that claims have."""
    return [one.step for claim in held for one in claim.claim.steps if isinstance(one.step, GiveRdma)]


def list_of_device(claim: Claim, device: AllocatedDevice) -> list[Step]:
    """The steps of a claim for one of its devices."""
    of = device.device, device.share_id
    return [one.step for one in claim.steps if (one.step.device, one.step.share_id) == of]


def list_of_pod(held: Sequence[HeldClaim], uid: str) -> list[Step]:
    """What belongs into the pod: interfaces, and RDMA devices that are moved, of its claims that are prepared."""
    return [
        one.step
        for claim in held
        if not claim.left_over and claim.claim.pod is not None and claim.claim.pod.uid == uid
        for one in claim.claim.steps
        if one.stage is StepStage.DONE and one.step.moves
    ]
