"""Prepares and unprepares claims.

`_prepare` and `_unprepare` contain all steps: fetch, decide, carry out, answer. Every effect is idempotent, and their
order makes a crash harmless: between any two, the record has all that is needed to continue or undo.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from pydra.checkpoint.locks_between_instances import CLAIMS, PLAN, find_offset
from pydra.checkpoint.record import Metadata, Record, Stage
from pydra.checkpoint.store import RecordStore
from pydra.claim import Claim, ClaimRef, ContainerDevice, PrepareOutcome, UnprepareOutcome
from pydra.claims.allocation import parse_allocation
from pydra.claims.claim_files import ClaimFiles
from pydra.claims.decisions import (
    Begin,
    PrepareAgain,
    Refuse,
    RemoveCdiFile,
    ReuseRecord,
    Undo,
    WaitForDevices,
    decide_prepare,
    decide_reconcile,
    decide_unprepare,
)
from pydra.claims.device_metadata import begin_again, build_metadata, parse_pod_claim_name, renew_metadata
from pydra.claims.device_status import StatusIndex, index_statuses
from pydra.claims.device_use import DeviceIndex, Published, may_meet
from pydra.claims.steps import StepIndex, StepRunner, build_left_over
from pydra.claims.work_queue import ClaimEvent, Operation, StepsLeftOver, Work, WorkQueue
from pydra.devices import ClaimDeviceStatus
from pydra.errors import BackendUnavailable, DeviceInUse, PydraError
from pydra.kube.api_resources import RESOURCE_CLAIMS

if TYPE_CHECKING:
    from pydra.backends.supervisor import BackendSupervisor
    from pydra.kube.client import KubeClient

_log = logging.getLogger(__name__)

_FETCH_KNOWN_SECONDS = 2.0
"""The wait for the API server if the record can be used instead, which is right as long as a pod uses the claim."""


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines in seconds. `prepare` and `unprepare` count from when earlier work on the claim ended."""

    prepare: float
    unprepare: float
    fetch: float


class Reconciled(Enum):
    """The result of `reconcile`."""

    NOTHING = "nothing"
    UNDONE = "undone"
    FILE_REMOVED = "file removed"
    FILE_RESTORED = "file restored"


class ClaimPreparer:
    """Prepares and unprepares the claims of one driver. Ending the event loop at any moment is as safe as a crash.

    `reads_held`: the backend gets every record that changes.
    `writes_metadata`: claims that are prepared from now on get metadata files. Those that have them keep them.
    `one_pod`: a claim can be used by one pod only, which the backend is given.
    `queue` has the work in progress. `left_over` is set when steps of a claim that has ended are left over.
    """

    def __init__(
        self,
        *,
        driver: str,
        boot_id: str,
        client: KubeClient,
        store: RecordStore,
        backend: BackendSupervisor,
        plans: bool,
        reads_held: bool,
        one_pod: bool = False,
        files: ClaimFiles,
        writes_metadata: bool = False,
        deadlines: Deadlines,
        report: Callable[[ClaimEvent], None] = lambda _: None,
    ) -> None:
        self._is_published = asyncio.Event()
        self._latest: StatusIndex | None = None
        self._driver = driver
        self._boot_id = boot_id
        self._client = client
        self._store = store
        self._lock = store.lock
        self._backend = backend
        self._plans = plans
        self._one_pod = one_pod
        self._planning = asyncio.Lock()
        self._files = files
        self._writes_metadata = writes_metadata
        self._deadlines = deadlines
        self._report = report
        self.queue = WorkQueue(driver=driver, report=report)
        self.left_over = asyncio.Event()
        self._index = DeviceIndex()
        self._clock = asyncio.get_running_loop().time
        self._step_index = StepIndex()
        self._steps = StepRunner(
            store, backend, self._step_index, lambda claim, names: may_meet(names, claim, self._index.published)
        )
        store.follow(self._note_record, own=reads_held)  # else only devices in use, which are noted after a write

    def set_published(self, published: Published) -> None:
        """Set what this node publishes; called by the inventory loop."""
        self._index.published = published
        for uid in (*self._store.records, *self._store.unreadable):
            self._note_use(uid)  # devices may have other counters now
        self._is_published.set()

    def note_statuses(self, statuses: Sequence[ClaimDeviceStatus]) -> None:
        """Set what the last discover said of claims' devices, which their metadata files say, too."""
        self._latest = index_statuses(statuses)
        self.renew_metadata()

    # What the kubelet and the garbage collection ask for

    def prepare(self, ref: ClaimRef) -> asyncio.Future[PrepareOutcome]:
        """Start to prepare the claim, or join a task that does; the future never raises."""
        return self.queue.begin(self._prepare, ref, Operation.PREPARE)

    def unprepare(self, ref: ClaimRef) -> asyncio.Future[UnprepareOutcome]:
        """Start to unprepare the claim, without the API server, or join a task that does; the future never raises."""
        return self.queue.begin(self._unprepare, ref, Operation.UNPREPARE)

    def reconcile(self, ref: ClaimRef) -> asyncio.Future[Reconciled | PydraError]:
        """Make the claim's record and CDI file agree: undo what was only started, restore or remove the file."""
        return self.queue.begin(self._reconcile, ref)

    async def restore_files(self, *, seconds: float) -> None:
        """Restore the CDI files of prepared claims that are missing, as far as that is possible within these seconds.

        To be called before the kubelet knows this driver: it may start containers of prepared claims without asking.
        """
        missing = [
            record
            for uid, record in self._store.records.items()
            if record.stage is Stage.COMPLETED and not self._files.cdi.has(uid)
        ]
        if missing:
            await asyncio.wait([self.reconcile(ClaimRef.of(record.claim)) for record in missing], timeout=seconds)

    def renew_metadata(self) -> None:
        """Start to rewrite the metadata files of claims whose devices have other network data now."""
        for record in tuple(self._store.records.values()):
            self._renew_if_changed(record)

    def _renew_if_changed(self, record: Record) -> None:
        # Nothing was said yet, or the claim is of another boot.
        if self._latest is None or record.boot_id != self._boot_id:
            return
        if renew_metadata(record, self._latest) is not None:
            # Behind work of the same kind: that may have read what was said before.
            self.queue.begin(self._renew_metadata, ClaimRef.of(record.claim), joins=False)

    async def stop(self) -> None:
        """Cancel the work in progress, as a crash would; calls that wait for it fail, since the agent stops."""
        self._lock.keep_claims()
        await self.queue.cancel()

    # Prepare

    async def _prepare(self, work: Work) -> tuple[ContainerDevice, ...]:
        uid = work.ref.uid
        until = self._clock() + self._deadlines.prepare
        # Also for a claim that is prepared: under one uid, its allocation may have changed since.
        asked = await self._fetch(work)
        work.ended["fetch"] = self._clock()
        await self._lock.take_claim(uid, until)
        try:
            record = await self._begin(work, asked, until)
            work.ended["record"] = self._clock()
            if work.from_record:
                devices, _ = await self._files.mend(record)
                return devices
            return await self._run_prepare(work, record, until)
        finally:
            self._lock.release_claim(uid)

    async def _begin(self, work: Work, asked: Claim | PydraError, until: float) -> Record:
        """Return the record to continue with, which is on disk: a new one, *started*, or the *completed* one of this
        or an earlier boot.
        """
        uid = work.ref.uid
        settled: set[str] = set()
        while True:
            async with self._store:
                if uid in self._store.unreadable:
                    await self._put_back(uid)
                step = decide_prepare(
                    asked,
                    self._store.records.get(uid),
                    boot_id=self._boot_id,
                    index=self._index,
                    needs_published=self._writes_metadata or self._plans,
                    unreadable=self._store.unreadable.get(uid),
                )
                if isinstance(step, Begin) and not self._plans:  # before anybody else can decide
                    return await self._write_started(work, step.claim)
            match step:
                case ReuseRecord(record=record):
                    work.from_record = True
                    if isinstance(asked, PydraError):
                        _log.warning("answered from the record: %s", asked)
                    return record
                case Refuse(error=error):
                    await self._settle(error, settled, until)
                case Undo(record=record):
                    await self._undo(record)
                case PrepareAgain(record=record):
                    return record
                case WaitForDevices():
                    await self._wait_published(work.ref, until)
                case Begin(claim=claim):
                    return await self._plan(work, claim, until)

    async def _settle(self, error: PydraError, settled: set[str], until: float) -> None:
        """Try to undo what a claim that has ended has left, if that is in the way, and was not tried; else raise."""
        holder = error.holder_uid if isinstance(error, DeviceInUse) and error.left_over else ""
        record = self._store.records.get(holder)
        if record is None or holder in settled:
            raise error
        settled.add(holder)
        await asyncio.wait((self.reconcile(ClaimRef.of(record.claim)),), timeout=max(0.0, until - self._clock()))

    async def _wait_published(self, ref: ClaimRef, until: float) -> None:
        """Wait for the first discover after a start, which reports the counters and attributes of devices."""
        try:
            async with asyncio.timeout_at(until):
                await self._is_published.wait()
        except TimeoutError:
            raise BackendUnavailable(
                self._driver,
                f"timed out waiting for the first report of its devices, which claim {ref} needs; the kubelet will try "
                "again",
            ) from None

    async def _plan(self, work: Work, claim: Claim, until: float) -> Record:
        """Have the backend plan, one claim at a time on this node, and write the plan before anything is done."""
        async with self._planning:
            await self._lock.lock(PLAN, until, waiting_for="plans another claim")
            try:
                async with self._store:  # what other instances wrote is known now, and none writes until unlocked
                    if in_use := self._index.find_conflict(claim):
                        raise in_use
                # Half of the rest: a claim whose plan hangs leaves time for those that wait behind it.
                planned = await self._backend.plan(claim, until=(self._clock() + until) / 2)
                async with self._store:
                    # Another instance whose version of the backend does not plan does not take this lock.
                    if in_use := self._index.find_conflict(claim):
                        raise in_use
                    return await self._write_started(work, self._step_index.adopt(planned))
            finally:
                self._lock.unlock(PLAN)

    async def _write_started(self, work: Work, claim: Claim) -> Record:
        """Write that the claim holds its devices, which it does from then on; called in `async with self._store`."""
        metadata: Metadata | None = None
        if self._writes_metadata and self._index.published is not None:
            name = parse_pod_claim_name(work.resource_claim, work.ref)
            metadata = build_metadata(claim, self._index.published, pod_claim_name=name)
        record = Record(
            claim=claim,
            driver=self._driver,
            stage=Stage.STARTED,
            boot_id=self._boot_id,
            created=time.time(),
            metadata=metadata,
            consumption=self._index.find_consumption(claim),
        )
        await self._store.write(record)
        self._note_use(claim.uid)
        return record

    async def _run_prepare(self, work: Work, record: Record, until: float) -> tuple[ContainerDevice, ...]:
        """Call the backend, write the files and the *completed* record. Answer a failure before it is undone."""
        is_new = record.stage is Stage.STARTED
        is_called = False
        work.record = record

        def keep(changed: Record) -> None:
            work.record = changed

        try:
            if record.claim.steps:
                record = await self._steps.carry_out(record, until=until, keep=keep)
                work.ended["steps"] = self._clock()
            is_called = True
            record = replace(record, prepared=await self._backend.prepare(record.claim, until=until))
            work.ended["backend"] = self._clock()
            metadata = begin_again(record.metadata) if record.metadata is not None else None
            written = replace(record, boot_id=self._boot_id, metadata=metadata)
            written, devices = await self._files.write(written)
            # From here on the disk may have it as *completed*, even if the write fails: it must be set back first.
            record = replace(written, stage=Stage.COMPLETED)
            work.ended["cdi"] = self._clock()
            async with self._store:
                await self._store.write(record)
            work.ended["completed"] = self._clock()
            if record.metadata is not None:
                self._renew_if_changed(record)
        except PydraError as error:
            # Answered before it is undone, which may take a whole deadline again: the kubelet waits for 45 s only.
            work.answer.set_result(error)
            if is_new:  # what an earlier boot completed stays: the hardware remembers it, and may hold data
                # What never reached the backend is not undone: that could reset hardware that others use.
                latest = replace(record, claim=work.record.claim)
                await self._roll_back(latest, reached=is_called and error.reached_backend)
            raise
        return devices

    async def _roll_back(self, record: Record, *, reached: bool) -> None:
        try:
            await self._undo(record, backend=reached)
        except PydraError as error:
            _log.warning("cannot undo what was started: %s; the next attempt or garbage collection will", error)

    # Unprepare

    async def _unprepare(self, work: Work) -> None:
        uid = work.ref.uid
        unreadable = self._store.unreadable.get(uid)
        asked = None
        if unreadable is not None and not unreadable.is_newer and uid not in self._store.records and work.ref.name:
            asked = await self._fetch(work)  # else only the record itself is needed
        await self._lock.take_claim(uid, self._clock() + self._deadlines.unprepare)
        try:
            async with self._store:
                if uid in self._store.unreadable:
                    await self._put_back(uid)
                record, unreadable = self._store.records.get(uid), self._store.unreadable.get(uid)
                step = decide_unprepare(record, index=self._index, unreadable=unreadable, asked=asked)
                if isinstance(step, Undo):
                    await self._begin_undo(step.record)
            match step:
                case Refuse(error=error):
                    raise error
                case Undo(record=record):
                    work.from_record = True
                    await self._finish_undo(record)
                case RemoveCdiFile():
                    await self._remove_leftovers(work.ref)
            self._backend.release(uid)
        finally:
            self._lock.release_claim(uid)

    async def _undo(self, record: Record, *, backend: bool = True) -> None:
        """Undo what the record says, and remove it. After a failure it is *started*."""
        async with self._store:
            await self._begin_undo(record)
        await self._finish_undo(record, backend=backend)

    async def _begin_undo(self, record: Record) -> None:
        """Remove the claim's files and set its record back; called in `async with self._store`."""
        self._files.take_back(record)
        if record.stage is Stage.COMPLETED:  # after a crash in the backend's unprepare it would look usable
            await self._store.set_back(record.claim.uid)

    async def _finish_undo(self, record: Record, *, backend: bool = True) -> None:
        """Undo, and remove the record. What cannot be undone now gets one of its own, so that the pod can end."""
        claim, latest = record.claim, record
        until = self._clock() + self._deadlines.unprepare
        if backend and not record.left_over:
            await self._backend.unprepare(claim, record.prepared, until=until)

        def keep(changed: Record) -> None:
            nonlocal latest
            latest = changed

        later = await self._steps.undo(record, until=until, keep=keep)
        async with self._store:
            if not later:
                await self._store.remove(claim.uid)
                return
            left = build_left_over(latest, later)
            if record.left_over:
                await self._store.write(left, in_place=True)
                return
            await self._store.leave_over(left)
        _log.warning("the claim has ended, and is not completely undone: %s; tried again", left.left_over)
        self._report(StepsLeftOver(driver=self._driver, ref=ClaimRef.of(claim), reason=left.left_over))

    async def _remove_leftovers(self, ref: ClaimRef) -> None:
        self._files.remove(ref)
        if ref.uid in self._store.unreadable:
            async with self._store:
                await self._store.remove(ref.uid)

    # Reconcile

    async def _reconcile(self, work: Work) -> Reconciled:
        uid = work.ref.uid
        claim_offset = find_offset(CLAIMS, uid)
        if not self._lock.try_lock(claim_offset):
            return Reconciled.NOTHING  # another instance works on it
        self._lock.unlock(claim_offset)
        await self._lock.take_claim(uid, self._clock() + self._deadlines.unprepare)
        try:
            async with self._store:
                record, unreadable = self._store.records.get(uid), self._store.unreadable.get(uid)
            match decide_reconcile(record, boot_id=self._boot_id, unreadable=unreadable):
                case Undo(record=record):
                    await self._undo(record)
                    return Reconciled.UNDONE
                case RemoveCdiFile():
                    self._files.remove(work.ref)
                    return Reconciled.FILE_REMOVED
                case ReuseRecord(record=record) if (await self._files.mend(record))[1]:
                    return Reconciled.FILE_RESTORED
            return Reconciled.NOTHING
        finally:
            self._lock.release_claim(uid)

    async def _renew_metadata(self, work: Work) -> None:
        """Rewrite the claim's metadata files with the next generation, the record first."""
        uid = work.ref.uid
        await self._lock.take_claim(uid, self._clock() + self._deadlines.unprepare)
        try:
            async with self._store:
                record = self._store.records.get(uid)
                renewed = renew_metadata(record, self._latest or {}) if record is not None else None
                if renewed is None:
                    return
                await self._store.write(renewed)
            self._files.write_metadata(renewed)
        finally:
            self._lock.release_claim(uid)

    # Shared by all operations

    async def _put_back(self, uid: str) -> None:
        """Use a record again that could not be read and now can: only it has the plan. In `async with self._store`."""
        for path in await self._store.put_back(uid):
            _log.info("the record %s can be read again, and is used", path)

    async def _fetch(self, work: Work) -> Claim | PydraError:
        """Return the claim as the API server has it now, or the error."""
        ref = work.ref
        known = self._store.records.get(ref.uid)
        is_known = known is not None and known.stage is Stage.COMPLETED
        deadline = _FETCH_KNOWN_SECONDS if is_known else self._deadlines.fetch
        try:
            found = await self._client.get(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace, deadline=deadline)
            allocation = parse_allocation(found, ref, self._driver, one_pod=self._one_pod)
        except PydraError as error:
            return error
        work.resource_claim = found
        work.fields["devices"] = ",".join([one.device for one in allocation.claim.devices])
        if allocation.pods:
            work.fields["pods"] = ",".join([pod.name for pod in allocation.pods])
        return allocation.claim

    def _note_record(self, uid: str) -> None:
        """Update what is derived from the claim's record: devices and steps in use, and the backend's copy."""
        record = self._store.records.get(uid)
        if record is not None and record.left_over and not self._index.holds(uid):  # by whichever instance
            self.left_over.set()
        self._note_use(uid)
        self._step_index.note(uid, record.claim.steps if record is not None else ())
        self._backend.note_held(uid, self._store.find_held(uid))

    def _note_use(self, uid: str) -> None:
        """Let the claim hold what its devices consume as they are published now, or as the record has it."""
        record, unreadable = self._store.records.get(uid), self._store.unreadable.get(uid)
        if record is not None:
            self._index.hold(record.claim, record.consumption, left_over=record.left_over)
        elif unreadable is not None:
            self._index.hold(unreadable.claim)
        else:
            self._index.release(uid)
