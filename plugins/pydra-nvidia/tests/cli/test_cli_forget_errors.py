"""`forget-errors`: a GPU that was repaired is well again, although errors of it are remembered."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pydra_nvidia.health.incident_store import FILE, IncidentStore
from pydra_nvidia.simulation.simulation import open_simulation

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def machine(tmp_path: Path) -> tuple[str, ...]:
    return "--scenario", "t4", "--state", str(tmp_path / "m")


@pytest.fixture
def memory(tmp_path: Path) -> IncidentStore:
    """The backend's memory, with errors of a GPU that is there and of one that is not."""
    found = IncidentStore(str(tmp_path / "m" / "run" / FILE))
    boards = open_simulation("t4", str(tmp_path / "m")).machine.read().boards.values()
    found.note(next(board.uuid for board in boards if board.minor == 2), 79, None, 1.0)
    found.note("GPU-gone", 48, None, 2.0)
    found.note("GPU-gone", 48, None, 3.0)
    return found


def test_the_errors_of_all_gpus_are_forgotten(
    command: Run, process: Run, machine: tuple[str, ...], memory: IncidentStore
) -> None:
    ran = process("forget-errors", *machine)
    assert ran.returncode == 0
    assert len(ran.stdout.splitlines()) == 2
    assert "forgot 2 x XID 48: an uncorrectable memory error of GPU-gone" in ran.stdout
    assert memory.incidents == (), "the backend that runs takes note"
    assert command("forget-errors", *machine).stdout == "no errors are remembered of any GPU\n"


@pytest.mark.parametrize("text", ["2", "gpu-2"])
def test_those_of_one_gpu_by_its_minor_number(
    command: Run, machine: tuple[str, ...], memory: IncidentStore, text: str
) -> None:
    assert command("forget-errors", *machine, text).returncode == 0
    assert [one.gpu for one in memory.incidents] == ["GPU-gone"]


def test_those_of_a_gpu_that_is_gone_by_its_uuid(command: Run, machine: tuple[str, ...], memory: IncidentStore) -> None:
    assert command("forget-errors", *machine, "GPU-gone").returncode == 0
    assert [one.xid for one in memory.incidents] == [79]
    assert command("forget-errors", *machine, "GPU-other").stdout == "no errors are remembered of GPU-other\n"


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [("9", 1, "no GPU answers as gpu-9; there are gpu-0, gpu-1, gpu-2, gpu-3"), ("all", 2, "'all' is not a GPU")],
)
def test_a_gpu_that_there_is_not_is_refused_and_nothing_forgotten(
    command: Run, machine: tuple[str, ...], memory: IncidentStore, text: str, code: int, says: str
) -> None:
    ran = command("forget-errors", *machine, text)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert says in ran.stderr
    assert len(memory.incidents) == 2


def test_a_memory_that_cannot_be_read_is_reported_and_kept(
    command: Run, machine: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "m" / "run" / FILE
    path.parent.mkdir(parents=True)
    path.write_text("[1")
    ran = command("forget-errors", *machine)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "cannot be read" in ran.stderr
    assert path.read_text() == "[1"


def test_a_memory_that_may_not_be_looked_for_is_not_called_empty(command: Run, tmp_path: Path) -> None:
    """As for a user who may not enter the directory, which root always may."""
    (tmp_path / "file").touch()
    ran = command("forget-errors", "--state", str(tmp_path / "file" / "below"))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "earlier GPU errors cannot be read" in ran.stderr
