# ruff: noqa: ASYNC221 - a test may look at the disk while its loop waits
"""Records on a real disk: kept, seen by another instance, and safe when the disk refuses."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from pydra.checkpoint.record import Record
from pydra.checkpoint.scan import RecordTrouble
from pydra.checkpoint.store import CheckpointDirectory
from pydra.errors import CdiError, CheckpointError
from tests.integration.checkpoint.crashing import record


async def _opened(path: Path, trouble: list[RecordTrouble] | None = None) -> CheckpointDirectory:
    directory = CheckpointDirectory(str(path), report=(trouble if trouble is not None else []).append)
    await directory.open()
    return directory


async def test_records_outlive_the_instance_that_wrote_them(tmp_path: Path) -> None:
    directory = await _opened(tmp_path / "records")
    await directory.write(record("a"))
    await directory.write(record("a", completed=True))
    await directory.write(record("b"))
    await directory.remove("b")
    await directory.remove("never")
    again = await _opened(tmp_path / "records")
    assert again.records() == directory.records() == {"a": record("a", completed=True)}


async def test_files_are_closed_to_others_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o277)
    try:
        directory = await _opened(tmp_path / "records")
        await directory.write(record("a"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "records").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "records" / "a.json").stat().st_mode) == 0o600


async def test_work_beside_a_write_is_done_before_it_and_after_it(tmp_path: Path) -> None:
    directory = await _opened(tmp_path / "records")
    seen: list[list[str]] = []

    def look() -> None:
        seen.append(sorted(os.listdir(tmp_path / "records")))

    await directory.write(record("a"), before=look, after=look)
    assert seen == [[], ["a.json"]]


async def test_nothing_is_written_when_the_work_before_it_fails(tmp_path: Path) -> None:
    directory = await _opened(tmp_path / "records")
    await directory.write(record("a"))

    def fail() -> None:
        raise CdiError("no room")

    with pytest.raises(CdiError, match="no room"):
        await directory.write(record("a", completed=True), before=fail)
    assert directory.records() == {"a": record("a")}
    again = await _opened(tmp_path / "records")
    assert again.records() == {"a": record("a")}


async def test_a_record_is_kept_when_the_work_after_it_fails(tmp_path: Path) -> None:
    directory = await _opened(tmp_path / "records")

    def fail() -> None:
        raise CdiError("no room")

    with pytest.raises(CdiError, match="no room"):
        await directory.write(record("a"), after=fail)
    assert directory.records() == {"a": record("a")}
    assert await directory.refresh() == frozenset()


async def test_a_directory_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    await _opened(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


async def test_a_new_file_is_durable_before_its_name_and_the_name_before_the_answer(tmp_path: Path) -> None:
    steps: list[str] = []
    directory = CheckpointDirectory(str(tmp_path), step=steps.append)
    await directory.open()
    await directory.write(record("a"))
    assert steps == ["create", "chmod", "write", "written", "fsync", "rename", "renamed", "fsync directory"]
    steps.clear()
    await directory.write(record("a", completed=True))
    assert steps == ["stamp", "write into room", "written", "fdatasync"]


async def test_the_completion_of_a_claim_makes_no_new_file(tmp_path: Path) -> None:
    directory = await _opened(tmp_path)
    await directory.write(record("a"))
    before = (tmp_path / "a.json").stat()
    await directory.write(record("a", completed=True))
    after = (tmp_path / "a.json").stat()
    assert (before.st_ino, before.st_size, before.st_blocks) == (after.st_ino, after.st_size, after.st_blocks)


async def test_what_another_instance_did_is_seen_and_named(tmp_path: Path) -> None:
    ours, theirs = await _opened(tmp_path), await _opened(tmp_path)
    await theirs.write(record("a"))
    await theirs.write(record("b"))
    assert await ours.refresh() == {"a", "b"}
    await theirs.write(record("a", completed=True))
    assert await ours.refresh() == {"a"}
    await theirs.remove("b")
    assert await ours.refresh() == {"b"}
    assert await ours.refresh() == frozenset()
    assert ours.records() == theirs.records() == {"a": record("a", completed=True)}


async def test_two_instances_that_take_turns_never_miss_a_write(tmp_path: Path) -> None:
    """Faster than the steps of the file system's clock: each turn is seen all the same."""
    one, other = await _opened(tmp_path), await _opened(tmp_path)
    for turn in range(60):
        uid = f"claim-{turn % 3}"
        await one.write(record(uid))
        assert await other.refresh() == {uid}
        await other.write(record(uid, completed=True))
        assert await one.refresh() == {uid}
        assert one.records() == other.records()


async def test_our_own_writes_are_no_news(tmp_path: Path) -> None:
    directory = await _opened(tmp_path)
    await directory.write(record("a"))
    await directory.write(record("a", completed=True))
    await directory.remove("a")
    assert await directory.refresh() == frozenset()


async def test_when_nothing_changed_the_files_are_not_looked_at(tmp_path: Path) -> None:
    directory = await _opened(tmp_path)
    await directory.write(record("a"))
    version = tmp_path.stat().st_mtime_ns
    (tmp_path / "a.json").unlink()
    os.utime(tmp_path, ns=(version, version))
    assert await directory.refresh() == frozenset(), "the directory says that nothing has changed"
    os.utime(tmp_path)
    assert await directory.refresh() == {"a"}


async def test_a_write_that_another_instance_died_in_is_seen(tmp_path: Path) -> None:
    ours = await _opened(tmp_path)
    await ours.write(record("a"))

    def die(step: str) -> None:
        if step == "fdatasync":
            raise KeyboardInterrupt

    theirs = CheckpointDirectory(str(tmp_path), step=die)
    await theirs.open()
    with pytest.raises(KeyboardInterrupt):
        await theirs.write(record("a", completed=True))
    assert await ours.refresh() == {"a"}
    await ours.write(record("a"))
    assert (await _opened(tmp_path)).records() == {"a": record("a")}


async def test_many_writes_at_once_are_all_kept(tmp_path: Path) -> None:
    directory = await _opened(tmp_path)

    async def prepare(uid: str) -> None:
        await directory.write(record(uid))
        assert await directory.refresh() == frozenset()
        await directory.write(record(uid, completed=True))

    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(prepare, f"claim-{number}")
    assert await directory.refresh() == frozenset()
    assert (await _opened(tmp_path)).records() == directory.records()
    assert len(directory.records()) == 40


async def test_a_cancelled_write_leaves_the_index_like_the_disk(tmp_path: Path) -> None:
    directory = await _opened(tmp_path)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await directory.write(record("a"))
    await directory.refresh()
    assert directory.records() == (await _opened(tmp_path)).records()
    await directory.write(record("a", completed=True))
    assert (await _opened(tmp_path)).records() == {"a": record("a", completed=True)}


@pytest.mark.parametrize("uid", ["", "..", "../a", "a/b", ".a", "x" * 129])
async def test_a_uid_that_could_leave_the_directory_is_refused(tmp_path: Path, uid: str) -> None:
    directory = await _opened(tmp_path / "records")
    with pytest.raises(CheckpointError, match="cannot name a checkpoint"):
        await directory.write(record(uid))
    with pytest.raises(CheckpointError, match="cannot name a checkpoint"):
        await directory.remove(uid)
    assert [file.name for file in tmp_path.rglob("*")] == ["records"]


async def test_a_directory_that_went_away_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "records"
    directory = await _opened(path)
    path.rmdir()
    with pytest.raises(CheckpointError, match="the directory is gone"):
        await directory.write(record("a"))
    with pytest.raises(CheckpointError, match="the directory is gone"):
        await directory.refresh()
    assert directory.records() == {}


async def test_missing_parents_are_made_and_stay_open_to_others(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        await _opened(tmp_path / "plugins" / "gpu.example.com" / "claims")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "plugins" / "gpu.example.com").stat().st_mode) == 0o755


async def test_a_path_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="creating the checkpoints in"):
        await _opened(tmp_path / "file" / "records")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a file system can be mounted by root only: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.root
async def test_a_full_disk_loses_nothing_and_says_what_to_do(small_disk: Path) -> None:
    directory = await _opened(small_disk / "records")
    await directory.write(record("a"))
    (small_disk / "filler").write_bytes(b"\0" * 40_000)
    for refused in (record("b"), record("a", completed=True, size=30_000)):
        with pytest.raises(CheckpointError, match=r"disk is full: free some space.*ENOSPC"):
            await directory.write(refused)
        assert directory.records() == (await _opened(small_disk / "records")).records() == {"a": record("a")}
    assert [file.name for file in (small_disk / "records").iterdir()] == ["a.json"]
    (small_disk / "filler").unlink()
    await directory.write(record("b"))
    assert directory.records().keys() == {"a", "b"}


@pytest.mark.root
async def test_a_claim_that_was_started_can_be_completed_on_a_full_disk(small_disk: Path) -> None:
    directory = await _opened(small_disk / "records")
    await directory.write(record("a"))
    with pytest.raises(OSError, match="No space"):
        (small_disk / "filler").write_bytes(b"\0" * 100_000)
    await directory.write(record("a", completed=True))
    assert (await _opened(small_disk / "records")).records() == {"a": record("a", completed=True)}


@pytest.mark.root
async def test_a_read_only_disk_loses_nothing_and_says_what_to_do(small_disk: Path) -> None:
    directory = await _opened(small_disk / "records")
    await directory.write(record("a"))
    (small_disk / "records" / "bad.json").write_bytes(b"?")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    expected: dict[str, Record] = {"a": record("a")}
    for refused in (record("b"), record("a", completed=True)):
        with pytest.raises(CheckpointError, match="file system is read-only: mount it writable"):
            await directory.write(refused)
    with pytest.raises(CheckpointError, match="read-only"):
        await directory.remove("a")
    await directory.refresh()
    assert directory.records() == expected
    with pytest.raises(CheckpointError, match="must stay as it is"):
        await directory.write(record("bad"))


async def test_what_a_failed_write_left_is_read_again_whatever_was_written_since(tmp_path: Path) -> None:
    failing = False

    def step(name: str) -> None:
        if failing and name == "fsync directory":
            raise OSError(errno.EIO, "input/output error")

    directory = CheckpointDirectory(str(tmp_path), step=step)
    await directory.open()
    failing = True
    with pytest.raises(CheckpointError, match="EIO"):
        await directory.write(record("a"))
    failing = False
    await directory.write(record("b"))
    assert await directory.refresh() == {"a"}, "it lies on the disk, behind the back of its writer"
    assert set(directory.records()) == {"a", "b"}
