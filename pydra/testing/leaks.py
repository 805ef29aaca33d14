"""What repeated calls of a backend leave behind: tasks, threads and descriptors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import pairwise

import anyio

from pydra.backends.child.conformance_main import Observation, Order
from pydra.backends.wire import Method
from pydra.errors import PydraError
from pydra.message_text import list_names
from pydra.testing.process_failures import BackendEvents
from pydra.testing.rules import Rule
from pydra.testing.session import Session

_CYCLES = 4
_SETTLE_SECONDS = 1.0


class Leaks:
    """What repeated calls leave behind, by the rule that it breaks: a problem if every call adds to it."""

    def __init__(self, session: Session, events: BackendEvents) -> None:
        self._session = session
        self._events = events
        self.problems: dict[Rule, list[str]] = {rule: [] for rule in _COUNTED}

    async def look(self, method: Method, name: str, call: Callable[[int], Awaitable[object]]) -> None:
        """Make the call several times, and compare what is open after each call of `method`, which is a part of it.

        What is still open a while later is left behind. Whether the call fails is for other rules to tell.
        """
        with self._events.until_hopeless(), suppress(PydraError):
            counts = [await self._count(method, call, place) for place in range(_CYCLES)]
            if any(_find_growth(counts, rule) for rule in _COUNTED):
                await anyio.sleep(_SETTLE_SECONDS)
                counts = [counts[0], *counts[2:], await self._count(method, call, _CYCLES)]
            for rule in _COUNTED:
                if left := _find_growth(counts, rule):
                    said = f"{name}, done several times, left {len(left)} more: {list_names(left, 3)}"
                    self.problems[rule].append(said)

    async def _count(self, method: Method, call: Callable[[int], Awaitable[object]], place: int) -> Observation:
        with self._session.ordered(Order(method=method, count=True)):
            await call(place)
        return self._session.last(method)


_COUNTED: Mapping[Rule, Callable[[Observation], tuple[str, ...] | None]] = {
    Rule.LEAKED_TASKS: lambda one: one.tasks,
    Rule.LEAKED_THREADS: lambda one: one.threads,
    Rule.LEAKED_DESCRIPTORS: lambda one: one.descriptors,
}


def _find_growth(observed: list[Observation], rule: Rule) -> list[str]:
    """Return what there is more of, if there was more of it after each of the calls."""
    counts = [_COUNTED[rule](one) or () for one in observed]
    if not all(len(before) < len(after) for before, after in pairwise(counts)):
        return []
    return sorted((Counter(counts[-1]) - Counter(counts[0])).elements())
