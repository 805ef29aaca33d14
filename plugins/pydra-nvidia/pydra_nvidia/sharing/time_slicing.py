"""Time slices: how long a process may compute on a GPU before the next one. Not NVML sets them, but nvidia-smi."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from pydra import ClaimError, PydraError, TerminalError
from pydra_nvidia.deadlines import left, undoing
from pydra_nvidia.held_claims import HeldEntries
from pydra_nvidia.host.driver_programs import ProgramFailed, find_environment, find_program, run_program
from pydra_nvidia.host.driver_root import DriverRoot
from pydra_nvidia.nvml.gpus import DEFAULT, has_gpu, set_compute_mode
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.steps import Entry, SetTimeSlice
from pydra_pci import LeftBehind

_LEAST = 1.0
"""Seconds that nvidia-smi has although the call's time is used up."""


class SetTimeSliceApplier:
    """`find_root` finds the driver's installation anew, since drivers are replaced; it may raise PydraError.

    One run of nvidia-smi, which may have to initialise the GPUs, has `deadline` seconds, and no more than is left of
    the call: one run sets the slices of all GPUs of a claim.
    """

    def __init__(
        self,
        session: NvmlSession,
        held: HeldEntries,
        find_root: Callable[[], DriverRoot],
        *,
        deadline: float = 30.0,
    ) -> None:
        self._deadline = deadline
        self._session = session
        self._held = held
        self._find_root = find_root

    async def apply(self, step: SetTimeSlice, entry: Entry, /) -> None:
        """The compute mode first: a GPU that one process has to itself has no turns to take.

        The last of the claim's steps with the same slice sets it for the GPUs of all of them.
        """
        smi = await asyncio.to_thread(self._find_smi)
        await set_compute_mode(self._session, step.gpu, DEFAULT)
        gpus = [one.gpu for one in _steps_of(entry) if one.interval == step.interval]
        if step.gpu != gpus[-1]:
            return
        try:
            await smi.set_interval(gpus, step.interval)
        except ProgramFailed as error:
            with undoing():
                if not error.ended or len(gpus) > 1:  # it may have set some before it failed
                    await _take_back(self._set_default(gpus, entry), "setting the default time slice", error)
                await _take_back(self._restore_mode(step, entry), "restoring the compute mode", error)
            if "not supported" in error.output.lower():
                raise TerminalError(f"GPU {step.gpu} cannot be time-sliced as the claim asks: {error}") from error
            raise

    async def undo(self, step: SetTimeSlice, entry: Entry, /) -> None:
        """The default slice, unless another claim has a share of the GPU, or the GPU is gone and its slice with it.

        The compute mode becomes what it was. The claim's last step, which is undone first, sets the slice of all.
        """
        steps = _steps_of(entry)
        if step.gpu == steps[-1].gpu:
            await self._set_default([one.gpu for one in steps], entry)
        await self._restore_mode(step, entry)

    async def _set_default(self, gpus: Sequence[str], entry: Entry) -> None:
        if there := [gpu for gpu in gpus if await self._is_ours(gpu, entry)]:
            smi = await asyncio.to_thread(self._find_smi)
            await smi.set_interval(there, 0)

    async def _restore_mode(self, step: SetTimeSlice, entry: Entry) -> None:
        if await self._is_ours(step.gpu, entry):
            await asyncio.to_thread(self._find_smi)  # with a driver that is away no step counts as undone
            await set_compute_mode(self._session, step.gpu, DEFAULT if step.mode is None else step.mode)

    async def _is_ours(self, gpu: str, entry: Entry) -> bool:
        """Whether the GPU is there, and no other claim has a share of it."""
        others = self._held.staying(entry.uid)
        if any(one.gpu == gpu for other in others for one in _steps_of(other)):
            return False
        return await has_gpu(self._session, gpu)

    def _find_smi(self) -> _Smi:
        return _Smi(self._find_root(), self._deadline)


def _steps_of(entry: Entry) -> list[SetTimeSlice]:
    return [step for step in entry.steps if isinstance(step, SetTimeSlice)]


async def _take_back(undoing: Awaitable[None], what: str, error: ClaimError) -> None:
    try:
        await undoing
    except PydraError as failed:
        raise LeftBehind(f"{error}; and {what} failed: {failed}") from error


class _Smi:
    """nvidia-smi, with the driver's NVML before any that its loader would find."""

    def __init__(self, root: DriverRoot, deadline: float) -> None:
        self._deadline = deadline
        self._program = find_program(root, "nvidia-smi")
        environment = find_environment(root, self._program, root.path_here)
        self._environment = {**environment, "LD_PRELOAD": root.nvml_library}

    async def set_interval(self, gpus: Sequence[str], interval: int) -> None:
        await self._run("compute-policy", "-i", ",".join(gpus), "--set-timeslice", str(interval))

    async def _run(self, *arguments: str) -> None:
        command = " ".join([self._program.name, *arguments])
        deadline = min(self._deadline, max(_LEAST, left(self._deadline)))
        await run_program(command, [self._program.here, *arguments], environment=self._environment, deadline=deadline)
