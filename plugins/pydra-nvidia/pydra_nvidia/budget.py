"""The time that a call has: everything in it that waits shares one end, so that waits do not add up.

Seconds of the monotonic clock. Without a budget every wait has its own time, as beside calls.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

import msgspec

CALL = 38.0
"""Seconds that preparing or unpreparing a claim may take; the agent ends the call after 40."""

RESERVE = 12.0
"""Seconds of these that are kept for undoing what a prepare began."""


class _Budget(msgspec.Struct, frozen=True):
    """`call` is the end of all, `end` that of the block."""

    began: float
    end: float
    call: float


_budget: ContextVar[_Budget | None] = ContextVar("pydra_nvidia_budget", default=None)


@contextmanager
def time_for(seconds: float) -> Generator[None]:
    """What is in the block has these seconds from now, or what is left of the time around it if that is less."""
    now, around = time.monotonic(), _budget.get()
    end = now + seconds
    inner = _Budget(now, end, end) if around is None else msgspec.structs.replace(around, end=min(around.end, end))
    token = _budget.set(inner)
    try:
        yield
    finally:
        _budget.reset(token)


@contextmanager
def doing() -> Generator[None]:
    """What is in the block leaves time for undoing it."""
    with time_for(CALL), time_for(left(CALL) - RESERVE):
        yield


@contextmanager
def undoing() -> Generator[None]:
    """What is in the block has all that is left of the call."""
    around = _budget.get()
    token = _budget.set(None if around is None else msgspec.structs.replace(around, end=around.call))
    try:
        yield
    finally:
        _budget.reset(token)


def left(at_most: float) -> float:
    """Seconds that something may take which alone would have `at_most`; 0 when the time is used up."""
    budget = _budget.get()
    return at_most if budget is None else max(0.0, min(at_most, budget.end - time.monotonic()))


def left_since_begin(at_most: float) -> float:
    """The same, where all of one kind in a call have `at_most` together, counted from when the call began."""
    budget = _budget.get()
    if budget is None:
        return at_most
    return left(max(0.0, budget.began + at_most - time.monotonic()))
