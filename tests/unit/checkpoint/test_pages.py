"""A record's file: room for the next record, torn writes, damage."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pydra.cdi.edits import ContainerEdits
from pydra.checkpoint.pages import PAGE, IntoRoom, StoredRecord, WholeFile, parse_file, plan_write
from pydra.checkpoint.record import NewerSchemaError, Record, Stage
from pydra.errors import CheckpointError
from tests.unit.checkpoint import strategies
from tests.unit.checkpoint.test_record import CLAIM, COMPLETED, DEVICE, STARTED


def _apply(content: bytes, plan: WholeFile | IntoRoom) -> bytes:
    if isinstance(plan, WholeFile):
        return plan.content
    return content[: plan.offset] + plan.content + content[plan.offset + len(plan.content) :]


def _started_and_completed() -> bytes:
    started = plan_write(STARTED, None)
    return _apply(_apply(b"", started), plan_write(COMPLETED, started.stored))


def test_a_claim_that_is_started_leaves_room_for_its_completion() -> None:
    started = plan_write(STARTED, None)
    assert isinstance(started, WholeFile)
    completed = plan_write(COMPLETED, started.stored)
    assert isinstance(completed, IntoRoom)
    assert completed.offset % PAGE == 0
    assert completed.offset >= len(started.content.rstrip()), "the line before it is in pages of its own"
    content = _apply(started.content, completed)
    assert len(content) == len(started.content)
    assert parse_file(content) == completed.stored
    assert completed.stored.record == COMPLETED


def test_room_is_used_until_it_is_full_and_never_twice() -> None:
    plan = plan_write(STARTED, None)
    content = _apply(b"", plan)
    for number in range(20):
        record = replace(STARTED, boot_id=f"boot-{number}")
        following = plan_write(record, plan.stored)
        if isinstance(following, WholeFile):
            assert number == 3, "three pages of room"
            return
        assert not content[following.offset :].strip(), "only blank room is written to"
        content, plan = _apply(content, following), following
    pytest.fail("the room has no end")


def test_a_record_too_long_for_the_room_makes_a_new_file() -> None:
    long = replace(COMPLETED, prepared=(DEVICE.prepared(ContainerEdits().with_env("A", "x" * 100_000)),))
    assert isinstance(plan_write(long, plan_write(STARTED, None).stored), WholeFile)


def test_a_completed_record_is_a_file_of_one_line() -> None:
    plan = plan_write(COMPLETED, None)
    assert isinstance(plan, WholeFile)
    assert plan.content.count(b"\n") == 1
    assert parse_file(plan.content) == plan.stored


def test_a_record_that_nobody_could_read_again_is_refused() -> None:
    huge = replace(COMPLETED, prepared=(DEVICE.prepared(state="x" * 5_000_000),))
    with pytest.raises(CheckpointError, match="at most 4194304"):
        plan_write(huge, None)


@settings(max_examples=50)
@given(records=st.lists(strategies.records, min_size=1, max_size=4))
def test_any_sequence_of_writes_is_read_back(records: list[Record]) -> None:
    content = b""
    stored: StoredRecord | None = None
    for record in records:
        plan = plan_write(replace(record, claim=CLAIM), stored)
        content, stored = _apply(content, plan), plan.stored
        assert parse_file(content) == stored
        assert stored.record == replace(record, claim=CLAIM)
        stored = parse_file(content)


@settings(max_examples=200)
@given(data=st.data())
def test_a_flipped_bit_in_the_completed_line_leaves_the_started_one_and_is_told(data: st.DataObject) -> None:
    content = bytearray(_started_and_completed())
    start, end = content.rindex(b'{"checksum"'), len(content.rstrip())
    bit = data.draw(st.integers(start * 8, end * 8 + 7))
    content[bit // 8] ^= 1 << bit % 8
    stored = parse_file(bytes(content))
    assert stored.record == STARTED
    assert stored.damage
    assert isinstance(plan_write(COMPLETED, stored), WholeFile), "damage is never written over in place"


@settings(max_examples=200)
@given(data=st.data())
def test_a_torn_write_into_the_room_leaves_the_started_line(data: st.DataObject) -> None:
    """Power may fail when any of the sectors has reached the disk, in any order."""
    started = plan_write(STARTED, None)
    long = replace(COMPLETED, prepared=(DEVICE.prepared(ContainerEdits().with_env("A", "x" * 6000)),))
    completed = plan_write(long, started.stored)
    assert isinstance(completed, IntoRoom)
    before, after = _apply(b"", started), _apply(_apply(b"", started), completed)
    written = data.draw(st.lists(st.booleans(), min_size=len(after) // 512, max_size=len(after) // 512))
    content = b"".join((after if new else before)[at * 512 : (at + 1) * 512] for at, new in enumerate(written))
    assert parse_file(content).record == (long if content == after else STARTED)


@settings(max_examples=100)
@given(data=st.data())
def test_a_truncated_file_gives_the_last_whole_line_or_none(data: st.DataObject) -> None:
    content = _started_and_completed()
    length = data.draw(st.integers(0, len(content) - 1))
    first, last = content.index(b"\n") + 1, len(content.rstrip()) + 1
    if length >= last:
        assert parse_file(content[:length]).record == COMPLETED
    elif length >= first:
        assert parse_file(content[:length]).record == STARTED
    else:
        with pytest.raises(CheckpointError):
            parse_file(content[:length])


def test_damage_in_a_line_that_no_longer_counts_is_harmless() -> None:
    content = _started_and_completed()
    stored = parse_file(b"#" + content[1:])
    assert stored.record == COMPLETED
    assert stored.damage == ""


@pytest.mark.parametrize("content", [b"", b"\n" * PAGE, b"\0" * PAGE, b"nonsense\n"])
def test_a_file_without_a_record_is_an_error(content: bytes) -> None:
    with pytest.raises(CheckpointError):
        parse_file(content)


def test_a_line_of_a_newer_schema_is_not_passed_over_for_an_older_one() -> None:
    payload = b'{"schema":9}'
    line = b'{"checksum":"sha256:%s","record":%s}\n' % (hashlib.sha256(payload).hexdigest().encode(), payload)
    content = plan_write(STARTED, None).content.rstrip() + b"\n" + line
    with pytest.raises(NewerSchemaError):
        parse_file(content)


def test_a_file_written_by_hand_without_padding_has_no_room() -> None:
    content = plan_write(STARTED, None).content.rstrip() + b"\n"
    stored = parse_file(content)
    assert stored.record.stage is Stage.STARTED
    assert isinstance(plan_write(COMPLETED, stored), WholeFile)
