"""The files in a directory of records: what their names say, and how they are read."""

from __future__ import annotations

import errno
import os

import msgspec

from pydra import atomic_files
from pydra.checkpoint.record import MAX_BYTES, Record, Stage, is_placeholder, parse_record, read_partial_record
from pydra.claim import CLAIM_UID, Claim
from pydra.errors import CheckpointError

RECORD, UNDO = ".json", ".undo"
"""Endings of a record's file; both have the same length."""

CORRUPT = "corrupt"
"""The subdirectory of files that were set aside."""

LEFT_OVER = ".left-"
MISSING = "somebody removed it; the claim's CDI file names the devices that the claim holds"

# Errors that the file itself causes. Any other comes from the machine, and says nothing about the record.
_FILE_AT_FAULT = frozenset({errno.EINVAL, errno.ELOOP, errno.EFBIG, errno.EIO, errno.EUCLEAN, errno.ENXIO})


class StoredRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a claim as it is on the disk. `record` is None if it cannot be read, and `problem` says why.

    `claim` is then what can still be read of it.
    """

    claim: Claim
    path: str
    record: Record | None = None
    set_aside: bool = False
    problem: str = ""


def list_stored(path: str) -> tuple[StoredRecord, ...]:
    """Read all records of a directory, those that were set aside last, and change nothing. Blocks.

    Raises:
        CheckpointError: the directory cannot be read.
    """
    try:
        names = [name for name in list_directory(path) if is_of_claim(name)]
        places = [(os.path.join(path, name), name[: -len(RECORD)], False) for name in names]
        places += [(aside, uid, True) for aside, uid in list_set_aside(path)]
        return tuple(read_stored(*place) for place in places)
    except OSError as error:
        raise CheckpointError(atomic_files.explain(error, f"reading the records in {path}")) from error


def read_stored(path: str, uid: str, set_aside: bool) -> StoredRecord:
    """Read one file, whatever is in it."""
    content, problem, record = b"", "", None
    try:
        content = read_file(path)
        record = parse_stored(content, uid)
        if path.endswith(UNDO):
            record = msgspec.structs.replace(record, stage=Stage.STARTED)
    except FileNotFoundError:
        problem = "it has just been removed"
    except CheckpointError as error:
        problem = str(error)
    claim = record.claim if record is not None else read_partial_record(content, uid)
    return StoredRecord(claim=claim, path=path, record=record, set_aside=set_aside, problem=problem)


def parse_stored(content: bytes, uid: str) -> Record:
    """Parse a file's content, which must be the record of the claim that its name says, or raise CheckpointError."""
    if is_placeholder(content):
        raise CheckpointError(MISSING)
    record = parse_record(content)
    claim_uid = find_claim_uid(uid)
    if record.claim.uid not in (claim_uid, uid):
        raise CheckpointError(f"the file holds the record of another claim, {record.claim.uid[:64]!r}")
    return record if claim_uid == uid else name_left_over(record, uid)


def is_of_claim(name: str) -> bool:
    """Return whether a file has the name of a record. Others, which nothing here writes, are left alone."""
    return name.endswith((RECORD, UNDO)) and bool(CLAIM_UID.fullmatch(find_claim_uid(name[: -len(RECORD)])))


def find_claim_uid(uid: str) -> str:
    """Return the uid of the claim that a record is of, which may be a left-over one."""
    return uid.partition(LEFT_OVER)[0]


def name_left_over(record: Record, uid: str) -> Record:
    """Return the record as one of what a claim left over, under this uid."""
    why = record.left_over or "it could not be undone when the claim ended"
    claim = msgspec.structs.replace(record.claim, uid=uid)
    return msgspec.structs.replace(record, claim=claim, stage=Stage.STARTED, prepared=(), metadata=None, left_over=why)


def list_directory(path: str) -> list[str]:
    """Return the names in a directory, which may be absent."""
    try:
        return sorted(os.listdir(path))
    except FileNotFoundError:
        return []


def list_set_aside(path: str) -> list[tuple[str, str]]:
    """Return path and uid of every file that was set aside in a directory of records."""
    directory = os.path.join(path, CORRUPT)
    names = (name for name in list_directory(directory) if is_of_claim(name.rpartition(RECORD)[0] + RECORD))
    return [(os.path.join(directory, name), name.rpartition(RECORD)[0]) for name in names]


def read_if_possible(path: str) -> bytes:
    """Read a file; return nothing if it cannot be read."""
    try:
        return read_file(path)
    except (OSError, CheckpointError):
        return b""


def read_file(path: str) -> bytes:
    """Read the file. Raises CheckpointError if the file itself is at fault, OSError if the machine is."""
    try:
        return atomic_files.read_regular_file(path, 2 * MAX_BYTES)
    except OSError as error:
        if error.errno in _FILE_AT_FAULT:
            raise CheckpointError(f"the file cannot be read: {error.strerror}") from error
        raise
