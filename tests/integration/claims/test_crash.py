"""A real process, killed at every step of prepare and of unprepare: the next one goes on, and nothing leaks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pydra.claims.reports import SweepCounts
from tests.integration.claims.crashing import CLAIMS
from tests.integration.claims.fakes import DRIVER, ref
from tests.integration.claims.real_node import NOTHING, RealNode

REPOSITORY = Path(__file__).parents[3]
REFS = [ref(uid) for uid in CLAIMS]
PREPARED = {
    "records": ["a.json"],
    "cdi": [f"{DRIVER}-claim_a.json"],
    "hardware": ["gpu-0", "gpu-1"],
}


@pytest.fixture(scope="module", params=["prepare", "unprepare"])
def killed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Path]]:
    root = tmp_path_factory.mktemp(request.param)
    command = [sys.executable, "-m", "tests.integration.claims.crashing", request.param, str(root)]
    done = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return request.param, sorted(root.iterdir(), key=lambda place: int(place.name))


def node_at(place: Path, copy: Path, claims: dict[str, tuple[str, ...]]) -> RealNode:
    """A node as the killed process left it, for one test alone."""
    return RealNode(Path(shutil.copytree(place, copy / place.name)), claims, lambda step: None)


def test_the_process_was_killed_between_all_effects(killed: tuple[str, list[Path]]) -> None:
    what, places = killed
    *dead, survivor = places
    steps = {(place / "step").read_text() for place in dead}
    assert not (survivor / "step").exists()
    expected = {
        "prepare": {"rename", "fsync directory", "configure device", "configured", "write into room", "fdatasync"},
        "unprepare": {"fdatasync", "free device", "freed", "unlink", "unlinked"},
    }
    assert expected[what] <= steps


async def test_the_next_instance_prepares_and_unprepares(killed: tuple[str, list[Path]], tmp_path: Path) -> None:
    for place in killed[1]:
        node = node_at(place, tmp_path, CLAIMS)
        async with node.running() as preparer:
            outcomes = await preparer.prepare(REFS)
            assert all(isinstance(outcome, tuple) for outcome in outcomes.values()), (place.name, outcomes)
            assert node.traces() == PREPARED, place.name
            assert await preparer.unprepare(REFS) == {"a": None}
            assert node.traces() == NOTHING, place.name


async def test_the_next_instance_unprepares_at_once(killed: tuple[str, list[Path]], tmp_path: Path) -> None:
    for place in killed[1]:
        node = node_at(place, tmp_path, {})
        async with node.running() as preparer:
            assert await preparer.unprepare(REFS) == {"a": None}
            assert node.traces() == NOTHING, place.name


async def test_the_next_instances_sweep_leaves_whole_claims_only(
    killed: tuple[str, list[Path]], tmp_path: Path
) -> None:
    for place in killed[1]:
        node = node_at(place, tmp_path, CLAIMS)
        async with node.running() as preparer:
            done = await node.sweep(preparer).sweep()
            assert (done.counts.failed, done.problem) == (0, "")
            assert node.traces() in (NOTHING, PREPARED), place.name
            assert (await node.sweep(preparer).sweep()).counts == SweepCounts()


async def test_a_sweep_removes_all_traces_of_claims_that_were_deleted(
    killed: tuple[str, list[Path]], tmp_path: Path
) -> None:
    for place in killed[1]:
        node = node_at(place, tmp_path, {})
        async with node.running() as preparer:
            assert (await node.sweep(preparer).sweep()).counts.failed == 0
            assert node.traces() == NOTHING, place.name
