"""Reading a directory of records: what is new in it, what cannot be read, what was set aside. Blocks; for a thread.

An unreadable record never stops the others and is never overwritten: it moves to `corrupt/`, where a
human can look at it. Only a record of a newer pydra stays, for the newer pydra to come back to.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TypeAlias

import msgspec

from pydra import disk
from pydra.checkpoint.pages import MAX_BYTES, StoredRecord, parse_file
from pydra.checkpoint.record import NewerSchemaError
from pydra.claim import is_file_name
from pydra.errors import CheckpointError

SUFFIX = ".json"
CORRUPT = "corrupt"
DIRECTORY_MODE = 0o700

# A file's times move in steps, of some milliseconds on most file systems and of a second on a few. What
# changed longer ago than this cannot change again and keep its time.
_SETTLED_NS = 2_000_000_000

# The file itself is at fault. Any other error is the machine's, and says nothing about the record.
_FILE_AT_FAULT = frozenset({errno.EINVAL, errno.ELOOP, errno.EFBIG, errno.EIO, errno.EUCLEAN, errno.ENXIO})

_COUNTED = re.compile(r"(?<=\.json)\.[0-9]+$")
"""What `_set_aside` adds to a name that is taken."""

Signature: TypeAlias = tuple[int, int, int]
"""Inode, size and time of change of a file that need not be read again while it has them."""


class RecordSetAside(msgspec.Struct, frozen=True, kw_only=True):
    """A claim's record could not be read; its file is at `path` now: in `corrupt/`, unless the disk refused."""

    uid: str
    path: str
    why: str


class RecordTorn(msgspec.Struct, frozen=True, kw_only=True):
    """The last write of a claim's record is damaged, by a crash or by the disk: the one before it counts."""

    uid: str
    path: str
    why: str


class RecordTooNew(msgspec.Struct, frozen=True, kw_only=True):
    """A newer pydra wrote the claim's record: it stays untouched, and the claim cannot be served by this version."""

    uid: str
    path: str
    why: str


RecordTrouble: TypeAlias = RecordSetAside | RecordTorn | RecordTooNew


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """What a directory holds. `version` is the directory's time of change, None when it may change unseen."""

    version: int | None
    same: frozenset[str]
    read: Mapping[str, tuple[StoredRecord, Signature | None]]
    trouble: tuple[RecordTrouble, ...]


def record_file_name(uid: str) -> str:
    """The claim's file.

    Raises:
        CheckpointError: the uid cannot be part of a file name.
    """
    if not is_file_name(uid):
        raise CheckpointError(
            f"{uid[:64]!r} cannot name a checkpoint: a uid has 1 to 128 letters, digits, '.', '_' and '-', "
            "a letter or digit first"
        )
    return uid + SUFFIX


def scan_directory(path: str, known: Mapping[str, Signature]) -> Scan:
    """Read every record whose file has not the signature that is known of it.

    Raises:
        OSError: the directory, or the machine, is at fault.
    """
    same: set[str] = set()
    read: dict[str, tuple[StoredRecord, Signature | None]] = {}
    trouble: list[RecordTrouble] = []
    with disk.opened(path) as directory:
        # Taken before the files are looked at: what changes meanwhile is seen the next time.
        version, now = os.fstat(directory).st_mtime_ns, time.time_ns()
        for name in sorted(os.listdir(directory)):
            uid = name.removesuffix(SUFFIX)
            if uid == name or not is_file_name(uid):
                continue
            try:
                signature = _sign(directory, name)
                if known.get(uid) == signature:
                    same.add(uid)
                    continue
                stored = _read_record(directory, name, uid)
            except FileNotFoundError:
                continue
            except NewerSchemaError as error:
                trouble.append(RecordTooNew(uid=uid, path=os.path.join(path, name), why=str(error)))
                continue
            except CheckpointError as error:
                kept = _set_aside(directory, name)
                trouble.append(RecordSetAside(uid=uid, path=os.path.join(path, kept), why=str(error)))
                continue
            read[uid] = (stored, signature if _is_settled(signature[2], now) else None)
            if stored.damage:
                trouble.append(RecordTorn(uid=uid, path=os.path.join(path, name), why=stored.damage))
    settled = version if _is_settled(version, now) else None
    return Scan(version=settled, same=frozenset(same), read=read, trouble=tuple(trouble))


def find_set_aside(path: str) -> tuple[RecordSetAside, ...]:
    """The records that were set aside before, by whatever instance: their claims are still without one.

    Raises:
        OSError: the directory, or the machine, is at fault.
    """
    try:
        names = os.listdir(os.path.join(path, CORRUPT))
    except FileNotFoundError:
        return ()
    found: dict[str, RecordSetAside] = {}
    for name in sorted(names):
        uid = _COUNTED.sub("", name).removesuffix(SUFFIX)
        if is_file_name(uid):
            kept = os.path.join(path, CORRUPT, name)
            found[uid] = RecordSetAside(uid=uid, path=kept, why="it was set aside by an earlier run of the agent")
    return tuple(found.values())


def remove_left_overs(path: str) -> None:
    """Remove the temporary files of a killed writer."""
    with disk.opened(path) as directory:
        for name in os.listdir(directory):
            if disk.is_temporary(name, SUFFIX):
                disk.remove_file(directory, name)


def _read_record(directory: int, name: str, uid: str) -> StoredRecord:
    try:
        content = disk.read_file(directory, name, MAX_BYTES)
    except OSError as error:
        if error.errno in _FILE_AT_FAULT:
            raise CheckpointError(f"the file cannot be read: {error.strerror}") from error
        raise
    stored = parse_file(content)
    if stored.record.claim.uid != uid:
        raise CheckpointError(f"the file holds the record of another claim, {stored.record.claim.uid[:64]!r}")
    return stored


def _set_aside(directory: int, name: str) -> str:
    """Where the file lies afterwards, relative to the directory; where it was, when the disk refuses to move it."""
    kept = f"{CORRUPT}/{name}"
    number = 0
    try:
        with suppress(FileExistsError):
            os.mkdir(CORRUPT, DIRECTORY_MODE, dir_fd=directory)
        while _exists(directory, kept):
            number += 1
            kept = f"{CORRUPT}/{name}.{number}"
        os.rename(name, kept, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        return name
    return kept


def _exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _sign(directory: int, name: str) -> Signature:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    return status.st_ino, status.st_size, status.st_mtime_ns


def _is_settled(changed_ns: int, now_ns: int) -> bool:
    return changed_ns < now_ns - _SETTLED_NS
