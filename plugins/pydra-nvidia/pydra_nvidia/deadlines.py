"""The time that a call has: everything in it that waits shares one end, so that waits do not add up.

How long a call may take is the agent's setting, which `pydra.time_left` returns. Seconds of the monotonic clock.
Without a budget every wait has its own time, as beside calls.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from pydra import time_left

MARGIN = 2.0
"""Seconds before the agent cancels the call in which it answers; a tenth of the call, where that is less."""

_end: ContextVar[float] = ContextVar("pydra_nvidia_end", default=math.inf)


@contextmanager
def time_for(seconds: float) -> Generator[None]:
    """What is in the block has these seconds from now, or what is left of the time around it if that is less."""
    token = _end.set(min(_end.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _end.reset(token)


@contextmanager
def call_time() -> Generator[None]:
    """The block is a call of the agent's: it has what the agent gives it."""
    given = time_left()
    with time_for(given - min(MARGIN, given / 10)):
        yield


def left(at_most: float) -> float:
    """Seconds that something may take which alone would have `at_most`; 0 when the time is used up."""
    return max(0.0, min(at_most, _end.get() - time.monotonic()))
