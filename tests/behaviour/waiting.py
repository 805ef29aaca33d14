"""Waiting for what a test expects, with a deadline that is met on a slow machine too."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE = 45.0
_POLL = 0.02


def wait_for(look: Callable[[], T | None], what: str, deadline: float = DEADLINE) -> T:
    """The first result of `look` that is neither None nor False nor empty; fails, naming `what`, when there is none."""
    end = time.monotonic() + deadline
    while True:
        if found := look():
            return found
        assert time.monotonic() < end, f"not within {deadline:g} s: {what}"
        time.sleep(_POLL)
