"""SIGTERM in the middle of the start: the agent ends at once and in order, though nothing listens to signals yet.

A signal without a handler does not reach process 1 of a container, so that a handler must be there.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from pydra_dev.node import run_node
from tests.integration.agent.process import DEADLINE, Agent, run_agent


def heeds(pid: int) -> bool:
    """Whether the process has a handler for SIGTERM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (caught,) = (line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def children(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


MOMENTS: dict[str, Callable[[Agent], bool]] = {
    "before its parts are imported": lambda agent: heeds(agent.process.pid),
    "when a backend is spawned": lambda agent: bool(children(agent.process.pid)),
    "when it says its first word": lambda agent: bool(agent.log.read_text()),
}


@pytest.mark.parametrize("moment", MOMENTS)
async def test_an_agent_that_is_told_to_stop_while_it_starts_ends_with_0_and_leaves_nothing(moment: str) -> None:
    async with run_node(lambda _: None) as node, run_agent(node, "--backend", "sim") as agent:
        with anyio.fail_after(DEADLINE):
            while not MOMENTS[moment](agent):
                await anyio.sleep(0.001)
        spawned = children(agent.process.pid)
        assert await agent.stop() == 0
        assert "Traceback" not in agent.log.read_text()
        assert list(Path(node.root).rglob("*sim*.sock")) == []
        with anyio.fail_after(DEADLINE):
            while [pid for pid in spawned if Path(f"/proc/{pid}/exe").exists()]:
                await anyio.sleep(0.01)
