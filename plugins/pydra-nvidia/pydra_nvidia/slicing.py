"""Carries out a claim's steps and undoes them. A shell: what the steps are is decided in `plan`.

The journal has every step before the first is done. A step that fails has left nothing behind and is struck from the
journal; those before it are undone in reverse. A process that is killed anywhere leaves a journal that says at most
too much, and undoing what was not done is fine. A cancelled call leaves the same: the claim's next call goes on.

Where nothing can be undone because the driver cannot be spoken to (its libraries were replaced under its module, or
the admin has it for himself), the claim is let go all the same, for its pods could not end before the next reboot. What
is to be undone stays in the journal as an ownerless entry.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeGuard

import msgspec
from msgspec.structs import replace

from pydra import Claim, ClaimError, PreparedDevice, PydraError
from pydra_nvidia.budget import doing
from pydra_nvidia.host.driver_root import DriverMissing
from pydra_nvidia.journal import Journal, JournalError
from pydra_nvidia.nvml.errors import STALE, Code, NvmlError
from pydra_nvidia.nvml.let_go import LetGo
from pydra_nvidia.steps import BindVfio, CreateMig, Entry, Hold, MigModeOff, Step, leave_behind
from pydra_nvidia.targets import Partition, Target


class Operator(Protocol):
    """Does and undoes one kind of step; both may be repeated.

    `apply` is all or nothing: when it raises a ClaimError, the hardware is as it was, unless it is a LeftBehind.
    `undo` succeeds when there is nothing to undo, and touches nothing that another claim or somebody else made.
    """

    async def apply(self, step: Any, entry: Entry, /) -> None:
        """Do it."""
        ...

    async def undo(self, step: Any, entry: Entry, /) -> None:
        """Undo it."""
        ...


class LeftBehind(ClaimError):
    """A step failed, and cleaning up after it failed too: it is undone with the steps before it."""

    reason = "LeftBehind"


class UndoFailed(ClaimError):
    """Something that was done for the claim is still there; it is tried again with the next call."""

    reason = "UndoFailed"


class Slicer:
    """`operators` has one for each kind of step."""

    def __init__(self, journal: Journal, operators: Mapping[type, Operator]) -> None:
        self._journal = journal
        self._operators = operators

    async def carry_out(self, entry: Entry, absent: Collection[Step] = ()) -> None:
        """Do the steps of an entry that is in the journal. Raises what a step raised, with all others undone.

        `absent` are partitions to create of which nothing was there when the entry was planned.
        """
        for position, step in enumerate(entry.steps):
            exact = replace(step, absent=True) if isinstance(step, CreateMig) and step in absent else step
            try:
                with doing():
                    await self._operators[type(step)].apply(exact, entry)
            except Exception as error:
                left_nothing = isinstance(error, ClaimError) and not isinstance(error, LeftBehind)
                done = entry.steps[: position if left_nothing else position + 1]
                await self._take_back(replace(entry, steps=done), error)
                raise

    async def undo(self, entry: Entry) -> None:
        """Undo the steps, last first, all of them although one fails; then forget the claim. Raises UndoFailed.

        What failed stays in the journal, with the steps before it: undoing those may have had to wait for it. What
        failed for want of the driver stays there without an owner.
        """
        kept = 0
        problems: list[Exception] = []
        unreached: list[Step] = []
        with self._journal.leaving(entry.uid):
            for position, step in reversed([*enumerate(entry.steps)]):
                try:
                    await self._undo(step, entry)
                except Exception as error:  # noqa: BLE001 - raised below, when the others have had their turn
                    if _is_unreached(error) and not entry.ownerless:
                        unreached.insert(0, step)
                        continue
                    kept = kept or position + 1
                    problems.append(error)
            if not problems:
                await asyncio.to_thread(self._let_go, entry, tuple(unreached))
                return
            await self._note(replace(entry, steps=entry.steps[:kept]))
        for problem in problems:
            if not isinstance(problem, PydraError):
                raise problem
        raise UndoFailed("; ".join(map(str, problems)))

    async def _undo(self, step: Step, entry: Entry) -> None:
        """Once more where only the session was of no use any more: the next one knows what is there."""
        try:
            await self._operators[type(step)].undo(step, entry)
        except NvmlError as error:
            if error.code != Code.UNINITIALIZED:
                raise
            await self._operators[type(step)].undo(step, entry)

    async def undo_ownerless(self) -> tuple[str, ...]:
        """Undo what ended claims left, as far as it goes now; in words, why the rest could not be undone yet.

        Raises:
            JournalError: the journal cannot be read.
        """
        problems: list[str] = []
        entries = await asyncio.to_thread(self._journal.entries)
        for entry in entries.values():
            if entry.ownerless:
                try:
                    await self.undo(_without_bound_anew(entry, entries.values()))
                except ClaimError as error:
                    problems.append(f"what claim {entry.namespace}/{entry.name} left is not undone yet: {error}")
        return tuple(problems)

    def _let_go(self, entry: Entry, unreached: tuple[Step, ...]) -> None:
        """Forget the claim; what could not be reached is written down before. Blocks."""
        if unreached:
            earlier = self._journal.read(leave_behind(entry, ()).uid)
            before = earlier.steps if earlier is not None else ()
            self._journal.write(leave_behind(entry, (*before, *(step for step in unreached if step not in before))))
        self._journal.remove(entry.uid)

    async def _take_back(self, done: Entry, error: Exception) -> None:
        await self._note(done)
        try:
            await self.undo(done)
        except PydraError as failed:
            raise UndoFailed(f"{error}; and undoing what was done failed: {failed}") from error

    async def _note(self, entry: Entry) -> None:
        """Strike steps from the journal; when it cannot be written it says too much, which does no harm."""
        with contextlib.suppress(JournalError):
            await asyncio.to_thread(self._journal.write, entry)


def _is_unreached(error: Exception) -> bool:
    """Whether the hardware has to be told later: nobody is there to tell, or what others need is not known."""
    return isinstance(error, DriverMissing | JournalError | LetGo) or (
        isinstance(error, NvmlError) and error.code in STALE
    )


def _without_bound_anew(entry: Entry, entries: Iterable[Entry]) -> Entry:
    """Without functions that another claim has by now; operators see to all else."""
    taken = {
        step.address for other in entries if not other.ownerless for step in other.steps if isinstance(step, BindVfio)
    }
    steps = tuple(step for step in entry.steps if not (isinstance(step, BindVfio) and step.address in taken))
    return replace(entry, steps=steps)


class _State(msgspec.Struct, frozen=True, kw_only=True):
    """What a prepared device remembers: its holds, and all steps of its claim, in that boot."""

    version: int
    boot: str
    holds: tuple[Hold, ...]
    steps: tuple[Step, ...]


def build_state(entry: Entry, target: Target) -> Any:
    """The claim's entry as the prepared device's state, plain JSON: the agent's record outlives the journal.

    Leaving MIG mode is not in it: there is nothing to undo, and a claim that is prepared again may not need it. The
    entry is as the journal has it, with its boot. `target` is the device as it is now: the step that made its partition
    learns the UUID.
    """
    holds = tuple(hold for hold in entry.holds if hold.device == target.allocated.device)
    uuids = {}
    if isinstance(target, Partition):
        uuids[target.gpu.uuid, target.profile_id, target.placement.start] = target.uuid
    steps = _with_uuids((step for step in entry.steps if not isinstance(step, MigModeOff)), uuids)
    return msgspec.to_builtins(_State(version=2, boot=entry.boot, holds=holds, steps=steps))


def entry_from(
    claim: Claim, prepared: Sequence[PreparedDevice], journal: Entry | None = None, *, boot: str = ""
) -> Entry | None:
    """What was done for the claim: `journal`, its entry there, or without one what its devices remember.

    Steps have the UUIDs that their partitions had when the claim was prepared. State of another make or boot is passed
    over; `boot` is this one's id, empty where nobody can tell. None when nothing is known.
    """
    parsed = [state for device in prepared if (state := _parse_state(device.state)) is not None]
    states = [state for state in parsed if not boot or not state.boot or state.boot == boot]
    if journal is None:
        if not states:
            return None
        holds = tuple(dict.fromkeys(hold for state in states for hold in state.holds))
        journal = Entry(
            uid=claim.uid,
            namespace=claim.namespace,
            name=claim.name,
            holds=holds,
            steps=states[0].steps,
            boot=states[0].boot,
        )
    uuids = {_place(step): step.uuid for state in states for step in state.steps if _is_known(step)}
    return replace(journal, steps=_with_uuids(journal.steps, uuids))


def _parse_state(state: Any) -> _State | None:
    try:
        parsed = msgspec.convert(state, _State)
    except msgspec.ValidationError:
        return None
    return parsed if parsed.version == 2 else None


def _with_uuids(steps: Iterable[Step], uuids: Mapping[tuple[str, int, int], str]) -> tuple[Step, ...]:
    return tuple(
        replace(step, uuid=uuids.get(_place(step), step.uuid)) if isinstance(step, CreateMig) else step
        for step in steps
    )


def _is_known(step: Step) -> TypeGuard[CreateMig]:
    return isinstance(step, CreateMig) and step.uuid != ""


def _place(step: CreateMig) -> tuple[str, int, int]:
    return (step.gpu, step.profile, step.placement.start)
