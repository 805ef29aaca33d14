"""Carries out a claim's steps and undoes them. A shell: what the steps are is decided in `plan`.

The journal has every step before the first is done. A step that fails has left nothing behind and is struck from the
journal; those before it are undone in reverse. A process that is killed anywhere leaves a journal that says at most
too much, and undoing what was not done is fine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from msgspec.structs import replace

from pydra import ClaimError
from pydra_nvidia.journal import Journal
from pydra_nvidia.steps import Entry, Step


class Operator(Protocol):
    """Does and undoes one kind of step; both may be repeated.

    `apply` is all or nothing: when it raises, the hardware is as it was. It may raise ClaimError with words for the
    claim's author. `undo` succeeds when there is nothing to undo, and touches nothing that another claim or somebody
    else made.
    """

    async def apply(self, step: Any, entry: Entry, /) -> None:
        """Do it."""
        ...

    async def undo(self, step: Any, entry: Entry, /) -> None:
        """Undo it."""
        ...


class UndoFailed(ClaimError):
    """Something that was done for the claim is still there; it is tried again with the next call."""

    reason = "UndoFailed"


class Slicer:
    """`operators` has one for each kind of step."""

    def __init__(self, journal: Journal, operators: Mapping[type, Operator]) -> None:
        self._journal = journal
        self._operators = operators

    async def carry_out(self, entry: Entry) -> None:
        """Do the steps of an entry that is in the journal. Raises what a step raised, with all others undone."""
        for position, step in enumerate(entry.steps):
            try:
                await self._operators[type(step)].apply(step, entry)
            except Exception as error:
                await self._take_back(replace(entry, steps=entry.steps[:position]), error)
                raise

    async def undo(self, entry: Entry) -> None:
        """Undo the steps, last first, all of them although one fails; then forget the claim. Raises UndoFailed."""
        left: list[Step] = []
        problems: list[str] = []
        for step in reversed(entry.steps):
            try:
                await self._operators[type(step)].undo(step, entry)
            except ClaimError as error:
                left.insert(0, step)
                problems.append(str(error))
        if problems:
            self._journal.write(replace(entry, steps=tuple(left)))
            raise UndoFailed("; ".join(problems))
        self._journal.remove(entry.uid)

    async def _take_back(self, done: Entry, error: Exception) -> None:
        self._journal.write(done)
        try:
            await self.undo(done)
        except UndoFailed as failed:
            raise UndoFailed(f"{error}; and undoing the steps before it failed: {failed}") from error
