"""Starts and ends the MPS control daemon of a claim. How one runs is in `mps_daemon`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from pydra import Claim, ClaimError, LeftBehind, PydraError
from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.nvml.compute_mode import restore_compute_modes, set_exclusive
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Settings
from pydra_nvidia.sharing.mps_daemon import MpsDaemons
from pydra_nvidia.sharing.mps_directory import MpsDirectory, find_directory, turn
from pydra_nvidia.sharing.mps_processes import Process, is_alive
from pydra_nvidia.steps import StartMps
from pydra_nvidia.waiting import left, time_for

_log = logging.getLogger(__name__)


class StartMpsApplier:
    """`reread` reads these GPUs' partitions again (`hardware.HardwareReader.reread`)."""

    def __init__(
        self,
        session: NvmlSession,
        settings: Settings,
        daemons: MpsDaemons,
        reread: Callable[[Collection[str]], Awaitable[Reading]],
    ) -> None:
        self._session = session
        self._settings = settings
        self._daemons = daemons
        self._reread = reread

    async def apply(self, step: StartMps, _result: Any, claim: Claim, /) -> bool:
        """The compute mode before the daemon: its servers are the one process that a GPU lets in.

        A daemon that was ready before, for pods that may run, stays whatever happens here.
        """
        began = time.monotonic()
        ready = left(self._settings.mps_ready_deadline)
        async with turn(self._settings, step.id, ready):
            place = find_directory(self._settings, step.id)
            if await self._daemons.is_ready(place):
                await self._take_over_again(step)
                return True
            try:
                with time_for(ready - (time.monotonic() - began)):
                    self._daemons.refuse_container()
                    devices = step.devices or (await self._find_partition(step),)
                    await set_exclusive(self._session, step.exclusive)
                    await self._daemons.ensure(place, step, devices, claim.uid)
            except Exception as error:
                try:
                    await self._remove(place, step)
                except PydraError as failed:
                    raise LeftBehind(f"{error}; and stopping the MPS daemon failed: {failed}") from error
                raise
        return True

    async def undo(self, step: StartMps, _result: Any, _claim: Claim, /) -> None:
        """End the daemon, and give the GPUs back to all processes."""
        async with turn(self._settings, step.id, left(self._settings.mps_ready_deadline)):
            await self._remove(find_directory(self._settings, step.id), step)

    async def revive(self, step: StartMps, uid: str) -> bool:
        """Start the daemon again if it has died; whether it had. One that is being started or stopped is left alone."""
        async with turn(self._settings, step.id, 0):
            place = find_directory(self._settings, step.id)
            record = await asyncio.to_thread(place.read_record)
            if record is None or is_alive(Process(record.started, record.pid)):
                return False
            with time_for(self._settings.mps_ready_deadline):
                await set_exclusive(self._session, step.exclusive)
                await self._daemons.ensure(place, step, record.devices, uid)
            return True

    async def end_orphan(self, place: MpsDirectory) -> None:
        """End a daemon that no claim has; raises MpsBusy while somebody is at it."""
        async with turn(self._settings, place.id, 0):
            record = await asyncio.to_thread(place.read_record)
            if record is not None:
                await self._daemons.remove(place)
                await restore_compute_modes(self._session, [one for one in record.devices if one.startswith("GPU-")])

    async def _take_over_again(self, step: StartMps) -> None:
        """Somebody may have reset the compute mode, or the GPU may not answer now: the daemon goes on without."""
        try:
            await set_exclusive(self._session, step.exclusive)
        except PydraError as error:
            _log.warning("MPS daemon %s goes on in the compute mode that its GPUs have: %s", step.id, error)

    async def _remove(self, place: MpsDirectory, step: StartMps) -> None:
        await self._daemons.remove(place)
        await restore_compute_modes(self._session, step.exclusive, step.modes)

    async def _find_partition(self, step: StartMps) -> str:
        """The UUID of a partition that an earlier step made."""
        if step.partition is not None:
            uuid, placement = step.partition
            gpu = (await self._reread([uuid])).gpu(uuid)
            for instance in gpu.mig.instances if gpu is not None and gpu.mig is not None else ():
                if instance.placement == placement and instance.compute:
                    return instance.compute[0].uuid
        raise ClaimError(f"MPS daemon {step.id} cannot be started: its partition does not exist (any more)")
