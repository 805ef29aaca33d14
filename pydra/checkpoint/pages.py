"""A record's file: lines in pages, the last intact one counts. Pure.

    started    {"checksum":...}          page 0, written with the new file
               (blank lines)             up to the next page, then room for one more record
    completed  {"checksum":...}          written into the room

The first write of a prepare makes a new file. The second goes into pages that the first one has
allocated, so to make it durable takes no change of the file system's own structures: about a quarter
of the time of another new file (`benchmarks/checkpoint_writes.py`). Pages are never shared by lines: a
crash in the middle of a write leaves the line before it untouched, and that one counts. So after a
torn *completed* the claim is *started*, which is the truth. When the room is used up, the next
write makes a new file.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from pydra.checkpoint.record import NewerSchemaError, Record, Stage, build_record, parse_record
from pydra.errors import CheckpointError

PAGE = 4096
ROOM_PER_DEVICE = 2 * PAGE
MAX_ROOM = 16 * PAGE
MAX_BYTES = 16 * 1024 * 1024


class StoredRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record as it lies in its file: another may be written from `room` to `end`, in bytes.

    `damage` says what is wrong with a later line of the file, when there was one: this record is the
    one before it.
    """

    record: Record
    room: int
    end: int
    damage: str = ""


class WholeFile(msgspec.Struct, frozen=True, kw_only=True):
    """Replace the file, or make it."""

    content: bytes
    stored: StoredRecord


class IntoRoom(msgspec.Struct, frozen=True, kw_only=True):
    """Write `content` at `offset` of the file that is there."""

    offset: int
    content: bytes
    stored: StoredRecord


WritePlan: TypeAlias = WholeFile | IntoRoom


def plan_write(record: Record, stored: StoredRecord | None) -> WritePlan:
    """How to write the record, given what its file holds now; `stored` of the plan is what it holds then.

    Raises:
        CheckpointError: the record is longer than any that is read.
    """
    line = build_record(record)
    if len(line) > MAX_BYTES // 4:
        raise CheckpointError(f"the record has {len(line)} bytes; at most {MAX_BYTES // 4} can be kept")
    if stored is not None and stored.room + len(line) <= stored.end:
        then = StoredRecord(record=record, room=min(_next_page(stored.room + len(line)), stored.end), end=stored.end)
        return IntoRoom(offset=stored.room, content=line, stored=then)
    if record.stage is not Stage.STARTED:
        return WholeFile(content=line, stored=StoredRecord(record=record, room=len(line), end=len(line)))
    room = _next_page(len(line))
    end = room + _next_page(len(line)) + min(len(record.claim.devices) * ROOM_PER_DEVICE, MAX_ROOM)
    return WholeFile(content=line.ljust(end, b"\n"), stored=StoredRecord(record=record, room=room, end=end))


def parse_file(content: bytes) -> StoredRecord:
    """The last intact record of a file.

    Raises:
        CheckpointError: there is none; says what is wrong with the last.
        NewerSchemaError: the last intact one is of a later schema.
    """
    damage = "the file holds no record"
    end = len(content.rstrip())
    while end:
        start = content.rfind(b"\n", 0, end) + 1
        try:
            record = parse_record(content[start : end + 1])
        except NewerSchemaError:
            raise
        except CheckpointError as error:
            damage = str(error)
            end = len(content[:start].rstrip())
            continue
        return _stored(record, content, end + 1, damage)
    raise CheckpointError(damage)


def _stored(record: Record, content: bytes, after: int, damage: str) -> StoredRecord:
    end = len(content)
    if content[after:].strip():
        return StoredRecord(record=record, room=end, end=end, damage=damage)
    return StoredRecord(record=record, room=min(_next_page(after), end), end=end)


def _next_page(size: int) -> int:
    return -(-size // PAGE) * PAGE
