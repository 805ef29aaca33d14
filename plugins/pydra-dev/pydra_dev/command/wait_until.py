"""Waiting for what a run of `pydra dev` needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio

from pydra_dev.command.run_error import RunError
from pydra_dev.output.descriptions import Paragraph
from pydra_dev.output.terminal import Progress

LOOK_INTERVAL = 0.02
"""Seconds between two looks at the API server or at a directory."""
FoundT = TypeVar("FoundT")


async def wait_until(
    what: str,
    look: Callable[[], FoundT | None],
    *,
    say: Callable[[Paragraph], None],
    deadline: float,
    refuse: Callable[[], None],
) -> FoundT:
    """What `look` finds, as soon as it finds something; raises RunError.

    `refuse` raises it when what is waited for will not happen.
    """
    progress = Progress(say, what)
    with anyio.move_on_after(deadline):
        while not (found := look()):
            refuse()
            progress.look()
            await anyio.sleep(LOOK_INTERVAL)
        return found
    raise RunError(f"timed out after {deadline:g} s waiting until {what}")
