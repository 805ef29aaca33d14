"""Starts the MPS control daemons of claims again when they have died, and ends those that no claim has."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from pydra import HeldClaim, PydraError, Sample, held_claims
from pydra_nvidia.claim_records import Entry, read_entries
from pydra_nvidia.settings import Orphans, Settings
from pydra_nvidia.sharing.apply_mps import StartMpsApplier
from pydra_nvidia.sharing.mps_daemon import find_recorded
from pydra_nvidia.sharing.mps_directory import MpsBusy, list_directories, trim_logs
from pydra_nvidia.steps import StartMps

FIRST_RETRY, LAST_RETRY = 5.0, 300.0
"""Seconds before a daemon that could not be restarted is tried again: at first, and at most."""

_log = logging.getLogger(__name__)


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
            ),
            Sample(
                name="mps_restart_failures_total",
                value=self._failures,
                help="Attempts to start a dead MPS control daemon again that failed.",
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
