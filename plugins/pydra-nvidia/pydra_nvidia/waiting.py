"""How long work waits: until the end of its call, and for its turn no longer than somebody waits for it.

Everything in a call that waits shares one end, so that waits do not add up. How long a call may take is the agent's
setting, which `pydra.time_left` returns. Seconds of the monotonic clock. Without a budget every wait has its own time,
as beside calls.

A coroutine can be cancelled, its thread cannot; and a call whose threads go on counts as one that does not obey, for
which the whole process is replaced. So a thread that waits for its turn checks whether its call is still wanted. Work
that has begun is not interrupted.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from pydra import ClaimError, time_left

P = ParamSpec("P")
T = TypeVar("T")

MARGIN = 2.0
"""Seconds before the agent cancels the call in which it answers; a tenth of the call, where that is less."""

_end: ContextVar[float] = ContextVar("pydra_nvidia_end", default=math.inf)
_LOOK_SECONDS = 0.05
_unwanted: ContextVar[threading.Event | None] = ContextVar("pydra_nvidia_unwanted", default=None)


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


class Busy(ClaimError):
    """Somebody else has what is needed, and went on having it."""

    reason = "HardwareBusy"


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`asyncio.to_thread`, whose thread stops waiting for a turn when this is cancelled."""
    unwanted = threading.Event()

    def run() -> T:
        _unwanted.set(unwanted)  # in the thread's own copy of the context
        return work(*args, **kwargs)

    try:
        return await asyncio.to_thread(run)
    except asyncio.CancelledError:
        unwanted.set()
        raise


@contextmanager
def turn(lock: threading.Lock, what: str, *, patience: float = float("inf")) -> Generator[None]:
    """Have the lock. Raises Busy, naming `what`, after `patience` seconds or when nobody waits for this any more."""
    unwanted = _unwanted.get()
    began = time.monotonic()
    while not lock.acquire(timeout=min(_LOOK_SECONDS, patience)):
        waited = time.monotonic() - began
        if waited >= patience or (unwanted is not None and unwanted.is_set()):
            raise Busy(f"{what} is busy with something else for {waited:.1f} s; it is tried again")
    try:
        yield
    finally:
        lock.release()
