"""What repeated calls of a backend leave behind: tasks, threads and descriptors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import pairwise

import anyio

from pydra.backends.child.conformance_main import Observation, Order
from pydra.backends.wire import Method
from pydra.errors import PydraError
from pydra.message_text import list_names
from pydra.testing.process_failures import BackendEvents
from pydra.testing.session import Session

_CYCLES = 4
_SETTLE_SECONDS = 1.0


class Leaks:
    """What repeated calls leave behind: tasks, threads and descriptors, each a problem if every call adds to them."""

    def __init__(self, session: Session, events: BackendEvents) -> None:
        self._session = session
        self._events = events
        self.tasks: list[str] = []
        self.threads: list[str] = []
        self.descriptors: list[str] = []

    async def look(self, method: Method, name: str, call: Callable[[int], Awaitable[object]]) -> None:
        """Make the call several times, and compare what is open after each call of `method`, which is a part of it.

        What is still open a while later is left behind. Whether the call fails is for other rules to tell.
        """
        with self._events.until_hopeless(), suppress(PydraError):
            counts = [await self._count(method, call, place) for place in range(_CYCLES)]
            if any(_grows(counts)):
                await anyio.sleep(_SETTLE_SECONDS)
                counts = [counts[0], *counts[2:], await self._count(method, call, _CYCLES)]
            tasks, threads, descriptors = _grows(counts)
            self.tasks += _describe(name, tasks)
            self.threads += _describe(name, threads)
            self.descriptors += _describe(name, descriptors)

    async def _count(self, method: Method, call: Callable[[int], Awaitable[object]], place: int) -> Observation:
        with self._session.ordered(Order(method=method, count=True)):
            await call(place)
        return self._session.last(method)


def _grows(counts: list[Observation]) -> tuple[list[str], list[str], list[str]]:
    """Return which tasks, threads and descriptors there are more of after each of the calls."""
    return (
        _find_growth([one.tasks or () for one in counts]),
        _find_growth([one.threads or () for one in counts]),
        _find_growth([one.descriptors or () for one in counts]),
    )


def _find_growth(counts: list[tuple[str, ...]]) -> list[str]:
    if not all(len(before) < len(after) for before, after in pairwise(counts)):
        return []
    return sorted((Counter(counts[-1]) - Counter(counts[0])).elements())


def _describe(name: str, left: list[str]) -> list[str]:
    if not left:
        return []
    return [f"{name}, done several times, left {len(left)} more: {list_names(left, 3)}"]
