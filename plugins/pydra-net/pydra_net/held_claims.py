"""What the plans of held claims say. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from pydra import HeldClaim, StepStage
from pydra_net.steps import GiveInterface


def list_gives(held: Sequence[HeldClaim]) -> list[GiveInterface]:
    """The interfaces that claims of the node have, left over ones included."""
    return [one.step for claim in held for one in claim.claim.steps if isinstance(one.step, GiveInterface)]


def list_gives_of_pod(held: Sequence[HeldClaim], uid: str) -> list[GiveInterface]:
    """The interfaces that belong into the pod, which are those of its claims that are prepared."""
    return [
        one.step
        for claim in held
        if not claim.left_over and claim.claim.pod is not None and claim.claim.pod.uid == uid
        for one in claim.claim.steps
        if isinstance(one.step, GiveInterface) and one.stage is StepStage.DONE
    ]
