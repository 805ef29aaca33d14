"""Carries out on the node what `pydra.claims.lifecycle` decided: record, backend, CDI file.

Every step is idempotent, and their order is what makes a crash harmless: between any two of them the
record says enough to go on, or back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

import anyio
from msgspec.structs import replace

from pydra.cdi.spec import build_spec_file
from pydra.checkpoint.record import Record, Stage
from pydra.claim import Claim, PreparedDevice
from pydra.claims.lifecycle import Prepare, begin, finish, undo
from pydra.claims.outside import CdiFiles, Checkpoints, ClaimBackend, Limits, ReadPresent
from pydra.claims.stages import Stages
from pydra.errors import CheckpointError, PydraError

_log = logging.getLogger(__name__)


class Execution:
    """The effects of one driver's claims. The caller has the claim's turn and holds the node's lock."""

    def __init__(
        self,
        *,
        driver: str,
        boot_id: str,
        backend: ClaimBackend,
        checkpoints: Checkpoints,
        cdi: CdiFiles,
        read_present: ReadPresent,
        limits: Limits,
        wall_clock: Callable[[], float],
    ) -> None:
        self._driver = driver
        self._boot_id = boot_id
        self._backend = backend
        self._checkpoints = checkpoints
        self._cdi = cdi
        self._read_present = read_present
        self._limits = limits
        self._wall_clock = wall_clock

    async def prepare(
        self, step: Prepare, before: Record | None, stages: Stages, on_failure: Callable[[PydraError], None]
    ) -> Record:
        """Prepare the claim; the completed record.

        `on_failure` hears of a failure before its traces are removed, which may take long.

        Raises:
            PydraError: the claim, the backend or the node's disk failed, and what was done is undone;
                where that failed too, the record stays *started*, for the next attempt or the sweep.
        """
        if step.undo is not None:
            before = await self._take_back(step.undo, stages)
        attempt = begin(step.claim, before, driver=self._driver, boot_id=self._boot_id, created=self._wall_clock())
        with stages("record"):
            await self._checkpoints.write(attempt)
        try:
            with stages("backend"):
                answered = await self._call_prepare(step.claim)
            attempt = replace(attempt, prepared=tuple(answered))
            with stages("cdi"):
                attempt = replace(attempt, prepared=await self._read_present(answered))
                spec = self._spec(attempt)
            # From here on the disk may have it as completed, even if the write fails: then it is set back first.
            attempt = finish(attempt)
            with stages("record"):
                write_file = None if spec is None else partial(self._cdi.write_now, step.claim.uid, spec)
                await self._checkpoints.write(attempt, before=write_file)
        except PydraError as error:
            on_failure(error)
            await self._roll_back(attempt, stages)
            raise
        return attempt

    async def unprepare(self, record: Record, stages: Stages) -> None:
        """Take back everything that the record holds, and the record.

        Raises:
            PydraError: the backend or the node's disk failed; the record stays *started*.
        """
        await self._take_back(record, stages)
        with stages("record"):
            await self._checkpoints.remove(record.claim.uid)

    async def check_file(self, record: Record, stages: Stages) -> bool:
        """See that what a prepared claim's containers will look for is there; whether its CDI file had to be restored.

        Raises:
            HostPathMissing: a device node or mount of it is gone from the host.
            CdiError: the file could not be written.
        """
        with stages("cdi"):
            await self._read_present(record.prepared)
            if (spec := self._spec(record)) is not None:
                return await self._cdi.ensure(record.claim.uid, spec)
            await self._cdi.remove(record.claim.uid)
            return False

    async def remove_file(self, uid: str, stages: Stages) -> None:
        """Remove the CDI file of a claim that has no record."""
        with stages("cdi"):
            await self._cdi.remove(uid)

    async def _take_back(self, record: Record, stages: Stages) -> Record:
        """Undo all but the record, which is *started* from the first moment on."""
        # The file goes first, so that no container can start with a device that is being taken away.
        if record.stage is Stage.COMPLETED:
            record = undo(record)
            await self._set_back(record, stages)
        else:
            await self.remove_file(record.claim.uid, stages)
        with stages("backend"):
            await self._call_unprepare(record)
        return record

    async def _set_back(self, record: Record, stages: Stages) -> None:
        """Write the record, *started* again, and then remove the file."""
        try:
            with stages("record"):
                await self._checkpoints.write(record, after=partial(self._cdi.remove_now, record.claim.uid))
        except CheckpointError as error:
            # A full disk must not keep a pod from ending, and removing the record will free some of it. From one that
            # takes no change at all the record could not be removed: it would call usable what is no more.
            if not error.disk_full:
                raise
            _log.warning("going on with unprepare, which only a crash at this moment can confuse: %s", error)
            await self.remove_file(record.claim.uid, stages)

    async def _roll_back(self, attempt: Record, stages: Stages) -> None:
        try:
            await self.unprepare(attempt, stages)
        except PydraError as error:
            _log.warning("what was begun could not be undone; the next attempt or the sweep undoes it: %s", error)

    async def _call_prepare(self, claim: Claim) -> Sequence[PreparedDevice]:
        return await self._backend.prepare(claim, until=anyio.current_time() + self._limits.prepare)

    async def _call_unprepare(self, record: Record) -> None:
        until = anyio.current_time() + self._limits.unprepare
        await self._backend.unprepare(record.claim, record.prepared, until=until)

    def _spec(self, record: Record) -> bytes | None:
        return build_spec_file(self._driver, record.claim.uid, record.prepared)
