"""What the supervisor reports of the backend's process during a run, and what ends because of it."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

import anyio

from pydra.backends.supervisor_events import BackendEnded, BackendEvent, BackendFacts, BackendTrouble, Trouble


class BackendEvents:
    """The events of one run. `hopeless` says why no further call can be made; it is empty while one can."""

    def __init__(self) -> None:
        self.hopeless = ""
        self._events: list[BackendEvent] = []
        self._starting: anyio.CancelScope | None = None
        self._interruptible: list[anyio.CancelScope] = []

    def hear(self, event: BackendEvent) -> None:
        """Handle an event of the supervisor. The first failure to start is enough: the agent would keep trying."""
        self._events.append(event)
        match event:
            case BackendEnded() | BackendTrouble(trouble=Trouble.START) if self._starting is not None:
                self._starting.cancel()
            case BackendTrouble(trouble=Trouble.RESTORE):  # no call is made before it succeeds
                self._give_up("restore failed")
            case BackendTrouble(trouble=Trouble.HINTS, ended=True):  # it would do so again
                self._give_up("wait_changed ended the process")

    async def wait_started(self, ready: Awaitable[BackendFacts], limit: float) -> BackendFacts | None:
        """Return what the backend is; None if a start fails, or after so many seconds. Raises SettingsError."""
        try:
            with anyio.move_on_after(limit) as self._starting:
                return await ready
            return None
        finally:
            self._starting = None

    @contextmanager
    def until_hopeless(self) -> Iterator[anyio.CancelScope]:
        """End what is inside, and nothing around it, when no further call can be made."""
        with anyio.CancelScope() as scope:
            self._interruptible.append(scope)
            try:
                yield scope
            finally:
                self._interruptible.pop()

    def describe(self, trouble: Trouble) -> list[str]:
        """Return what there was of such trouble."""
        events = (event for event in self._events if isinstance(event, BackendTrouble) and event.trouble is trouble)
        return list(dict.fromkeys(f"{event.message}\n{event.details}".strip() for event in events))

    def describe_ends(self) -> list[str]:
        """Return how the processes have ended."""
        return [event.diagnosis.report for event in self._events if isinstance(event, BackendEnded)]

    def _give_up(self, why: str) -> None:
        self.hopeless = why
        if self._interruptible:
            self._interruptible[-1].cancel()
