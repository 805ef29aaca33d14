"""A process that is killed at any write leaves what another can complete, or give back."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = str(Path(__file__).with_name("killed.py"))
POINTS = [("1", "before"), ("1", "after"), ("2", "after"), ("3", "after")]
"""Between the writes nothing else changes the hardware."""


async def kill(node: Any, what: str, write: str, when: str) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, SCRIPT, str(node.path), what, write, when)
    assert await process.wait() == -signal.SIGKILL


@pytest.mark.parametrize(("write", "when"), POINTS)
async def test_what_was_half_done_is_given_back(node: Any, write: str, when: str) -> None:
    before, step = node.picture(), node.step()
    await kill(node, "apply", write, when)
    assert node.picture() != before
    await node.operator().undo(step, node.entry(step))
    assert node.picture() == before


@pytest.mark.parametrize(("write", "when"), POINTS)
async def test_what_was_half_done_is_completed(node: Any, write: str, when: str) -> None:
    before, step = node.picture(), node.step()
    await kill(node, "apply", write, when)
    await node.operator().apply(step, node.entry(step))
    assert (node.driver(), node.override()) == ("vfio-pci", "vfio-pci")
    await node.operator().undo(step, node.entry(step))
    assert node.picture() == before


@pytest.mark.parametrize(("write", "when"), POINTS[1:])
async def test_what_was_half_undone_is_given_back(node: Any, write: str, when: str) -> None:
    before, step = node.picture(), node.step()
    await node.operator().apply(step, node.entry(step))
    await kill(node, "undo", write, when)
    assert node.picture() != before
    await node.operator().undo(step, node.entry(step))
    assert node.picture() == before
