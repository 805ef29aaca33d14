"""Collects what a part reports, and waits for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import anyio

EventT = TypeVar("EventT")


class Recorder:
    """A `report` callable that remembers. `until` wakes at each event and fails after `deadline` seconds."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._news = anyio.Event()

    def __call__(self, event: Any) -> None:
        self.events.append(event)
        self._news.set()
        self._news = anyio.Event()

    def of(self, kind: type[EventT]) -> list[EventT]:
        """The events of one type."""
        return [event for event in self.events if isinstance(event, kind)]

    def clear(self) -> None:
        """Forget what came so far."""
        self.events.clear()

    async def until(self, condition: Callable[[], bool], deadline: float = 5.0) -> None:
        """Return when the condition holds; it is looked at after each event."""
        with anyio.fail_after(deadline):
            while not condition():
                await self._news.wait()

    async def next(self, kind: type[EventT], deadline: float = 5.0) -> EventT:
        """The first event of this type; waits for it."""
        await self.until(lambda: bool(self.of(kind)), deadline)
        return self.of(kind)[0]
