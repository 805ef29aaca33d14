"""MPS for claims: a control daemon is there while its claim is, and supervised. How one runs is in `mps_daemon`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from pydra import Claim, ClaimError, HeldClaim, LeftBehind, PydraError, Sample, SampleKind, held_claims
from pydra_nvidia.deadlines import left, time_for
from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.held_claims import Entry, read_entries
from pydra_nvidia.nvml.gpus import restore_compute_modes, set_exclusive
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.settings import Orphans, Settings
from pydra_nvidia.sharing.mps_daemon import MpsDaemons, find_recorded
from pydra_nvidia.sharing.mps_directory import MpsBusy, MpsDirectory, find_directory, list_directories, trim_logs, turn
from pydra_nvidia.sharing.mps_processes import Process, is_alive
from pydra_nvidia.steps import StartMps

FIRST_RETRY, LAST_RETRY = 5.0, 300.0
"""Seconds before a daemon that could not be restarted is tried again: at first, and at most."""

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


class MpsWatch:
    """Looks after the daemons of all claims; to be called every few seconds."""

    def __init__(
        self,
        applier: StartMpsApplier,
        settings: Settings,
        held: Callable[[], Sequence[HeldClaim]] = held_claims,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._applier = applier
        self._settings = settings
        self._held = held
        self._clock = clock
        self._waits: dict[str, tuple[float, float]] = {}
        self._running = 0
        self._restarts = 0
        self._failures = 0

    async def look(self) -> None:
        """Start dead daemons of claims again, with their limits. Never raises for a daemon."""
        entries = [entry for entry in read_entries(self._held()) if entry.completed and not entry.left_over]
        steps = {step.id: (step, entry.uid) for entry in entries for step in _daemons_of(entry)}
        running = 0
        for place in await asyncio.to_thread(list_directories, self._settings):
            if place.id not in steps:
                continue  # of no claim that is known here: `end_orphans` sees to it at the next start
            if await asyncio.to_thread(find_recorded, place) is not None:
                running += 1
                await asyncio.to_thread(trim_logs, place)
            elif self._clock() >= self._waits.get(place.id, (0.0, 0.0))[0]:
                running += await self._revive(*steps[place.id])
        self._running = running
        self._waits = {name: wait for name, wait in self._waits.items() if name in steps}

    def samples(self) -> Sequence[Sample]:
        """How many daemons ran at the last look, and how often they had to be started again."""
        return (
            Sample(name="mps_daemons", value=self._running, help="MPS control daemons that run for claims."),
            Sample(
                name="mps_restarts_total",
                value=self._restarts,
                help="MPS control daemons that had died and were started again.",
                kind=SampleKind.COUNTER,
            ),
            Sample(
                name="mps_restart_failures_total",
                value=self._failures,
                help="Attempts to start a dead MPS control daemon again that failed.",
                kind=SampleKind.COUNTER,
            ),
        )

    async def _revive(self, step: StartMps, uid: str) -> bool:
        """Whether it was started again. One that is being started has no record, and is left alone."""
        try:
            if not await self._applier.revive(step, uid):
                return False
        except MpsBusy:
            return False
        except PydraError as error:
            _, waited = self._waits.get(step.id, (0.0, FIRST_RETRY / 2))
            wait = min(waited * 2, LAST_RETRY)
            self._waits[step.id] = (self._clock() + wait, wait)
            self._failures += 1
            _log.error("MPS daemon %s of claim %s has died and cannot be restarted: %s", step.id, uid, error)
            return False
        self._waits.pop(step.id, None)
        self._restarts += 1
        _log.warning("MPS daemon %s of claim %s had died and was restarted", step.id, uid)
        return True

    async def end_orphans(self, entries: Sequence[Entry]) -> None:
        """End daemons that none of these claims has, if the admin wants that and it is known what all of them have."""
        if self._settings.orphans is not Orphans.REMOVE or any(entry.unread for entry in entries):
            return
        known = {step.id for entry in entries for step in _daemons_of(entry)}
        for place in await asyncio.to_thread(list_directories, self._settings):
            if place.id in known:
                continue
            try:
                await self._applier.end_orphan(place)
            except PydraError as error:
                _log.warning("MPS daemon %s, which no claim has, cannot be ended: %s", place.id, error)


def _daemons_of(entry: Entry) -> list[StartMps]:
    return [step for step in entry.steps if isinstance(step, StartMps)]
