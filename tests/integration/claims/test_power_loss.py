"""The power fails after any system call: whatever the disk has kept of it, no claim is lost, half there or left over.

Of a backend whose hardware remembers (`SURVIVES_REBOOT`): the records of others, and all CDI files, are on a tmpfs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pydra.checkpoint.record import Stage
from tests.integration.claims.lossy_disk import Disk, State, write_state
from tests.integration.claims.node import NOTHING, Node
from tests.integration.claims.system_calls import needs_strace, record
from tests.integration.claims.traced import DAMAGED, make_node

REPOSITORY = Path(__file__).parents[3]
HELD = ("gpu-0", "gpu-1", "slot-0", "slot-1")

pytestmark = needs_strace


@dataclass(frozen=True, kw_only=True)
class Crash:
    """What is there when the power is back: records on the disk, hardware, and what the kubelet was answered."""

    disk: State
    hardware: State
    told: tuple[str, ...]


@pytest.fixture(scope="module")
def crashes(tmp_path_factory: pytest.TempPathFactory) -> list[Crash]:
    root = tmp_path_factory.mktemp("power") / "node"
    write_state(DAMAGED, root)
    command = [sys.executable, "-m", "tests.integration.claims.traced", str(root), "1"]
    disk, hardware, told = Disk(DAMAGED), Disk({}), b""
    found: dict[tuple[object, ...], Crash] = {}
    for effect in record(command, root, cwd=REPOSITORY):
        match effect.path.partition("/")[0]:
            case "answers":
                told += effect.content
            case "hardware":
                hardware.apply(effect)
            case "records" | ".":
                disk.apply(effect)
        for state in disk.states_after_loss():
            crash = Crash(disk=state, hardware=hardware.now(), told=tuple(told.decode().splitlines()))
            found[frozenset(state.items()), frozenset(crash.hardware), crash.told] = crash
    return list(found.values())


def nodes(crashes: list[Crash], place: Path) -> Iterator[tuple[Node, Crash, str]]:
    """The node after each crash, booted again."""
    for number, crash in enumerate(crashes):
        node = make_node(place / str(number))
        write_state(crash.disk, node.root)
        write_state(crash.hardware, node.root)
        node.boot_id = "boot-2"
        yield node, crash, f"crash {number}: {crash}"


def test_the_power_fails_at_every_step_and_loses_what_was_not_flushed(crashes: list[Crash]) -> None:
    assert {crash.told[-1:] for crash in crashes} >= {
        (),
        ("unprepared c",),
        ("prepare a",),
        ("prepared a",),
        ("unprepared b",),
    }
    contents = {content for crash in crashes for path, content in crash.disk.items() if path.endswith(".tmp")}
    assert any(content and not content.endswith(b"\n") for content in contents), "a file that is half written"


async def test_no_answer_is_forgotten_and_nothing_was_done_to_hardware_without_a_record(
    crashes: list[Crash], tmp_path: Path
) -> None:
    for node, crash, about in nodes(crashes, tmp_path):
        async with node.running() as agent:
            records = agent.store.records
            assert "unprepared c" not in crash.told or (agent.store.unreadable, node.reported) == ({}, []), about
            for uid in ("a", "b"):
                if f"prepared {uid}" in crash.told and f"unprepare {uid}" not in crash.told:
                    assert records[uid].stage is Stage.COMPLETED, about
                if f"unprepared {uid}" in crash.told:
                    assert uid not in records, about
            assert all(set(agent.hardware.owners(name)) <= records.keys() for name in HELD), about


async def test_the_claim_that_the_node_has_now_is_prepared_at_once_and_all_of_it_ends(
    crashes: list[Crash], tmp_path: Path
) -> None:
    for node, crash, about in nodes(crashes, tmp_path):
        current, gone = ("b", "a") if "unprepared a" in crash.told else ("a", "b")
        del node.api.claims[gone]
        async with node.running() as agent:
            (outcome,) = await agent.prepare(current)
            assert isinstance(outcome, tuple), about
            assert {name: agent.hardware.owners(name) for name in HELD} == {name: [current] for name in HELD}, about
            done = await agent.garbage.collect()
            assert (done.counts.failed, done.problem) == (0, ""), about
            traces = node.traces()
            assert (traces["records"], traces["hardware"]) == ([f"{current}.json"], [*HELD]), about
            assert await agent.unprepare(current) == [None], about
            assert node.traces() == NOTHING, about
