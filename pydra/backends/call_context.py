"""The context of the running call, for backends: its time left, the claims that the node holds, its status."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar

from pydra.claim import HeldClaim

call_deadline: ContextVar[float] = ContextVar("pydra_call_deadline", default=math.inf)
"""When the running call will be cancelled, on the clock of `time.monotonic`; set by the backend's process."""


def time_left() -> float:
    """Return the seconds until the running call is cancelled, at least 0; `inf` outside a call or without a deadline.

    Works in the coroutine, in the tasks that it starts and in `asyncio.to_thread`.
    """
    return max(0.0, call_deadline.get() - time.monotonic())


class HeldCopy:
    """The copy of the held claims in the backend's process, which sets `read`."""

    def __init__(self) -> None:
        self.read: Callable[[], tuple[HeldClaim, ...]] = tuple


held_copy = HeldCopy()


def held_claims() -> tuple[HeldClaim, ...]:
    """Return the claims that this node holds, in the order of their uids, as the agent's records have them.

    Never older than the running call, and kept up to date between calls, for backends with `plan` or `restore`; empty
    for others. Works wherever `time_left` does. Do not change these objects.
    """
    return held_copy.read()


call_status: ContextVar[list[str] | None] = ContextVar("pydra_call_status", default=None)
"""The last status of the running call; a list, since threads of the call have a copy of its context."""


def set_status(text: str) -> None:
    """Say in a few words what the running call is doing, such as `resetting card-3`, before something that may hang.

    A call that takes long is reported with its status. Cheap, and works wherever `time_left` does.
    """
    if (status := call_status.get()) is not None:
        status[:] = (text,)
