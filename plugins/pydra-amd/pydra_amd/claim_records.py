"""What a claim holds: encoded as the data of its plan, and decoded from its record, with its steps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec

from pydra import Claim, ClaimError, HeldClaim
from pydra_amd.hardware_types import Mode
from pydra_amd.steps import Step

Units: TypeAlias = tuple[tuple[int, int], ...]
"""Compute units of a partition: the first and the last of each range."""


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """That a claim has the partition `index` that the GPU at this address has in `mode`; None: all of the GPU.

    With `passthrough` it has the function.
    Holds with `admin` only look. One with `units` is a share, which has these compute units, or all where it is empty.
    """

    device: str
    gpu: str
    mode: Mode | None = None
    index: int = 0
    admin: bool = False
    units: Units | None = None
    passthrough: bool = False


class PlanUnknown(ClaimError):
    """What a claim holds cannot be found out from its plan."""

    reason = "PlanUnknown"


class _Data(msgspec.Struct, frozen=True, kw_only=True):
    holds: tuple[Hold, ...] = ()


def build_data(holds: Sequence[Hold]) -> Any:
    """Return the data of a plan, as JSON: what the claim has of each of its devices."""
    return msgspec.to_builtins(_Data(holds=tuple(holds)))


def read_holds(claim: Claim) -> tuple[Hold, ...]:
    """Return what the claim has of each of its devices. Raises PlanUnknown: its record or its plan cannot be read."""
    try:
        return msgspec.convert(claim.plan, _Data).holds
    except msgspec.ValidationError as error:
        raise PlanUnknown(f"the plan of claim {claim} cannot be read: {error}") from error


def list_steps(claim: Claim) -> tuple[Step, ...]:
    """Return the steps of the claim; those of unknown types are left out."""
    return tuple(one.step for one in claim.steps if isinstance(one.step, Step))


def find_begun(held: Iterable[HeldClaim]) -> dict[str, Step]:
    """Return the steps that claims have, by key."""
    return {step.key: step for one in held for step in list_steps(one.claim)}
