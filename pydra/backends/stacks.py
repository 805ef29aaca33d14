"""Where a suspended coroutine waits: the stack that a signal handler cannot see."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any


def format_wait(coroutine: Any) -> str:
    """The frames from the coroutine down to what it awaits, as in a traceback; empty when it has ended."""
    frames = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in _frames(coroutine))
    return "".join(frames.format())


def _frames(awaitable: Any) -> Iterator[FrameType]:
    while awaitable is not None:
        frame = getattr(awaitable, "cr_frame", None) or getattr(awaitable, "ag_frame", None)
        if frame is not None:
            yield frame
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "ag_await", None)
