"""A disk that answers with EIO now and then, as the kernel gives it, or not at all: each error is reported.

`test_random_histories` fails each change of a file; here system calls fail that Python does not announce, such as
`read` and `fsync`.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from threading import Event

import anyio
import pytest

from pydra.errors import CheckpointError
from tests.integration.claims.lossy_disk import write_state
from tests.integration.claims.node import NOTHING, Node
from tests.integration.claims.system_calls import needs_strace, run_failing
from tests.integration.claims.traced import CALLS, DAMAGED, make_node

REPOSITORY = Path(__file__).parents[3]
ROUNDS = 7
FAILING = {
    "openat": (10, 19),
    "read": (2, 7),
    "write": (3, 11),
    "fsync": (4, 13),
    "rename": (3, 11),
    "unlink": (2, 7),
    "pread64": (20, 29),
    "pwrite64": (10, 17),
}
"""Which calls of a thread fail: the first, and how many later again: primes, so that each place has its turn."""


@needs_strace
def test_every_error_of_the_disk_is_reported_and_the_next_try_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "node"
    write_state(DAMAGED, root)
    node = make_node(root)
    files = [file for uid in ("a", "b") for file in (node.record_file(uid), node.cdi_file(uid))]
    temporary = [Path(f"{file}.tmp") for file in files]
    paths = [root / "records", root / "cdi", root / "run" / "lock", *files, *temporary]
    paths += [node.record_file(uid).with_suffix(".undo") for uid in ("a", "b")]
    command = [sys.executable, "-m", "tests.integration.claims.traced", str(root), str(ROUNDS)]
    run_failing(command, FAILING, paths, cwd=REPOSITORY)
    lines = (root / "answers").read_text().splitlines()
    failures = [line for line in lines if line.startswith("failed")]
    advice = "failed: the disk failed to read or write: check the kernel's log and replace it (errno EIO)"
    assert [line for line in failures if advice not in line] == []
    doing = {line.partition(": ")[2].partition(" ")[0] for line in failures}
    assert doing >= {"reading", "writing", "renaming", "removing"}
    assert len(lines) - len(failures) == 2 * len(CALLS) * ROUNDS, lines[-1]
    assert node.traces() == NOTHING


@pytest.mark.parametrize("hangs", ["prepare", "unprepare"])
async def test_a_disk_that_does_not_answer_fails_the_claims_of_one_driver_until_it_does(
    tmp_path: Path, hangs: str
) -> None:
    answers = Event()

    def hang(effect: str) -> None:
        if effect == "records: rename":
            answers.wait(30)

    node, other = Node(tmp_path / "remembers", durable=True), Node(tmp_path / "forgets")
    for one in (node, other):
        one.api.allocate("a", "gpu-0")
        one.api.allocate("b", "gpu-1")
    async with node.running(flush_seconds=0.05) as agent, other.running() as beside:
        if hangs == "unprepare":
            await agent.prepare("a")
        node.step = hang
        try:
            outcomes = [*await (agent.prepare("a") if hangs == "prepare" else agent.unprepare("a"))]
            outcomes += await agent.prepare("b") + await agent.unprepare("a", "c")
            message = "the record of claim a: the disk did not answer within 0.05 s .*/records.*check the kernel's log"
            for outcome in outcomes:
                assert isinstance(outcome, CheckpointError)
                assert re.search(message, str(outcome))
            assert agent.hardware.calls == ([("prepare", "a")] if hangs == "unprepare" else [])
            assert isinstance((await beside.prepare("a"))[0], tuple)
        finally:
            answers.set()
        with anyio.fail_after(30):
            while not isinstance((await agent.prepare("b"))[0], tuple):
                await asyncio.sleep(0)
        assert isinstance((await agent.prepare("a"))[0], tuple)
        assert await agent.unprepare("a", "b") == [None, None]
    assert node.traces() == NOTHING
