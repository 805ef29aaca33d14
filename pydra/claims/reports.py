"""What the claims' shells have to tell; `agent.py` turns it into metrics, log lines and Kubernetes Events. Values only.

Every `OperationStarted` is followed by exactly one `ClaimPrepared`, `ClaimUnprepared` or `ClaimFailed`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeAlias

import msgspec

from pydra.claims.outcome import ClaimRef, PodRef
from pydra.errors import PydraError


class Operation(Enum):
    """What the kubelet asks for."""

    PREPARE = "prepare"
    UNPREPARE = "unprepare"


class OperationStarted(msgspec.Struct, frozen=True, kw_only=True):
    """Work on a claim began."""

    driver: str
    operation: Operation
    ref: ClaimRef


class ClaimPrepared(msgspec.Struct, frozen=True, kw_only=True):
    """A claim was prepared, or (`from_record`) was so already. `stages` has seconds by stage name."""

    driver: str
    ref: ClaimRef
    seconds: float
    from_record: bool
    stages: Mapping[str, float]


class ClaimUnprepared(msgspec.Struct, frozen=True, kw_only=True):
    """A claim is not prepared any more; without `from_record` it was not before."""

    driver: str
    ref: ClaimRef
    seconds: float
    from_record: bool
    stages: Mapping[str, float]


class ClaimFailed(msgspec.Struct, frozen=True, kw_only=True):
    """An operation failed. `terminal`: trying again cannot help. `pods` are those that wait for the claim, if known."""

    driver: str
    operation: Operation
    ref: ClaimRef
    error: PydraError
    terminal: bool
    seconds: float
    pods: tuple[PodRef, ...] = ()


class SweepCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep did. `waiting` claims are gone from the API, but not for long enough to be sure of the kubelet."""

    claims_unprepared: int = 0
    started_undone: int = 0
    files_removed: int = 0
    files_restored: int = 0
    failed: int = 0
    waiting: int = 0


class SweepDone(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep ended. `problem` says why it could not look at everything, such as an API server that does not answer."""

    driver: str
    counts: SweepCounts
    seconds: float
    problem: str = ""


ClaimEvent: TypeAlias = OperationStarted | ClaimPrepared | ClaimUnprepared | ClaimFailed
SweepEvent: TypeAlias = SweepDone
