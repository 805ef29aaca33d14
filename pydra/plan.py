"""Value types for plans: what a backend's `plan` returns, and how far the steps of a claim's plan have come."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import msgspec


class StepStage(Enum):
    """How far a step of a plan has come."""

    PLANNED = "planned"
    """Nothing was done, or all was undone."""
    BEGUN = "begun"
    """`apply` was, or is about to be, called, and has not returned: it may have been done."""
    DONE = "done"
    """`apply` has returned, for this claim or for another with an equal step."""


class ClaimStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step of a claim's plan, and how far it has come."""

    step: Any
    """The step: a value of one of the backend's `STEP_TYPES`; in the agent, and if its type is unknown, a mapping."""
    key: str
    """Steps with the same key are one change, of however many claims."""
    label: str
    """What the log and messages call it."""
    holds: tuple[str, ...] | None = None
    """The devices of the claim that stay held as long as the step cannot be undone; None for all of them."""
    stage: StepStage = StepStage.PLANNED
    """How far it has come."""
    result: Any = None
    """What `apply` returned, a JSON value; None before that."""


def describe_step(step: Any, *, stage: StepStage = StepStage.PLANNED, result: Any = None) -> ClaimStep:
    """Return the step of a backend as a claim has it: for the claims that `inherit` returns, with stage `DONE`."""
    kind: Any = step.__class__
    tag = str(kind.__struct_config__.tag)
    holds = getattr(step, "holds", None)
    label = str(step) if kind.__str__ is not object.__str__ else tag
    key = getattr(step, "key", None)
    return ClaimStep(
        step=step,
        key=f"{tag}:{_build_key(step) if key is None else key}",
        label=label,
        holds=None if holds is None else tuple(holds),
        stage=stage,
        result=result,
    )


def _build_key(step: Any) -> str:
    """Return the fields that differ from their defaults, so that a field that a later version adds changes no key."""
    defaults = {field.encode_name: field.default for field in msgspec.structs.fields(step)}
    fields = {name: value for name, value in msgspec.to_builtins(step).items() if value != defaults.get(name)}
    return msgspec.json.encode(fields, order="deterministic").decode()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What `plan` of a backend with `STEP_TYPES` returns."""

    steps: Sequence[Any] = ()
    """The changes of the hardware that the claim needs, in order, each a value of one of the `STEP_TYPES`."""
    data: Any = None
    """What else `prepare`, or the `plan` of another claim, has to know: any JSON value, found in `claim.plan`."""
