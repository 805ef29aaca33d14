"""Stores checkpoint records on disk, with an in-memory copy.

    DIRECTORY/lock                 lock file of overlapping instances
    DIRECTORY/<uid>.json           the record of a claim that is being prepared, or is prepared
    DIRECTORY/<uid>.undo           the same file, renamed: the claim is being unprepared
    DIRECTORY/<uid>.left-1.undo    the same, renamed again: the claim has ended, and steps could not be undone yet
    DIRECTORY/corrupt/<uid>.json   a record that cannot be read, or what stands for one that somebody removed

A record is replaced as a whole (temporary file, rename) and set back to *started* by a rename, which needs no
disk space. There are two kinds of store, which differ only in how long records live:

- volatile: in a directory that a reboot empties, for hardware that forgets at a reboot what was done to it. Writes are
  not flushed, take about 20 microseconds and need no thread. A record of another boot, found where the directory
  is not on a tmpfs after all, is removed.
- durable: for backends whose hardware remembers (`SURVIVES_REBOOT`). Writes are flushed, in a worker thread, before
  they count. While the disk does not answer, changes are refused.

Every change is made under the index lock: `async with store:`. Memory follows the disk; only what somebody removed
under the running agent is written again from memory, by an instance that knows all changes. What was removed while no
agent ran is known from the claims' CDI files.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import msgspec

from pydra import atomic_files
from pydra.checkpoint.locks_between_instances import INDEX, InstanceLocks
from pydra.checkpoint.record import (
    NewerSchemaError,
    Record,
    Stage,
    build_placeholder,
    build_record,
    is_placeholder,
    read_partial_record,
)
from pydra.checkpoint.record_files import (
    CORRUPT,
    LEFT_OVER,
    MISSING,
    RECORD,
    UNDO,
    is_of_claim,
    list_directory,
    list_set_aside,
    name_left_over,
    parse_stored,
    read_file,
    read_if_possible,
    read_stored,
)
from pydra.claim import CLAIM_UID, AllocatedDevice, Claim, HeldClaim
from pydra.errors import CheckpointError

_log = logging.getLogger(__name__)

DIRECTORY_MODE = 0o700
_FILE_MODE = 0o600
_TEMPORARY = ".tmp"
_INDEX_SECONDS = 10.0
"""How long to wait for the index lock: another instance holds it for one write, with the flush of a durable store."""

_DAMAGED = "it was set aside because it could not be read"

Signature: TypeAlias = tuple[int, int, int]
"""Inode, size and time of change (ns) of a file that need not be read again while it has them."""


class UnreadableRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A claim's record cannot be read. It was set aside as `path`, or stays there when a newer version wrote it.

    `claim` is what is known of the claim.
    """

    claim: Claim
    path: str
    why: str
    is_newer: bool = False


class RecordStore:
    """The records of one driver. `open` must be called before anything else.

    `report` is called with each unreadable record. `find_devices` returns what else is known of the devices that a
    claim holds, if its record does not say. `elsewhere` are the directories in which other versions, or the same
    version with the other kind of store, keep this driver's records: they are moved here. `flush_seconds` is how long a
    change waits for the disk.

    `records` are the readable ones by claim uid, `unreadable` the claims whose record cannot be read, until they are
    unprepared. Both follow every change.
    """

    def __init__(
        self,
        path: str,
        lock: InstanceLocks,
        *,
        durable: bool,
        boot_id: str,
        elsewhere: Sequence[str] = (),
        find_devices: Callable[[str], Sequence[AllocatedDevice]] = lambda _: (),
        report: Callable[[UnreadableRecord], None] = lambda _: None,
        flush_seconds: float = 10.0,
    ) -> None:
        self.lock = lock
        self._on_change: Callable[[str], None] = lambda _: None
        self._follows_own = False
        self._path = path
        self._durable = durable
        self._boot_id = boot_id
        self._elsewhere = tuple(elsewhere)
        self._find_devices = find_devices
        self._report = report
        self._flush_seconds = flush_seconds
        self._unanswered = ""
        self._records: dict[str, Record] = {}
        self._unreadable: dict[str, UnreadableRecord] = {}
        self.records: Mapping[str, Record] = self._records
        self.unreadable: Mapping[str, UnreadableRecord] = self._unreadable
        self._signatures: dict[str, Signature] = {}
        self._counter = -1
        self._directory: Signature | None = None
        self._of_other_boots: set[str] = set()
        self._changing = asyncio.Lock()

    def follow(self, on_change: Callable[[str], None], *, own: bool) -> None:
        """Call the function with the uid of every claim that there is a record of now, and of each that changes.

        Records that this instance writes or sets back are included with `own` only; those that it removes always are.
        """
        self._on_change = on_change
        self._follows_own = own
        for uid in (*self._records, *self._unreadable):
            on_change(uid)

    def held(self) -> tuple[HeldClaim, ...]:
        """Return all claims that this node holds, in the order of their uids.

        Those whose record cannot be read are included: `restore` would end them if it did not know them.
        """
        uids = sorted(self._records.keys() | self._unreadable.keys())
        return tuple([held for uid in uids if (held := self.find_held(uid)) is not None])

    def find_held(self, uid: str) -> HeldClaim | None:
        """Return the claim as backends see it, if this node holds it."""
        if uid in self._records:
            return self._records[uid].held()
        return HeldClaim(claim=self._unreadable[uid].claim, completed=False) if uid in self._unreadable else None

    # Changes

    async def __aenter__(self) -> None:
        """Lock the records against other instances and tasks, and read what others have changed.

        Raises:
            CheckpointError: another instance does not release the index, the records cannot be read, or the disk has
                not answered yet to an earlier change.
        """
        await self._changing.acquire()
        try:
            if self._unanswered:
                raise CheckpointError(self._unanswered)
            until = asyncio.get_running_loop().time() + _INDEX_SECONDS
            await self.lock.lock(INDEX, until, waiting_for="keeps the records of claims locked")
            self._refresh()
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        """Release the index, unless the disk has yet to do what was announced."""
        if not self._unanswered:
            self.lock.unlock(INDEX)
        self._changing.release()

    async def write(self, record: Record, *, in_place: bool = False) -> None:
        """Write the record; `in_place`, into the file that the claim has, also where that is the renamed one.

        On an error the former record stays.

        Raises:
            CheckpointError: the disk failed, the record is too large, or a newer version's record is in its place.
        """
        uid = record.claim.uid
        if uid in self._unreadable:
            self._refuse_newer(uid)
        content = build_record(record)
        ending = self._find_ending(uid) if in_place else RECORD
        if ending == UNDO:  # what the ending of the file says when it is read again
            record = msgspec.structs.replace(record, stage=Stage.STARTED)
        await self._perform(f"writing the record of claim {uid}", self._replace, uid + ending, content)
        self._records[uid] = record
        if self._follows_own:
            self._on_change(uid)
        if uid in self._unreadable and record.stage is Stage.COMPLETED:
            try:
                self._remove_set_aside(uid)  # the claim was prepared again: the old record is not needed any more
            except OSError as error:  # the new one is complete; the old one goes with it when the claim ends
                _log.warning("%s", self._explain(error, f"removing the old record of claim {uid}"))
            else:
                del self._unreadable[uid]

    async def set_back(self, uid: str) -> None:
        """Make the claim's record *started* again, before anything is undone. Needs no disk space."""
        # By a rename: a full disk must not keep a pod from ending.
        await self._perform(f"renaming the record of claim {uid}", self._rename, uid + RECORD, uid + UNDO)
        self._records[uid] = msgspec.structs.replace(self._records[uid], stage=Stage.STARTED)
        if self._follows_own:
            self._on_change(uid)

    async def leave_over(self, record: Record) -> None:
        """Make the record, of a claim that is being undone, one of what is left over, under a new uid.

        A rename, which needs no disk space; if the steps that are left cannot be written, the file has all of them.
        Under another uid, because the claim may be prepared again under its own.
        """
        uid = record.claim.uid
        taken = self._records.keys() | self._unreadable.keys()
        number = next(n for n in itertools.count(1) if f"{uid}{LEFT_OVER}{n}" not in taken)
        left = name_left_over(record, f"{uid}{LEFT_OVER}{number}")
        await self._perform(f"renaming the record of claim {uid}", self._leave_over, uid, left.claim.uid)
        self._records.pop(uid, None)
        self._records[left.claim.uid] = left
        self._on_change(uid)
        try:
            await self.write(left, in_place=True)
        except CheckpointError as error:
            _log.warning("%s", error)
            self._on_change(left.claim.uid)

    async def remove(self, uid: str) -> None:
        """Remove all files of the claim, also those that were set aside. Succeeds if there are none."""
        if uid in self._unreadable:
            self._refuse_newer(uid)
        await self._perform(f"removing the record of claim {uid}", self._unlink, uid)
        self._records.pop(uid, None)
        self._unreadable.pop(uid, None)
        self._on_change(uid)

    def open(self) -> None:
        """Create the directory if necessary, remove temporary files of killed writers, load all records. Blocks.

        Raises:
            CheckpointError: the directory cannot be used, or another instance keeps it locked.
        """
        try:
            self._open_directory()
            self.lock.open()
            deadline = time.monotonic() + _INDEX_SECONDS
            while not self.lock.try_lock(INDEX):
                if time.monotonic() > deadline:
                    raise CheckpointError(
                        f"timed out after {_INDEX_SECONDS:g} s waiting for another instance of the agent, which keeps "
                        f"{self.lock.path} locked; if its pod does not terminate, delete the pod"
                    )
                time.sleep(0.005)
            try:
                for name in os.listdir(self._path):
                    if name.endswith(_TEMPORARY):
                        os.unlink(os.path.join(self._path, name))
                with suppress(OSError):  # from now on a change can be announced even on a full disk
                    self.lock.write_counter(self.lock.read_counter())
                self._move_records()
                self._scan()
            finally:
                self.lock.unlock(INDEX)
        except OSError as error:
            raise self._explain(error, "opening") from error

    async def put_back(self, uid: str = "") -> tuple[str, ...]:
        """Use records again that were set aside and can be read now; return their paths. Call it in `async with`.

        The disk may have failed for a while, or somebody has repaired a file. A claim that has a record keeps that.
        With `uid` only the record of that claim is tried.

        Raises:
            CheckpointError: the disk failed.
        """
        used = []
        try:
            places = [place for place in list_set_aside(self._path) if uid in ("", place[1])]
            for one in [read_stored(*place, set_aside=True) for place in places]:
                of = one.claim.uid
                if one.record is not None and of not in self._records:
                    doing = f"putting back the record of claim {of}"
                    await self._perform(doing, os.rename, one.path, os.path.join(self._path, of + RECORD))
                    if not self._is_of_another_boot(one.record):
                        self._records[of] = one.record
                        self._note_signature(of + RECORD)  # not read again, which could fail again
                    self._scan()
                    used.append(one.path)
        except OSError as error:
            raise self._explain(error, "reading") from error
        return tuple(used)

    def hold_removed(self, uids: Iterable[str]) -> None:
        """Let claims hold their devices whose records somebody removed before the start. Call it in `async with`.

        `uids` are the claims that have a CDI file.

        Raises:
            CheckpointError: the disk failed.
        """
        known = self._records.keys() | self._unreadable.keys() | self._of_other_boots
        for uid in uids:
            devices = self._find_devices(uid) if uid not in known and CLAIM_UID.fullmatch(uid) else ()
            if not devices:
                continue
            path = os.path.join(self._path, CORRUPT, uid + RECORD)
            try:
                atomic_files.make_directory(os.path.dirname(path), DIRECTORY_MODE)
                atomic_files.write_file(path, build_placeholder(devices), mode=_FILE_MODE, durable=self._durable)
                self._counter += 1
                self.lock.write_counter(self._counter)
            except OSError as error:
                raise self._explain(error, f"writing what stands for the record of claim {uid}") from error
            claim = Claim(uid=uid, namespace="", name="", devices=tuple(devices))
            self._add_unreadable(UnreadableRecord(claim=claim, path=path, why=MISSING))

    # Reading

    def _refresh(self) -> None:
        """Read what other instances have changed: one read and one stat if nothing."""
        try:
            directory = self._stat_directory()
            if not self.lock.is_intact() or directory is None:
                self._recreate()
            if self.lock.read_counter() != self._counter:
                self._scan()
            elif directory != self._directory:  # which no instance has announced
                self._write_back()
                self._scan()
        except OSError as error:
            raise self._explain(error, "reading") from error

    def move_records(self) -> None:
        """Move records that an older version, still running, wrote elsewhere, and write again those that were removed.

        Call it in `async with`.
        """
        try:
            if self._write_back() | self._move_records():
                self._scan()
        except OSError as error:
            raise self._explain(error, "reading") from error

    def _scan(self) -> None:
        """Update memory from the disk."""
        changed: set[str] = set()
        try:
            self._read_changes(changed)
        finally:  # what was read before an error is in memory, and not read again
            for uid in sorted(changed):
                self._on_change(uid)

    def _read_changes(self, changed: set[str]) -> None:
        self._counter = -1  # a scan that fails is repeated
        present: set[str] = set()
        self._directory = self._stat_directory()
        self._write_back(self._list_placeholders())
        counter = self.lock.read_counter()
        with os.scandir(self._path) as entries:
            found = sorted((entry.name, entry) for entry in entries if is_of_claim(entry.name))
        for name, entry in found:
            uid = name[: -len(RECORD)]  # both endings have the same length
            present.add(uid)
            try:
                status = entry.stat(follow_symlinks=False)
                signature = (status.st_ino, status.st_size, status.st_mtime_ns)
                stage = Stage.STARTED if name.endswith(UNDO) else None
                known = self._records.get(uid)
                if known is not None and self._signatures.get(name) == signature:
                    continue
                record = self._read(name, uid)
            except FileNotFoundError:
                present.discard(uid)
                continue
            if record is None:
                continue
            if stage is not None:
                record = msgspec.structs.replace(record, stage=stage)
            self._signatures[name] = signature
            if known != record:
                self._records[uid] = record
                changed.add(uid)
        for uid in self._records.keys() - present:
            del self._records[uid]
            changed.add(uid)
        changed |= self._scan_unreadable(present)
        self._counter = counter

    def _scan_unreadable(self, present: Collection[str]) -> set[str]:
        """Update memory from the files that were set aside, whenever and by whom: those claims hold their devices."""
        aside = {uid: path for path, uid in list_set_aside(self._path)}
        gone = {uid for uid, one in self._unreadable.items() if uid not in (present if one.is_newer else aside)}
        for uid in gone:
            del self._unreadable[uid]
        new = aside.keys() - self._unreadable.keys()
        for uid in new:
            content = read_if_possible(aside[uid])
            why = MISSING if is_placeholder(content) else _DAMAGED
            claim = self._read_partial(uid, content)
            self._unreadable[uid] = UnreadableRecord(claim=claim, path=aside[uid], why=why)
        return gone | new

    def _read_partial(self, uid: str, content: bytes) -> Claim:
        """Read what is left of a record, and add the devices that are known from elsewhere."""
        partial = read_partial_record(content, uid)
        known = {device.device for device in partial.devices}
        others = [device for device in self._find_devices(uid) if device.device not in known]
        return msgspec.structs.replace(partial, devices=(*partial.devices, *others))

    def _read(self, name: str, uid: str) -> Record | None:
        """Read the record in a file; return None if it was set aside, is too new, or of another boot."""
        path = os.path.join(self._path, name)
        content = b""
        try:
            content = read_file(path)
            record = parse_stored(content, uid)
        except NewerSchemaError as error:
            claim = self._read_partial(uid, content)
            self._add_unreadable(UnreadableRecord(claim=claim, path=path, why=str(error), is_newer=True))
            return None
        except CheckpointError as error:
            # Never replaced by an older version of itself, which would unprepare running pods; its devices stay held.
            kept = self._set_aside(path, uid)
            claim = self._read_partial(uid, content)
            self._add_unreadable(UnreadableRecord(claim=claim, path=kept, why=str(error)))
            return None
        if self._is_of_another_boot(record):
            os.unlink(path)
            self._of_other_boots.add(uid)
            return None
        return record

    def _is_of_another_boot(self, record: Record) -> bool:
        """Whether the hardware has forgotten by now what the record says."""
        return not self._durable and record.boot_id != self._boot_id

    def _add_unreadable(self, record: UnreadableRecord) -> None:
        uid = record.claim.uid
        if self._unreadable.get(uid) == record:
            return
        self._unreadable[uid] = record
        self._records.pop(uid, None)
        _log.error("the record of claim %s cannot be read: %s (%s)", uid, record.why, record.path)
        self._report(record)
        self._on_change(uid)

    def _set_aside(self, path: str, uid: str) -> str:
        directory = os.path.join(self._path, CORRUPT)
        with suppress(FileExistsError):
            os.mkdir(directory, DIRECTORY_MODE)
        kept = os.path.join(directory, uid + RECORD)
        number = 0
        while os.path.lexists(kept):
            number += 1
            kept = os.path.join(directory, f"{uid}{RECORD}.{number}")
        os.rename(path, kept)
        return kept

    def _move_records(self) -> bool:
        """Move records from where other versions keep them; return whether there were any."""
        moved = False
        for directory in self._elsewhere:
            found = [name for name in list_directory(directory) if is_of_claim(name)]
            if aside := list_set_aside(directory):
                atomic_files.make_directory(os.path.join(self._path, CORRUPT), DIRECTORY_MODE)
                found += [os.path.relpath(path, directory) for path, _ in aside]
            for name in found:
                source, target = os.path.join(directory, name), os.path.join(self._path, name)
                try:
                    content = read_file(source)
                    is_new = not os.path.lexists(target)
                    if not is_new and content != read_file(target):
                        continue
                except CheckpointError as error:
                    _log.error("%s is left where it is: %s", source, error)
                    continue
                if is_new:  # else an instance was killed between the two steps below, and only the copy must go
                    atomic_files.write_file(target, content, mode=_FILE_MODE, durable=self._durable)
                os.unlink(source)
                moved = True
            if moved:
                _log.info("the records in %s are now in %s", directory, self._path)
        return moved

    # Writing, in the caller's thread or, when durable, in a worker

    async def _perform(self, doing: str, work: Callable[..., None], *arguments: object) -> None:
        self._counter += 1
        try:
            # Announced first: an instance that outlives this one must not rely on the records in its memory.
            self.lock.write_counter(self._counter)
            if self._durable:
                await self._flush(doing, asyncio.to_thread(work, *arguments))
            else:
                work(*arguments)
            self._directory = self._stat_directory()
        except OSError as error:
            self._counter = -1  # what the disk has now is not known: the next refresh reads all of it
            self._signatures.clear()
            raise self._explain(error, doing) from error
        except asyncio.CancelledError:
            self._counter = -1
            self._signatures.clear()
            raise

    async def _flush(self, doing: str, work: Coroutine[Any, Any, None]) -> None:
        """Await the work to its end, even when cancelled: the index stays locked until the disk has what was announced.

        If the disk does not answer in time, the index stays locked behind the error.
        """
        task = asyncio.ensure_future(work)
        try:
            done, _ = await asyncio.wait((task,), timeout=self._flush_seconds)
        except asyncio.CancelledError:
            await asyncio.wait((task,))
            raise
        if done:
            return await task
        self._unanswered = (
            f"{doing}: the disk did not answer within {self._flush_seconds:g} s (directory {self._path}), and until it "
            "does, no claim of this driver is prepared or unprepared: check the kernel's log, and the disk, or the "
            "server of the file system"
        )
        task.add_done_callback(partial(self._end_unanswered, doing))
        raise CheckpointError(self._unanswered)

    def _end_unanswered(self, doing: str, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # the event loop ends, the thread does not
            return
        _log.warning("%s: the disk has answered (%s)", doing, task.exception() or "done")
        self._unanswered = ""
        self._counter = -1
        self._signatures.clear()
        self.lock.unlock(INDEX)

    def _replace(self, name: str, content: bytes) -> None:
        path = os.path.join(self._path, name)
        atomic_files.write_file(path, content, mode=_FILE_MODE, durable=self._durable)
        self._note_signature(name)

    def _note_signature(self, name: str) -> None:
        status = os.stat(os.path.join(self._path, name))
        self._signatures[name] = (status.st_ino, status.st_size, status.st_mtime_ns)

    def _rename(self, name: str, to: str) -> None:
        with suppress(FileNotFoundError):  # it was set back before, and a later step failed
            os.rename(os.path.join(self._path, name), os.path.join(self._path, to))
        self._signatures.pop(name, None)
        if self._durable:
            atomic_files.flush_directory(self._path)

    def _leave_over(self, uid: str, left_uid: str) -> None:
        self._rename(uid + self._find_ending(uid), left_uid + UNDO)

    def _find_ending(self, uid: str) -> str:
        return UNDO if os.path.lexists(os.path.join(self._path, uid + UNDO)) else RECORD

    def _unlink(self, uid: str) -> None:
        for name in (uid + UNDO, uid + RECORD):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self._path, name))
            self._signatures.pop(name, None)
        if self._durable:  # else the claim would hold its devices again after a loss of power
            atomic_files.flush_directory(self._path)
        if uid in self._unreadable:
            self._remove_set_aside(uid)

    def _remove_set_aside(self, uid: str) -> None:
        for path, owner in list_set_aside(self._path):
            if owner == uid:
                os.unlink(path)
                if self._durable:
                    atomic_files.flush_directory(os.path.dirname(path))

    def _recreate(self) -> None:
        """Create the directory, or the lock in it, again after somebody removed it, with the records in memory.

        Only memory that is up to date may be written: else a claim that has ended would hold its devices again, and one
        that another instance has prepared would not.
        """
        changes = self.lock.read_counter()
        if changes != self._counter and not self.lock.is_alone():
            raise CheckpointError(
                f"{self._path} was removed with its records; another instance of the agent, which has changed them "
                "since, writes them again when it needs them next, after 10 minutes at most"
            )
        if not self.lock.is_intact():
            atomic_files.make_directory(os.path.dirname(self.lock.path), DIRECTORY_MODE)
            self.lock.reopen()
            if self.lock.read_counter() > changes:
                return  # another instance has written its records, and maybe changed them: memory follows the disk
            with suppress(OSError):
                self.lock.write_counter(changes)
            self._counter = self.lock.read_counter()  # after an error below, the records are still to be written
        _log.error("%s was removed; it is created again (records: %d)", self._path, len(self._records))
        self._open_directory()
        self._write_back()
        self._counter = changes + 1
        self.lock.write_counter(self._counter)

    def _write_back(self, uids: Collection[str] | None = None) -> bool:
        """Write records in memory again, of these claims or of all, whose files somebody removed; whether any were."""
        present = {name[: -len(RECORD)] for name in os.listdir(self._path)}
        missing = sorted((self._records.keys() if uids is None else self._records.keys() & set(uids)) - present)
        for uid in missing:
            _log.error("somebody removed the record of claim %s; it is written again", uid)
            self._replace(uid + RECORD, build_record(self._records[uid]))
            self._remove_set_aside(uid)
        if missing:
            self.lock.write_counter(self.lock.read_counter() + 1)
        return bool(missing)

    def _list_placeholders(self) -> list[str]:
        """Return the claims whose records an instance that has started since missed."""
        return [uid for path, uid in list_set_aside(self._path) if is_placeholder(read_if_possible(path))]

    def _stat_directory(self) -> Signature | None:
        """Return what changes when a file is added, renamed or removed; None if there is no directory."""
        try:
            status = os.lstat(self._path)
        except FileNotFoundError:
            return None
        return (status.st_dev, status.st_ino, status.st_mtime_ns) if stat.S_ISDIR(status.st_mode) else None

    def _open_directory(self) -> None:
        atomic_files.make_directory(self._path, DIRECTORY_MODE)
        for path in (os.path.dirname(self.lock.path), self._path):
            status = os.lstat(path)
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                found = f"belongs to user {status.st_uid}" if stat.S_ISDIR(status.st_mode) else "is a link"
                raise CheckpointError(
                    f"{path} {found}, so others could write records of claims; it must be a directory of user "
                    f"{os.geteuid()}, as which the agent runs: move it away, and the agent creates it"
                )
        os.chmod(self._path, DIRECTORY_MODE)

    def _refuse_newer(self, uid: str) -> None:
        found = self._unreadable[uid]
        if found.is_newer:
            raise CheckpointError(f"the record {found.path} must stay as it is: {found.why}")

    def _explain(self, error: OSError, doing: str) -> CheckpointError:
        return CheckpointError(atomic_files.explain(error, f"{doing} (directory {self._path})"))
