"""A real process, killed at every step of every write: what it had been told was kept is there, and nothing else is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pydra.cdi.store import CdiDirectory
from pydra.checkpoint.scan import RecordTrouble
from pydra.checkpoint.store import CheckpointDirectory
from tests.integration.checkpoint.crashing import DRIVER, FILE_STATES, RECORD_STATES, record

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    places: dict[str, list[Path]] = {}
    for kind in ("records", "files"):
        root = tmp_path_factory.mktemp(kind)
        command = [sys.executable, "-m", "tests.integration.checkpoint.crashing", kind, str(root)]
        done = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        places[kind] = sorted(root.iterdir(), key=lambda place: int(place.name))
    return places


def _returned(place: Path) -> int:
    """How many calls had returned; `open`, the first, leads to state 0."""
    done = place / "done"
    return done.stat().st_size if done.exists() else 0


def test_every_kind_of_step_was_a_killed_one(crashed: dict[str, list[Path]]) -> None:
    for kind, steps in {
        "records": {
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
        },
        "files": {"create", "chmod", "write", "written", "rename", "renamed", "unlink"},
    }.items():
        *killed, survivor = crashed[kind]
        assert {(place / "step").read_text() for place in killed} == steps
        assert not (survivor / "step").exists()


async def test_a_killed_writer_leaves_the_record_before_or_the_record_after(crashed: dict[str, list[Path]]) -> None:
    for place in crashed["records"]:
        trouble: list[RecordTrouble] = []
        directory = CheckpointDirectory(str(place / "directory"), report=trouble.append)
        await directory.open()
        returned = _returned(place)
        possible = RECORD_STATES[max(returned - 1, 0) : returned + 1]
        assert dict(directory.records()) in possible, f"killed at step {place.name}"
        assert trouble == []


async def test_after_a_kill_the_records_can_be_written_and_nothing_is_left_over(crashed: dict[str, list[Path]]) -> None:
    for place in crashed["records"]:
        directory = CheckpointDirectory(str(place / "directory"))
        await directory.open()
        for uid in ("a", "b"):
            await directory.write(record(uid))
            await directory.write(record(uid, completed=True))
        again = CheckpointDirectory(str(place / "directory"))
        await again.open()
        assert again.records() == directory.records() == {uid: record(uid, completed=True) for uid in ("a", "b")}
        assert sorted(file.name for file in (place / "directory").iterdir()) == ["a.json", "b.json"]


async def test_a_killed_writer_leaves_the_cdi_file_before_or_the_file_after(crashed: dict[str, list[Path]]) -> None:
    for place in crashed["files"]:
        directory = CdiDirectory(str(place / "directory"), DRIVER)
        await directory.open()
        returned = _returned(place)
        assert dict(await directory.read()) in FILE_STATES[max(returned - 1, 0) : returned + 1]
        names = [file.name for file in (place / "directory").iterdir()]
        assert all(name.endswith(".json") and not name.startswith(".") for name in names)
