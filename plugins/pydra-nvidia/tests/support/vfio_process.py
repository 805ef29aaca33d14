"""What a process does that is killed at one of its writes to a simulated machine's files."""

from __future__ import annotations

import asyncio
import runpy


def work_on_step(conftest: str, folder: str, what: str, write: int, when: str) -> None:
    """Apply or undo the step of the node in this folder; `conftest` is the file that describes such nodes."""
    node = runpy.run_path(conftest)["Node"](folder)
    node.die_at_write(write, before=when == "before")
    applier = node.applier()
    step = node.step()
    asyncio.run(getattr(applier, what)(step, node.entry(step)))
