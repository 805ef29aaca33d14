"""Work in threads, and locks that threads wait for no longer than somebody waits for them.

A coroutine can be cancelled, its thread cannot; and a call whose threads go on counts as one that does not obey, for
which the whole process is replaced. So a thread that waits for its turn checks whether its call is still wanted. Work
that has begun is not interrupted.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from pydra import ClaimError

P = ParamSpec("P")
T = TypeVar("T")
_LOOK_SECONDS = 0.05
_unwanted: ContextVar[threading.Event | None] = ContextVar("pydra_nvidia_unwanted", default=None)


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
