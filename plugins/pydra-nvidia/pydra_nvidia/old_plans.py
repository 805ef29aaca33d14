"""Claims that were planned before the agent carried out the steps: their plans list them. For one release.

For such a claim all steps count as done, and the UUIDs of its partitions are in the state of its prepared devices.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import msgspec

from pydra import Claim, HeldClaim, PreparedDevice, StepStage, UndoLater
from pydra_nvidia.steps import CreateMig, Step

_log = logging.getLogger(__name__)


class _OldPlan(msgspec.Struct, frozen=True):
    steps: tuple[Step, ...] = ()


class _MadeMig(CreateMig, frozen=True, tag="create-mig"):
    uuid: str = ""


class _OldState(msgspec.Struct, frozen=True):
    steps: tuple[_MadeMig, ...] = ()


def parse_old_steps(claim: Claim) -> tuple[Step, ...] | None:
    """The steps in the claim's plan; empty if it is not of that kind, and None if they cannot be read."""
    if claim.steps or not isinstance(claim.plan, dict):
        return ()
    try:
        return msgspec.convert(claim.plan, _OldPlan).steps
    except msgspec.ValidationError:
        return None


def is_needed(step: Step, held: Iterable[HeldClaim], *, besides: str) -> bool:
    """Whether an old plan of another claim has the step; the agent knows of those with steps of their own."""
    return any(_has(step, parse_old_steps(one.claim)) for one in held if one.claim.uid != besides)


async def undo_old_plan(
    claim: Claim,
    prepared: Sequence[PreparedDevice],
    held: Sequence[HeldClaim],
    undo: Callable[[Step, Any, Claim], Awaitable[None]],
) -> None:
    """Undo the steps of an old plan, last first, except those that another claim has. Raises what `undo` raised."""
    others = [one for one in held if one.claim.uid != claim.uid]
    for step in reversed(parse_old_steps(claim) or ()):
        if any(
            _has(step, [own.step for own in one.claim.steps if own.stage is not StepStage.PLANNED]) for one in others
        ):
            continue
        try:
            await undo(step, _find_uuid(step, prepared), claim)
        except UndoLater as error:
            _log.warning("step %s is not undone: %s; reboot the node to undo it", step, error)


def _has(step: Step, others: Iterable[Any] | None) -> bool:
    return any(type(one) is type(step) and one.key == step.key for one in others or ())


def _find_uuid(step: Step, prepared: Iterable[PreparedDevice]) -> str | None:
    for device in prepared:
        try:
            made = msgspec.convert(device.state or {}, _OldState).steps
        except msgspec.ValidationError:
            continue
        for one in made:
            if isinstance(step, CreateMig) and one.key == step.key and one.uuid:
                return one.uuid
    return None
