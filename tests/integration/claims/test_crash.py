"""A real process, killed at every step of prepare and of unprepare: the next one goes on, and nothing leaks."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pydra.claims.gc import GarbageCounts
from tests.integration.claims.crashing import CLAIM, DEVICES, make_node
from tests.integration.claims.node import DRIVER, NOTHING, Node

REPOSITORY = Path(__file__).parents[3]
STEPS = {
    "prepare": {
        *(f"{place}: {effect}" for place in ("records", "cdi") for effect in ("create", "write", "rename")),
        *("configure device", "configured"),
    },
    "unprepare": {"cdi: unlink", "records: rename", "free device", "freed", "records: unlink"},
}

Killed = tuple[str, str, list[Path]]


@pytest.fixture(scope="module", params=["volatile", "planned", "steps"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["prepare", "unprepare"])
def killed(kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    root = tmp_path_factory.mktemp(request.param)
    command = [sys.executable, "-m", "tests.integration.claims.crashing", request.param, kind, str(root)]
    done = subprocess.run(command, cwd=REPOSITORY, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return request.param, kind, sorted(root.iterdir(), key=lambda place: int(place.name))


def nodes(killed: Killed, copies: Path, *, with_claim: bool) -> list[Node]:
    """The nodes as the killed processes left them, for one test alone."""
    found = []
    for place in killed[2]:
        copy = Path(shutil.copytree(place, copies / place.name))
        node = make_node(copy, killed[1])
        if with_claim:
            node.api.allocate(CLAIM, *DEVICES)
        found.append(node)
    return found


def prepared(killed: Killed) -> dict[str, list[str]]:
    slots = [] if killed[1] == "volatile" else ["slot-0", "slot-1"]
    slots = ["mode", *slots] if killed[1] == "steps" else slots
    specs, files = [], []
    if killed[1] == "planned":
        specs = [f"{DRIVER}_metadata_a_{request}.json" for request in ("r0", "r1")]
        files = [f"ns_claim-a{path}" for path in ("", "/r0", "/r0/metadata.json", "/r1", "/r1/metadata.json")]
    cdi = [f"{DRIVER}-claim_a.json", *specs]
    return {"records": ["a.json"], "cdi": cdi, "hardware": [*DEVICES, *slots], "metadata": files}


def test_the_process_was_killed_between_all_effects(killed: Killed) -> None:
    what, kind, places = killed
    *dead, survivor = places
    steps = {(place / "step").read_text() for place in dead}
    assert not (survivor / "step").exists()
    assert STEPS[what] <= steps
    assert ("take slot" in steps) == (what == "prepare" and kind != "volatile")


async def test_the_next_instance_prepares_and_unprepares(killed: Killed, tmp_path: Path) -> None:
    for node in nodes(killed, tmp_path, with_claim=True):
        async with node.running() as agent:
            (outcome,) = await agent.prepare(CLAIM)
            assert isinstance(outcome, tuple), (node.root.name, outcome)
            assert node.traces() == prepared(killed), node.root.name
            assert await agent.unprepare(CLAIM) == [None]
            assert node.traces() == NOTHING, node.root.name


async def test_the_next_instance_unprepares_at_once(killed: Killed, tmp_path: Path) -> None:
    for node in nodes(killed, tmp_path, with_claim=False):
        async with node.running() as agent:
            assert await agent.unprepare(CLAIM) == [None]
            assert node.traces() == NOTHING, node.root.name


async def test_garbage_collection_leaves_whole_claims_only(killed: Killed, tmp_path: Path) -> None:
    for node in nodes(killed, tmp_path, with_claim=True):
        async with node.running() as agent:
            done = await agent.garbage.collect()
            assert (done.counts.failed, done.problem) == (0, "")
            assert node.traces() in (NOTHING, prepared(killed)), node.root.name
            assert (await agent.garbage.collect()).counts == GarbageCounts()


async def test_garbage_collection_removes_all_traces_of_claims_that_were_deleted(
    killed: Killed, tmp_path: Path
) -> None:
    for node in nodes(killed, tmp_path, with_claim=False):
        async with node.running() as agent:
            assert (await agent.garbage.collect()).counts.failed == 0
            assert node.traces() == NOTHING, node.root.name
