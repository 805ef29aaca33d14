"""Time slices: how long a process may compute on a GPU before the next one. Not NVML sets them, but nvidia-smi."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from pydra import Claim, LeftBehind, PydraError, TerminalError
from pydra_nvidia.host.driver_programs import Program, ProgramFailed, find_environment, find_program, run_program
from pydra_nvidia.host.driver_root import DriverRoot
from pydra_nvidia.nvml.compute_mode import DEFAULT, has_gpu, set_compute_mode
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.steps import SetTimeSlice
from pydra_nvidia.waiting import left

_LEAST = 1.0
"""Seconds that nvidia-smi has although the call's time is used up."""


class SetTimeSliceApplier:
    """`find_root` finds the driver's installation again, since drivers are replaced; it may raise PydraError.

    nvidia-smi, which may have to initialise the GPUs, has `deadline` seconds, and no more than is left of the call.
    """

    def __init__(
        self,
        session: NvmlSession,
        find_root: Callable[[], DriverRoot],
        *,
        deadline: float = 30.0,
    ) -> None:
        self._deadline = deadline
        self._session = session
        self._find_root = find_root

    async def apply(self, step: SetTimeSlice, result: Any, _claim: Claim, /) -> bool:
        """The compute mode first: a GPU that one process has to itself has no turns to take."""
        smi, environment = await asyncio.to_thread(self._find_smi)
        await set_compute_mode(self._session, step.gpu, DEFAULT)
        try:
            await self._set_interval(smi, environment, step.gpu, step.interval)
        except ProgramFailed as error:
            if result is None:  # else other claims have it as it is
                await self._take_back(step, error)
            if "not supported" in error.output.lower():
                raise TerminalError(f"GPU {step.gpu} cannot be time-sliced as the claim asks: {error}") from error
            raise
        return True

    async def undo(self, step: SetTimeSlice, _result: Any, _claim: Claim, /) -> None:
        """The default slice and the compute mode before, unless the GPU is gone, and its slice with it."""
        if not await has_gpu(self._session, step.gpu):
            return
        smi, environment = await asyncio.to_thread(self._find_smi)
        await self._set_interval(smi, environment, step.gpu, 0)
        await self._restore_mode(step)

    async def _take_back(self, step: SetTimeSlice, error: ProgramFailed) -> None:
        if not error.ended:
            raise LeftBehind(str(error)) from error  # it may have set the slice
        try:
            await self._restore_mode(step)
        except PydraError as failed:
            raise LeftBehind(f"{error}; and restoring the compute mode failed: {failed}") from error

    async def _restore_mode(self, step: SetTimeSlice) -> None:
        await set_compute_mode(self._session, step.gpu, DEFAULT if step.mode is None else step.mode)

    def _find_smi(self) -> tuple[Program, dict[str, str]]:
        """nvidia-smi and its environment, with the driver's NVML before any that its loader would find."""
        root = self._find_root()
        program = find_program(root, "nvidia-smi")
        return program, {**find_environment(root, program, root.path_here), "LD_PRELOAD": root.nvml_library}

    async def _set_interval(self, smi: Program, environment: Mapping[str, str], gpu: str, interval: int) -> None:
        arguments = ("compute-policy", "-i", gpu, "--set-timeslice", str(interval))
        command = " ".join([smi.name, *arguments])
        deadline = min(self._deadline, max(_LEAST, left(self._deadline)))
        await run_program(command, [smi.here, *arguments], environment=environment, deadline=deadline)
