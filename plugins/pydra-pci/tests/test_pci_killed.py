"""A process that is killed at any write leaves what another can complete, or give back."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from tests.forked import PROCESSES
from vfio_process import work_on_step

POINTS = [(1, "after"), (2, "after"), (3, "after")]
"""Between the writes nothing else changes the hardware."""


@pytest.fixture(scope="module", autouse=True)
def fork_server() -> None:
    """Of a wider scope than a test: its process outlives the test that starts it."""


async def kill(node: Any, what: str, write: int, when: str) -> None:
    process = PROCESSES.Process(target=work_on_step, args=(node.path, what, write, when))
    process.start()
    await asyncio.to_thread(process.join)
    assert process.exitcode == -signal.SIGKILL
    process.close()


@pytest.mark.parametrize(("write", "when"), POINTS)
async def test_what_was_half_done_is_given_back(node: Any, write: int, when: str) -> None:
    before, step = node.picture(), node.step()
    await kill(node, "apply", write, when)
    assert node.picture() != before
    await node.undo(step)
    assert node.picture() == before


@pytest.mark.parametrize(("write", "when"), POINTS)
async def test_what_was_half_done_is_completed(node: Any, write: int, when: str) -> None:
    before, step = node.picture(), node.step()
    await kill(node, "apply", write, when)
    await node.apply(step)
    assert (node.driver(), node.override()) == ("vfio-pci", "vfio-pci")
    await node.undo(step)
    assert node.picture() == before


@pytest.mark.parametrize(("write", "when"), POINTS)
async def test_what_was_half_undone_is_given_back(node: Any, write: int, when: str) -> None:
    before, step = node.picture(), node.step()
    await node.apply(step)
    await kill(node, "undo", write, when)
    assert node.picture() != before
    await node.undo(step)
    assert node.picture() == before
