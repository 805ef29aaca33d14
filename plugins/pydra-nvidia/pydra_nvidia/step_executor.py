"""Carries out a claim's steps and undoes them. A shell: what the steps are is decided in `claim_plan`.

The agent keeps the plan before the first step is done, with the state that its steps will change, so that undoing
restores exactly that. A step that fails has left nothing behind and is removed from
what this process holds for the claim; those before it are undone in reverse. A process that is killed anywhere leaves a
plan that says at most too much, and undoing what was not done is fine. So does a cancelled call.

Where nothing can be undone because the driver cannot be called (its libraries were replaced under its module, or the
GPUs are in maintenance) or because the GPU is lost, the claim ends all the same, for its pods could not end before the
next reboot. What is to be undone is kept in memory as an ownerless entry; a process that starts anew finds it as
belonging to nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from msgspec.structs import replace

from pydra import ClaimError, PydraError
from pydra_nvidia.deadlines import doing
from pydra_nvidia.held_claims import HeldEntries
from pydra_nvidia.host.driver_root import DriverMissing
from pydra_nvidia.host.pci import DRIVER
from pydra_nvidia.host.persistenced import Persistenced
from pydra_nvidia.nvml.errors import LOST, STALE, Code, NvmlError
from pydra_nvidia.nvml.gpus import read_compute_mode
from pydra_nvidia.nvml.maintenance_gate import InMaintenance
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.steps import BindVfio, CreateMig, Entry, SetTimeSlice, StartMps, Step, StepApplier, leave_behind
from pydra_pci import LeftBehind, Tree, read_function


class UndoFailed(ClaimError):
    """Something that was done for the claim is still there; it is tried again with the next call."""

    reason = "UndoFailed"


class StepExecutor:
    """`appliers` has one for each kind of step."""

    def __init__(self, held: HeldEntries, appliers: Mapping[type, StepApplier]) -> None:
        self._held = held
        self._appliers = appliers

    async def carry_out(self, entry: Entry, absent: Collection[Step] = ()) -> None:
        """Do the steps of the entry. Raises what a step raised, with all others undone.

        `absent` are partitions to create of which nothing was there when the entry was planned.
        """
        self._held.write(entry)
        for position, step in enumerate(entry.steps):
            exact = replace(step, absent=True) if isinstance(step, CreateMig) and step in absent else step
            try:
                with doing():
                    await self._appliers[type(step)].apply(exact, entry)
            except Exception as error:
                left_nothing = isinstance(error, ClaimError) and not isinstance(error, LeftBehind)
                done = entry.steps[: position if left_nothing else position + 1]
                await self.take_back(replace(entry, steps=done), error)
                raise

    async def undo(self, entry: Entry) -> None:
        """Undo the steps, last first, all of them although one fails; then forget the claim. Raises UndoFailed.

        What failed stays to be undone, with the steps before it: undoing those may have had to wait for it. What failed
        for want of the driver stays without an owner.
        """
        kept = 0
        problems: list[Exception] = []
        unreached: list[Step] = []
        with self._held.leaving(entry.uid):
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
                self._forget(entry, tuple(unreached))
                return
            self._held.write(replace(entry, steps=entry.steps[:kept]))
        for problem in problems:
            if not isinstance(problem, PydraError):
                raise problem
        raise UndoFailed("; ".join(map(str, problems)))

    async def _undo(self, step: Step, entry: Entry) -> None:
        """Once more where only the session was of no use any more: the next one knows what is there."""
        try:
            await self._appliers[type(step)].undo(step, entry)
        except NvmlError as error:
            if error.code != Code.UNINITIALIZED:
                raise
            await self._appliers[type(step)].undo(step, entry)

    async def undo_ownerless(self) -> tuple[str, ...]:
        """Undo what ended claims left, as far as it goes now; in words, why the rest could not be undone yet."""
        problems: list[str] = []
        entries = self._held.entries()
        for entry in entries.values():
            if entry.ownerless:
                try:
                    await self.undo(_without_bound_anew(entry, entries.values()))
                except ClaimError as error:
                    problems.append(f"what claim {entry.namespace}/{entry.name} left is not undone yet: {error}")
        return tuple(problems)

    async def take_back(self, done: Entry, error: Exception) -> None:
        """Undo what a failed prepare has done, and remember that nothing else is to be undone for the claim."""
        self._held.write(done)
        try:
            await self.undo(done)
        except PydraError as failed:
            raise UndoFailed(f"{error}; and undoing what was done failed: {failed}") from error
        self._held.mark_taken_back(done.uid)

    def _forget(self, entry: Entry, unreached: tuple[Step, ...]) -> None:
        """Forget the claim, and remember what could not be reached."""
        if unreached:
            earlier = self._held.read(leave_behind(entry, ()).uid)
            before = earlier.steps if earlier is not None else ()
            self._held.write(leave_behind(entry, (*before, *(step for step in unreached if step not in before))))
        self._held.remove(entry.uid)


def _is_unreached(error: Exception) -> bool:
    """Whether the hardware has to be told later: nobody is there to tell."""
    if isinstance(error, NvmlError):
        return error.code in STALE | LOST
    return isinstance(error, DriverMissing | InMaintenance)


def _without_bound_anew(entry: Entry, entries: Iterable[Entry]) -> Entry:
    """Without functions that another claim has by now; appliers see to all else."""
    taken = {
        step.address for other in entries if not other.ownerless for step in other.steps if isinstance(step, BindVfio)
    }
    steps = tuple(step for step in entry.steps if not (isinstance(step, BindVfio) and step.address in taken))
    return replace(entry, steps=steps)


class PriorState:
    """Compute modes from NVML, overrides of kernel drivers from /sys, what nvidia-persistenced keeps; all block."""

    def __init__(self, session: NvmlSession, tree: Tree, persistenced: Persistenced) -> None:
        self._session = session
        self._tree = tree
        self._persistenced = persistenced

    def remember(self, entry: Entry, others: Iterable[Entry]) -> Entry:
        """The entry, whose steps say what was before. Raises NvmlError, PersistenceFailed."""
        begun = [step for other in others if other.uid != entry.uid for step in other.steps]
        return replace(entry, steps=tuple(self._complete(step, begun) for step in entry.steps))

    def _complete(self, step: Step, begun: list[Step]) -> Step:
        match step:
            case SetTimeSlice():
                return replace(step, mode=self._mode(step.gpu, begun))
            case StartMps() if step.exclusive:
                found = {gpu: self._mode(gpu, begun) for gpu in step.exclusive}
                return replace(step, modes={gpu: mode for gpu, mode in found.items() if mode is not None})
            case BindVfio() if step.before != step.target and step not in begun:
                override = read_function(self._tree, step.address).override
                # NVML in a container tells of the daemon's GPUs that they are not persistent.
                persistent = step.persistence or (step.before == DRIVER and self._persistenced.keeps(step.address))
                return replace(step, override=override, persistence=persistent)
        return step

    def _mode(self, gpu: str, begun: list[Step]) -> int | None:
        for mode in _modes_before(gpu, begun):
            return mode
        return self._session.run_here(lambda nvml: read_compute_mode(nvml, gpu))


def _modes_before(gpu: str, begun: Iterable[Step]) -> Iterator[int | None]:
    for step in begun:
        match step:
            case SetTimeSlice() if step.gpu == gpu:
                yield step.mode
            case StartMps() if gpu in step.exclusive:
                yield step.modes.get(gpu)
