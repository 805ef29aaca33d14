"""Records that cannot be read: set aside, torn, too new, or no records at all; the rest goes on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydra.checkpoint.scan import RecordSetAside, RecordTooNew, RecordTorn, RecordTrouble
from pydra.checkpoint.store import CheckpointDirectory
from pydra.errors import CheckpointError
from tests.integration.checkpoint.crashing import record

NEWER_PAYLOAD = b'{"schema":9}'
NEWER = b'{"checksum":"sha256:%s","record":%s}\n' % (hashlib.sha256(NEWER_PAYLOAD).hexdigest().encode(), NEWER_PAYLOAD)


async def _opened(path: Path, trouble: list[RecordTrouble] | None = None) -> CheckpointDirectory:
    directory = CheckpointDirectory(str(path), report=(trouble if trouble is not None else []).append)
    await directory.open()
    return directory


def _damage(path: Path) -> Iterator[tuple[str, str]]:
    """Files of claims that cannot be read, and what is said of each."""
    (path / "empty.json").write_bytes(b"")
    yield "empty", "holds no record"
    (path / "zeros.json").write_bytes(b"\0" * 4096)
    yield "zeros", "cut off"
    (path / "flipped.json").write_bytes(bytes([*b'{"checksum":', 0x80]))
    yield "flipped", "cut off"
    (path / "alien.json").write_text('{"v1":{}}\n')
    yield "alien", "not a checkpoint record"
    (path / "renamed.json").write_bytes((path / "good.json").read_bytes())
    yield "renamed", "another claim, 'good'"
    (path / "folder.json").mkdir()
    yield "folder", "not a regular file"
    (path / "link.json").symlink_to(path / "good.json")
    yield "link", "cannot be read"
    os.mkfifo(path / "pipe.json")
    yield "pipe", "not a regular file"
    (path / "huge.json").touch()
    os.truncate(path / "huge.json", 2**40)
    yield "huge", "at most"


async def test_what_cannot_be_read_is_set_aside_and_told_and_the_rest_goes_on(tmp_path: Path) -> None:
    await (await _opened(tmp_path)).write(record("good"))
    expected = dict(_damage(tmp_path))
    trouble: list[RecordTrouble] = []
    directory = await _opened(tmp_path, trouble)
    assert directory.records() == {"good": record("good")}
    assert directory.unreadable().keys() == expected.keys()
    assert [type(one) for one in trouble] == [RecordSetAside] * len(expected)
    for one in trouble:
        assert expected[one.uid] in one.why
        assert one.path == str(tmp_path / "corrupt" / f"{one.uid}.json")
        assert os.path.lexists(one.path)
        assert not os.path.lexists(tmp_path / f"{one.uid}.json")


async def test_a_second_unreadable_record_of_a_claim_does_not_replace_the_first(tmp_path: Path) -> None:
    for content in (b"first", b"second", b"third"):
        (tmp_path / "a.json").write_bytes(content)
        await _opened(tmp_path)
    kept = {file.name: file.read_bytes() for file in (tmp_path / "corrupt").iterdir()}
    assert kept == {"a.json": b"first", "a.json.1": b"second", "a.json.2": b"third"}


async def test_the_next_instance_knows_which_claims_lost_their_records_and_tells_it_no_more(tmp_path: Path) -> None:
    await _opened(tmp_path)
    for name in ("a", "b.json"):
        for _ in range(2):
            (tmp_path / f"{name}.json").write_bytes(b"?")
            await _opened(tmp_path)
    trouble: list[RecordTrouble] = []
    directory = await _opened(tmp_path, trouble)
    assert sorted(directory.unreadable()) == ["a", "b.json"]
    assert trouble == []
    await directory.write(record("a"))
    assert sorted(directory.unreadable()) == ["b.json"]


async def test_a_claim_whose_record_was_set_aside_can_be_prepared_anew(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"?")
    directory = await _opened(tmp_path)
    assert directory.unreadable().keys() == {"a"}
    await directory.write(record("a"))
    assert not directory.unreadable()
    assert (await _opened(tmp_path)).records() == {"a": record("a")}
    assert (tmp_path / "corrupt" / "a.json").read_bytes() == b"?"


async def test_a_torn_completion_counts_as_started_and_is_told(tmp_path: Path) -> None:
    directory = await _opened(tmp_path)
    await directory.write(record("a"))
    await directory.write(record("a", completed=True))
    file = tmp_path / "a.json"
    content = file.read_bytes()
    file.write_bytes(content.replace(b'"completed"', b'"complated"'))
    trouble: list[RecordTrouble] = []
    again = await _opened(tmp_path, trouble)
    assert again.records() == {"a": record("a")}
    (torn,) = trouble
    assert isinstance(torn, RecordTorn)
    assert "checksum" in torn.why
    assert again.unreadable() == {}
    await again.write(record("a", completed=True))
    assert (await _opened(tmp_path)).records() == {"a": record("a", completed=True)}


async def test_a_record_of_a_newer_pydra_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(NEWER)
    trouble: list[RecordTrouble] = []
    directory = await _opened(tmp_path, trouble)
    (told,) = trouble
    assert isinstance(told, RecordTooNew)
    with pytest.raises(CheckpointError, match=r"must stay as it is: .* newer version"):
        await directory.write(record("a"))
    with pytest.raises(CheckpointError, match="must stay as it is"):
        await directory.remove("a")
    os.utime(tmp_path)
    await directory.refresh()
    assert len(trouble) == 1, "told once"
    assert (tmp_path / "a.json").read_bytes() == NEWER
    (tmp_path / "a.json").unlink()
    await directory.refresh()
    await directory.write(record("a"))


async def test_files_that_are_no_records_are_left_alone(tmp_path: Path) -> None:
    for name in ("README", ".hidden.json", "a b.json", "a.json.bak", ".a.json.1234.tmp"):
        (tmp_path / name).write_bytes(b"?")
    (tmp_path / ".a.json.0123abcd.tmp").write_bytes(b"?")
    directory = await _opened(tmp_path)
    assert not directory.records()
    assert not directory.unreadable()
    left = sorted(file.name for file in tmp_path.iterdir())
    assert left == [".a.json.1234.tmp", ".hidden.json", "README", "a b.json", "a.json.bak"]
