"""What the preparer reports: claims that were prepared or unprepared, or could not be."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

import msgspec

from pydra.claim import ClaimRef, PodRef
from pydra.errors import PydraError


class Operation(Enum):
    """A request of the kubelet for a claim."""

    PREPARE = "prepare"
    UNPREPARE = "unprepare"


class OperationDone(msgspec.Struct, frozen=True, kw_only=True):
    """A claim was prepared or unprepared; `from_record`: an earlier call had done so. `timings` has seconds by step."""

    driver: str
    operation: Operation
    ref: ClaimRef
    seconds: float
    from_record: bool
    timings: Mapping[str, float]


class OperationFailed(msgspec.Struct, frozen=True, kw_only=True):
    """An operation failed. `pods` are those that wait for the claim, if known."""

    driver: str
    operation: Operation
    ref: ClaimRef
    error: PydraError
    seconds: float
    timings: Mapping[str, float] = {}
    pods: tuple[PodRef, ...] = ()


class StepsLeftOver(msgspec.Struct, frozen=True, kw_only=True):
    """A claim has ended, and steps of it cannot be undone now, for the reason; `ref` has the claim's own uid."""

    driver: str
    ref: ClaimRef
    reason: str


ClaimEvent: TypeAlias = OperationDone | OperationFailed | StepsLeftOver
