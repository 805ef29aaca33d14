"""What went wrong survives the process that saw it, and a file that cannot be used costs no more than the memory."""

from __future__ import annotations

import fcntl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydra_nvidia.hardware_types import Placement
from pydra_nvidia.health.incident_store import IncidentStore


def test_an_incident_is_remembered_by_the_next_process_and_counted_together(tmp_path: Path) -> None:
    path = str(tmp_path / "state" / "health.json")
    first = IncidentStore(path)
    first.note("GPU-0", 79, None, 1.0)
    first.note("GPU-0", 79, None, 5.0)
    first.note("GPU-0", 95, Placement(0, 1), 3.0)
    fallen, inside = IncidentStore(path).incidents
    assert (fallen.xid, fallen.first, fallen.last, fallen.count) == (79, 1.0, 5.0, 2)
    assert (inside.xid, inside.place) == (95, Placement(0, 1))


def test_what_is_over_is_forgotten_for_good_but_still_counted(tmp_path: Path) -> None:
    path = str(tmp_path / "health.json")
    memory = IncidentStore(path)
    memory.note("GPU-0", 79, None, 1.0)
    memory.note("GPU-1", 79, None, 1.0)
    memory.forget(lambda one: one.gpu == "GPU-0")
    assert [one.gpu for one in IncidentStore(path).incidents] == ["GPU-1"]
    assert memory.counts == {("GPU-0", 79): 1, ("GPU-1", 79): 1}


def test_a_file_that_is_no_memory_is_reported_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    path.write_text("[1")
    said: list[str] = []
    memory = IncidentStore(str(path), said.append)
    assert "cannot be read" in said[0]
    memory.note("GPU-0", 48, None, 1.0)
    assert len(IncidentStore(str(path)).incidents) == 1


def test_a_disk_that_takes_nothing_costs_only_the_memory(tmp_path: Path) -> None:
    tmp_path.joinpath("state").write_text("a file, not a directory")
    said: list[str] = []
    memory = IncidentStore(str(tmp_path / "state" / "health.json"), said.append)
    memory.note("GPU-0", 48, None, 1.0)
    assert len(memory.incidents) == 1
    assert "cannot be remembered" in said[-1]


def test_what_another_process_forgets_is_forgotten_here_too(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    backend = IncidentStore(str(path))
    backend.note("GPU-0", 79, None, 1.0)
    backend.note("GPU-1", 48, None, 2.0)
    IncidentStore(str(path)).forget(lambda one: one.gpu == "GPU-0")
    assert [one.gpu for one in backend.incidents] == ["GPU-1"]
    backend.note("GPU-2", 48, None, 3.0)
    assert [one.gpu for one in IncidentStore(str(path)).incidents] == ["GPU-1", "GPU-2"]
    path.unlink()
    assert backend.incidents == ()
    assert backend.counts == {("GPU-0", 79): 1, ("GPU-1", 48): 1, ("GPU-2", 48): 1}


def test_two_who_write_at_once_lose_nothing_of_each_other(tmp_path: Path) -> None:
    path = str(tmp_path / "health.json")

    def write(gpu: str) -> None:
        memory = IncidentStore(path)
        for xid in range(25):
            memory.note(gpu, xid, None, 1.0)
            memory.forget(lambda one: one.gpu == gpu and one.xid % 5 == 4)

    with ThreadPoolExecutor() as threads:
        list(threads.map(write, ("GPU-0", "GPU-1", "GPU-2")))
    assert len(IncidentStore(path).incidents) == 3 * 20


def test_one_who_hangs_while_it_writes_holds_nobody_up(tmp_path: Path) -> None:
    memory = IncidentStore(str(tmp_path / "health.json"))
    with open(tmp_path / "health.json.lock", "wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        memory.note("GPU-0", 79, None, 1.0)
    assert len(IncidentStore(str(tmp_path / "health.json")).incidents) == 1


def test_what_another_process_garbled_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    said: list[str] = []
    memory = IncidentStore(str(path), said.append)
    memory.note("GPU-0", 79, None, 1.0)
    path.write_text("[")
    assert memory.incidents == memory.incidents == ()
    assert len(said) == 1
