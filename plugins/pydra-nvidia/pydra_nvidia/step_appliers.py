"""Does and undoes any step, by the applier for its kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pydra import Claim, UndoLater
from pydra_nvidia.host.driver_programs import ProgramMissing
from pydra_nvidia.host.driver_root import DriverMissing
from pydra_nvidia.nvml.errors import LOST, STALE, Code, NvmlError
from pydra_nvidia.nvml.maintenance_gate import InMaintenance
from pydra_nvidia.steps import Step


class StepApplier(Protocol):
    """Does and undoes one kind of step; both may be repeated.

    `apply` is all or nothing: when it raises a ClaimError, the hardware is as it was, unless it is a `LeftBehind`.
    `undo` succeeds when there is nothing to undo, and touches nothing that somebody else made.
    """

    async def apply(self, step: Any, result: Any, claim: Claim, /) -> Any:
        """Apply the step; `result` is that of another claim with the same step, else None."""
        ...

    async def undo(self, step: Any, result: Any, claim: Claim, /) -> None:
        """Undo the step; without `result`, it may or may not have been done."""
        ...


class StepAppliers:
    """`appliers` has one for each kind of step."""

    def __init__(self, appliers: Mapping[type, StepApplier]) -> None:
        self._appliers = appliers

    async def apply(self, step: Step, result: Any, claim: Claim) -> Any:
        """Apply the step. Raises ClaimError with nothing changed, or LeftBehind."""
        return await self._appliers[type(step)].apply(step, result, claim)

    async def undo(self, step: Step, result: Any, claim: Claim) -> None:
        """Undo the step. Raises UndoLater if the driver cannot be called now, or the GPU is lost."""
        try:
            await self._undo(step, result, claim)
        except (NvmlError, DriverMissing, ProgramMissing, InMaintenance) as error:
            if isinstance(error, NvmlError) and error.code not in STALE | LOST:
                raise
            raise UndoLater(str(error)) from error

    async def _undo(self, step: Step, result: Any, claim: Claim) -> None:
        """Once more where only the session was of no use any more: the next one knows what is there."""
        applier = self._appliers[type(step)]
        try:
            await applier.undo(step, result, claim)
        except NvmlError as error:
            if error.code != Code.UNINITIALIZED:
                raise
            await applier.undo(step, result, claim)
