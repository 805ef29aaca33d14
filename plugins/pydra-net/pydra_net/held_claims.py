"""What the plans of held claims say. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from pydra import HeldClaim, StepStage
from pydra_net.steps import GiveInterface, ShareInterface, Step

_INTERFACES = (GiveInterface, ShareInterface)


def list_interfaces(held: Sequence[HeldClaim]) -> list[Step]:
    """The interfaces that claims of the node have, left over ones included."""
    return [one.step for claim in held for one in claim.claim.steps if isinstance(one.step, _INTERFACES)]


def list_gives(held: Sequence[HeldClaim]) -> list[GiveInterface]:
    """Those that are moved."""
    return [one for one in list_interfaces(held) if isinstance(one, GiveInterface)]


def list_holders(held: Sequence[HeldClaim], own: Sequence[Step]) -> list[tuple[Step, str]]:
    """The interfaces that claims have, with words for the claim, and those of the claim that is planned."""
    theirs = [
        (step, f"claim {one.claim.namespace}/{one.claim.name}") for one in held for step in list_interfaces((one,))
    ]
    return [*theirs, *((step, "the same claim") for step in own)]


def list_of_pod(held: Sequence[HeldClaim], uid: str) -> list[Step]:
    """The interfaces that belong into the pod, which are those of its claims that are prepared."""
    return [
        one.step
        for claim in held
        if not claim.left_over and claim.claim.pod is not None and claim.claim.pod.uid == uid
        for one in claim.claim.steps
        if isinstance(one.step, _INTERFACES) and one.stage is StepStage.DONE
    ]
