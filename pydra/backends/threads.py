"""Threads for `asyncio.to_thread` that remember which call they work for.

A coroutine can be cancelled, the thread it waits for cannot. A cancelled call is over only when its
threads are: until then they may still touch the hardware.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_work: ContextVar[set[Future[object]] | None] = ContextVar("pydra_call_threads", default=None)


class CallThreads(ThreadPoolExecutor):
    """The default executor of a backend's event loop."""

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run in a thread, on the account of the call whose task asks for it."""
        future = super().submit(fn, *args, **kwargs)
        work = _work.get()
        if work is not None:
            work.add(future)  # type: ignore[arg-type]  # Future is invariant; only done() is asked of it
            future.add_done_callback(work.discard)
        return future


def account_for_threads() -> set[Future[object]]:
    """Begin the account of the current task, and of what it starts; holds the threads that still run."""
    work: set[Future[object]] = set()
    _work.set(work)
    return work


async def wait_ended(work: set[Future[object]]) -> None:
    """Wait until the threads of an account have ended, whatever their result."""
    for future in tuple(work):
        if not future.cancel():  # still queued: it never starts
            await asyncio.wait([asyncio.wrap_future(future)])
