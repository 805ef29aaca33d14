"""What the preparer reports: claims that were prepared or unprepared, or could not be."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

import msgspec

from pydra.claim import ClaimRef
from pydra.errors import PydraError


class Operation(Enum):
    """A request of the kubelet for a claim."""

    PREPARE = "prepare"
    UNPREPARE = "unprepare"


class OperationEnded(msgspec.Struct, frozen=True, kw_only=True):
    """A claim was prepared or unprepared, or could not be.

    `from_record`: an earlier call had done so. `timings` has seconds by step.
    """

    driver: str
    operation: Operation
    ref: ClaimRef
    seconds: float
    error: PydraError | None = None
    from_record: bool = False
    timings: Mapping[str, float] = {}


class StepsLeftOver(msgspec.Struct, frozen=True, kw_only=True):
    """A claim has ended, and steps of it cannot be undone now, for the reason; `ref` has the claim's own uid."""

    driver: str
    ref: ClaimRef
    reason: str


ClaimEvent: TypeAlias = OperationEnded | StepsLeftOver
