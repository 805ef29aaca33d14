"""Time slices: how long a process may compute on a GPU before the next one. Not NVML sets them, but nvidia-smi."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydra import ClaimError, PydraError, TerminalError
from pydra_nvidia.host.driver_root import DriverRoot
from pydra_nvidia.journal import Journal
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.sharing.gpu_modes import DEFAULT, has_gpu
from pydra_nvidia.sharing.programs import ProgramFailed, find_environment, find_program, run_program
from pydra_nvidia.slicing import LeftBehind
from pydra_nvidia.steps import Entry, SetTimeSlice

_WORDS = {0: "DEFAULT", 1: "EXCLUSIVE_THREAD", 2: "PROHIBITED", 3: "EXCLUSIVE_PROCESS"}
"""Compute modes as NVML counts them, in nvidia-smi's words."""


class SetTimeSliceOperator:
    """`find_root` finds the driver's installation anew, since drivers are replaced; it may raise PydraError.

    One run of nvidia-smi, which may have to initialise the GPU, has `deadline` seconds.
    """

    def __init__(
        self,
        session: NvmlSession,
        journal: Journal,
        find_root: Callable[[], DriverRoot],
        *,
        deadline: float = 30.0,
    ) -> None:
        self._deadline = deadline
        self._session = session
        self._journal = journal
        self._find_root = find_root

    async def apply(self, step: SetTimeSlice, entry: Entry, /) -> None:
        """The compute mode first: a GPU that one process has to itself has no turns to take."""
        smi = _Smi(self._find_root(), self._deadline)
        await smi.set_compute_mode(step.gpu, DEFAULT)
        try:
            await smi.set_interval(step.gpu, step.interval)
        except ProgramFailed as error:
            if not error.ended:  # it may have set the slice before it hung
                await _take_back(self.undo(step, entry), "setting the default time slice", error)
            elif not self._is_shared(step, entry) and step.mode not in (None, DEFAULT):
                await _take_back(smi.set_compute_mode(step.gpu, step.mode), "restoring the compute mode", error)
            if "not supported" in error.output.lower():
                raise TerminalError(f"GPU {step.gpu} cannot be time-sliced as the claim asks: {error}") from error
            raise

    async def undo(self, step: SetTimeSlice, entry: Entry, /) -> None:
        """The default slice, unless another claim has a share of the GPU, or the GPU is gone and its slice with it.

        The compute mode becomes what it was.
        """
        if self._is_shared(step, entry):
            return
        if not await has_gpu(self._session, step.gpu):
            return
        smi = _Smi(self._find_root(), self._deadline)
        await smi.set_compute_mode(step.gpu, DEFAULT if step.mode is None else step.mode)
        await smi.set_interval(step.gpu, 0)

    def _is_shared(self, step: SetTimeSlice, entry: Entry) -> bool:
        return any(other.gpu == step.gpu for other in _time_slices(self._journal, entry.uid))


async def _take_back(undoing: Awaitable[None], what: str, error: ClaimError) -> None:
    try:
        await undoing
    except PydraError as failed:
        raise LeftBehind(f"{error}; and {what} failed: {failed}") from error


def _time_slices(journal: Journal, besides: str) -> list[SetTimeSlice]:
    return [step for entry in journal.staying(besides) for step in entry.steps if isinstance(step, SetTimeSlice)]


class _Smi:
    """nvidia-smi, with the driver's NVML before any that its loader would find."""

    def __init__(self, root: DriverRoot, deadline: float) -> None:
        self._deadline = deadline
        self._program = find_program(root, "nvidia-smi")
        environment = find_environment(root, self._program, root.path_here)
        self._environment = {**environment, "LD_PRELOAD": root.nvml_library}

    async def set_compute_mode(self, gpu: str, mode: int | None) -> None:
        await self._run("-i", gpu, "-c", _WORDS.get(mode or DEFAULT, "DEFAULT"))

    async def set_interval(self, gpu: str, interval: int) -> None:
        await self._run("compute-policy", "-i", gpu, "--set-timeslice", str(interval))

    async def _run(self, *arguments: str) -> None:
        command = " ".join([self._program.name, *arguments])
        await run_program(
            command, [self._program.here, *arguments], environment=self._environment, deadline=self._deadline
        )
