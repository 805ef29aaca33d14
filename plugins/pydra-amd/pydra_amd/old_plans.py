"""Steps of plans that were recorded before the agent carried out steps: mappings with `steps`, in the plan itself.

The backend undoes them itself. To be deleted with the second release.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from pydra import Claim, HeldClaim, StepStage
from pydra_amd.steps import Step


def read_old_steps(claim: Claim) -> tuple[Step, ...]:
    """Return the steps of such a plan; none of any other."""
    if claim.steps or not isinstance(claim.plan, Mapping) or "steps" not in claim.plan:
        return ()
    try:
        return msgspec.convert(claim.plan["steps"], tuple[Step, ...])
    except msgspec.ValidationError:
        return ()


def is_in_old_plan(step: Step, held: Iterable[HeldClaim]) -> bool:
    """Whether a claim with such a plan has the same step, so that it is undone with that claim."""
    return any(step.key == one.key for other in held for one in read_old_steps(other.claim))


def list_undoable(claim: Claim, held: Iterable[HeldClaim]) -> Iterator[Step]:
    """Yield the steps to be undone with this claim, last first: those that no other claim has.

    Of a claim whose record cannot be read nothing is known, and it may need any of them.
    """
    others = [one for one in held if one.claim.uid != claim.uid]
    if any(one.claim.plan is None and not one.claim.steps for one in others):
        return
    begun = {one.step.key for other in others for one in other.claim.steps if _is_begun(one.stage, one.step)}
    for step in reversed(read_old_steps(claim)):
        if step.key not in begun and not is_in_old_plan(step, others):
            yield step


def _is_begun(stage: StepStage, step: object) -> bool:
    return isinstance(step, Step) and stage is not StepStage.PLANNED
