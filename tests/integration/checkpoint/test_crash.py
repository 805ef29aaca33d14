"""A real process, killed at every step of every write: what it had been told was kept is there, and nothing else is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pydra.checkpoint.scan import RecordTrouble
from pydra.checkpoint.store import CheckpointDirectory
from tests.integration.checkpoint.crashing import RECORD_STATES, record

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("records")
    command = [sys.executable, "-m", "tests.integration.checkpoint.crashing", str(root)]
    done = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return sorted(root.iterdir(), key=lambda place: int(place.name))


def _returned(place: Path) -> int:
    """How many calls had returned; `open`, the first, leads to state 0."""
    done = place / "done"
    return done.stat().st_size if done.exists() else 0


def test_every_kind_of_step_was_a_killed_one(crashed: list[Path]) -> None:
    *killed, survivor = crashed
    assert {(place / "step").read_text() for place in killed} == {
        "create",
        "chmod",
        "write",
        "written",
        "fsync",
        "rename",
        "renamed",
        "fsync directory",
        "stamp",
        "write into room",
        "fdatasync",
        "unlink",
        "unlinked",
    }
    assert not (survivor / "step").exists()


async def test_a_killed_writer_leaves_the_record_before_or_the_record_after(crashed: list[Path]) -> None:
    for place in crashed:
        trouble: list[RecordTrouble] = []
        directory = CheckpointDirectory(str(place / "directory"), report=trouble.append)
        await directory.open()
        returned = _returned(place)
        possible = RECORD_STATES[max(returned - 1, 0) : returned + 1]
        assert dict(directory.records()) in possible, f"killed at step {place.name}"
        assert trouble == []


async def test_after_a_kill_the_records_can_be_written_and_nothing_is_left_over(crashed: list[Path]) -> None:
    for place in crashed:
        directory = CheckpointDirectory(str(place / "directory"))
        await directory.open()
        for uid in ("a", "b"):
            await directory.write(record(uid))
            await directory.write(record(uid, completed=True))
        again = CheckpointDirectory(str(place / "directory"))
        await again.open()
        assert again.records() == directory.records() == {uid: record(uid, completed=True) for uid in ("a", "b")}
        assert sorted(file.name for file in (place / "directory").iterdir()) == ["a.json", "b.json"]
