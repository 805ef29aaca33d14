"""The steps of a run of `pydra dev`: waiting for one, and the error of one that does not happen, which ends the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import anyio

from pydra.errors import PydraError
from pydra_dev.output.descriptions import Paragraph
from pydra_dev.output.terminal import Progress

LOOK_INTERVAL = 0.02
"""Seconds between two looks at the API server or at a directory."""
FoundT = TypeVar("FoundT")


class RunError(Exception):
    """A step did not happen; the text says which one. `explained`: what was printed before says why."""

    def __init__(self, text: str, details: Sequence[str] = (), *, explained: bool = False) -> None:
        self.details = tuple(details)
        self.explained = explained
        super().__init__(text)


def describe_failure(error: PydraError | RunError, details: tuple[str, ...] = ()) -> Paragraph:
    """Why a run has failed; `details` come after those of the error."""
    own = error.details if isinstance(error, RunError) else ()
    headline, *more = f"FAILED: {error}".splitlines()
    return Paragraph(headline=headline, details=(*more, *own, *details))


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
