"""The directory of records, one file for each claim, and the index of them in memory.

Writes are durable when they return. Calls that change something are made under the instance lock,
after a `refresh` under it. The index follows the disk, never the other way round: it changes when
the disk has.

The directory's time of change is its version. Every write sets it to a nanosecond of its own, so one
`stat` tells whether another instance has written; the kernel's own steps of time are too coarse.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import Lock
from types import MappingProxyType
from typing import TypeAlias

import anyio
import anyio.to_thread
from msgspec.structs import replace

from pydra import disk
from pydra.checkpoint.pages import IntoRoom, StoredRecord, WritePlan, plan_write
from pydra.checkpoint.record import Record
from pydra.checkpoint.scan import (
    DIRECTORY_MODE,
    RecordSetAside,
    RecordTorn,
    RecordTrouble,
    Scan,
    Signature,
    find_set_aside,
    record_file_name,
    remove_left_overs,
    scan_directory,
)
from pydra.errors import CheckpointError, PydraError

_log = logging.getLogger(__name__)

FILE_MODE = 0o600

FileWork: TypeAlias = Callable[[], None]
"""Work on another file, done in the thread of a write: the way there and back costs more than the work."""


def _ignore(trouble: RecordTrouble) -> None:
    """Nobody wants to know."""


class CheckpointDirectory:
    """The records below `path`; trouble with one goes to `report`, trouble with the disk is a CheckpointError.

    `records` and `unreadable` are views that follow every change: copy before an await what must not move.
    """

    def __init__(
        self, path: str, *, report: Callable[[RecordTrouble], None] = _ignore, step: disk.Step = disk.no_step
    ) -> None:
        self._path = path
        self._report = report
        self._step = step
        self._records: dict[str, Record] = {}
        self._stored: dict[str, StoredRecord] = {}
        self._signatures: dict[str, Signature] = {}
        self._unreadable: dict[str, RecordTrouble] = {}
        self._version: int | None = None
        self._doubtful = False
        self._stamping = Lock()
        self._scanning = anyio.Lock(fast_acquire=True)
        self._writing: set[str] = set()
        self._touched: set[str] = set()

    def records(self) -> Mapping[str, Record]:
        """Every readable record by claim uid."""
        return MappingProxyType(self._records)

    def unreadable(self) -> Mapping[str, RecordTrouble]:
        """The claims whose record could not be read, until they are written or removed: set aside, or too new."""
        return MappingProxyType(self._unreadable)

    async def open(self) -> None:
        """Create the directory when absent, remove what a killed writer left, and load the records.

        Called under the instance lock: the temporary files of a living writer look the same.
        """
        for trouble in await anyio.to_thread.run_sync(self._create):
            self._unreadable.setdefault(trouble.uid, trouble)
        await self.refresh()

    async def refresh(self) -> frozenset[str]:
        """The uids whose records another instance has written or removed since; costs one `stat` when none was."""
        async with self._scanning:
            # Under the lock nobody else writes while we do.
            if self._writing or (self._is_current() and not self._doubtful):
                return frozenset()
            self._touched.clear()
            self._doubtful = False
            with self._explained("reading"):
                scan = await anyio.to_thread.run_sync(scan_directory, self._path, dict(self._signatures))
            return self._take(scan)

    async def write(self, record: Record, *, before: FileWork | None = None, after: FileWork | None = None) -> None:
        """Keep the record, durably. On an error the one before it is kept, on disk and here.

        `before` is done just before; when it fails, with a PydraError, nothing is written. `after` is done when the
        record is durable, and its error is raised then.
        """
        uid = record.claim.uid
        name = self._name(uid)
        with self._changing(uid), self._explained(f"writing {name} in"):
            # No deadline: a write that hangs in the kernel cannot be undone, only waited for.
            plan = plan_write(record, self._stored.get(uid))
            work = partial(self._write, name, record, plan, before=before, after=after)
            self._stored[uid], late = await anyio.to_thread.run_sync(work)
            self._records[uid] = record
            self._unreadable.pop(uid, None)
        if late is not None:
            raise late

    async def remove(self, uid: str) -> None:
        """Remove the claim's record, if there is one.

        Not made durable by itself: the next new record makes it so, before its devices are used. A
        loss of power before that is a reboot, and the record that comes back says it is of another boot.
        """
        name = self._name(uid)
        with self._changing(uid), self._explained(f"removing {name} from"):
            await anyio.to_thread.run_sync(self._remove, name)
            self._stored.pop(uid, None)
            self._records.pop(uid, None)
            self._unreadable.pop(uid, None)

    def _name(self, uid: str) -> str:
        name = record_file_name(uid)
        trouble = self._unreadable.get(uid)
        if trouble is not None and self._lies_in_place(trouble):
            raise CheckpointError(f"the record {trouble.path} must stay as it is: {trouble.why}")
        return name

    def _is_current(self) -> bool:
        with self._explained("looking at"):
            return self._version is not None and os.stat(self._path).st_mtime_ns == self._version

    def _take(self, scan: Scan) -> frozenset[str]:
        """Follow the disk, but for what was written here while it was read."""
        present = scan.same | scan.read.keys()
        gone = {uid for uid in self._records if uid not in present and uid not in self._touched}
        changed = set(gone)
        for uid in gone:
            del self._records[uid], self._stored[uid]
            self._signatures.pop(uid, None)
        for uid, (stored, signature) in scan.read.items():
            if uid in self._touched:
                continue
            if self._records.get(uid) != stored.record:
                changed.add(uid)
            self._records[uid], self._stored[uid] = stored.record, stored
            if signature is None:
                self._signatures.pop(uid, None)
            else:
                self._signatures[uid] = signature
        self._tell(scan)
        if not self._touched:
            self._version = scan.version
        return frozenset(changed)

    def _tell(self, scan: Scan) -> None:
        # A record that still lies in its place is found again at each reading, and told of once.
        in_place = {uid for uid, trouble in self._unreadable.items() if self._lies_in_place(trouble)}
        for uid in in_place - {trouble.uid for trouble in scan.trouble}:
            del self._unreadable[uid]
        for trouble in scan.trouble:
            if trouble == self._unreadable.get(trouble.uid):
                continue
            if not isinstance(trouble, RecordTorn):
                self._unreadable[trouble.uid] = trouble
            _log.error("checkpoint of claim %s: %s (%s)", trouble.uid, trouble.why, trouble.path)
            self._report(trouble)

    def _lies_in_place(self, trouble: RecordTrouble) -> bool:
        return trouble.path == os.path.join(self._path, record_file_name(trouble.uid))

    @contextmanager
    def _changing(self, uid: str) -> Iterator[None]:
        self._writing.add(uid)
        self._touched.add(uid)
        self._signatures.pop(uid, None)
        try:
            yield
        except BaseException:
            # What the disk holds now is not known: nothing goes into this file's room, and all is read again,
            # whatever version the writes beside this one give the directory.
            self._doubtful = True
            if (stored := self._stored.get(uid)) is not None:
                self._stored[uid] = replace(stored, room=stored.end)
            raise
        finally:
            self._writing.discard(uid)

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            message = disk.explain(error, f"{doing} the checkpoints in {self._path}")
            raise CheckpointError(message, disk_full=error.errno in disk.FULL) from error

    # Below: in worker threads.

    def _create(self) -> tuple[RecordSetAside, ...]:
        with self._explained("creating"):
            disk.make_directory(self._path, DIRECTORY_MODE)
            os.chmod(self._path, DIRECTORY_MODE)
            remove_left_overs(self._path)
            return find_set_aside(self._path)

    def _write(
        self, name: str, record: Record, plan: WritePlan, *, before: FileWork | None, after: FileWork | None
    ) -> tuple[StoredRecord, PydraError | None]:
        """What the file holds then, and what went wrong after that."""
        if before is not None:
            before()
        stored = self._write_record(name, record, plan)
        try:
            if after is not None:
                after()
        except PydraError as error:
            return stored, error
        return stored, None

    def _write_record(self, name: str, record: Record, plan: WritePlan) -> StoredRecord:
        if isinstance(plan, IntoRoom) and not self._write_into_room(name, plan):
            plan = plan_write(record, None)
        if not isinstance(plan, IntoRoom):
            with disk.opened(self._path) as directory:
                disk.replace_file(directory, name, plan.content, mode=FILE_MODE, durable=True, step=self._step)
            self._stamp()
        return plan.stored

    def _write_into_room(self, name: str, plan: IntoRoom) -> bool:
        """False when the file is not the one that the plan was made for."""
        try:
            descriptor = os.open(os.path.join(self._path, name), os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            if os.fstat(descriptor).st_size != plan.stored.end:
                return False
            # The stamp comes first: an instance that outlives this one must not take the file for unchanged.
            self._step("stamp")
            self._stamp()
            self._step("write into room")
            os.lseek(descriptor, plan.offset, os.SEEK_SET)
            disk.write_all(descriptor, plan.content, self._step)
            self._step("fdatasync")
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)
        return True

    def _remove(self, name: str) -> None:
        with disk.opened(self._path) as directory:
            self._step("unlink")
            disk.remove_file(directory, name)
        self._step("unlinked")
        self._stamp()

    def _stamp(self) -> None:
        with self._stamping:
            version = max(time.time_ns(), (self._version or 0) + 1)
            os.utime(self._path, ns=(version, version))
            self._version = version
