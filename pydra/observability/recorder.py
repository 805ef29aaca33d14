"""Sends Kubernetes Events, in their own task: nobody who has something to say waits for the API server."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Protocol

import anyio

from pydra.errors import KubeError, NotFound
from pydra.observability.events import Create, EventBook, Notice, Repeat

_log = logging.getLogger(__name__)
_WAITING = 256


class EventWriter(Protocol):
    """The two requests that Events need."""

    async def create_event(self, namespace: str, body: dict[str, Any]) -> None:
        """Write a new Event."""
        ...

    async def patch_event(self, namespace: str, name: str, body: dict[str, Any]) -> None:
        """Merge into an Event."""
        ...


class EventRecorder:
    """`record` never blocks; `run` sends. When the API server is slower than the trouble, the newest are dropped."""

    def __init__(
        self, writer: EventWriter, book: EventBook, *, report: Callable[[str], None] = lambda result: None
    ) -> None:
        self._writer = writer
        self._book = book
        self._report = report
        self._send, self._receive = anyio.create_memory_object_stream[Notice](_WAITING)

    def record(self, notice: Notice) -> None:
        """Queue the notice."""
        try:
            self._send.send_nowait(notice)
        except (anyio.WouldBlock, anyio.ClosedResourceError):
            self._report("dropped")
            _log.warning("Event dropped, too many wait, or the agent stops: %s %s", notice.reason, notice.note)

    async def run(self) -> None:
        """Send until cancelled. An Event that cannot be written is given up: the log has its words too."""
        async with self._send, self._receive:
            async for notice in self._receive:
                stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                write = self._book.decide(notice, now=monotonic(), stamp=stamp, suffix=secrets.token_hex(8))
                if write is not None:
                    await self._write(write)

    async def _write(self, write: Create | Repeat) -> None:
        try:
            if isinstance(write, Create):
                await self._writer.create_event(write.namespace, write.body)
            else:
                await self._writer.patch_event(write.namespace, write.name, write.body)
        except NotFound:
            # The namespace, or the Event itself (they expire after an hour), is gone: there is nobody to tell.
            self._report("gone")
        except KubeError as error:
            self._report("failed")
            _log.warning("Event not written: %s", error)
        else:
            self._report("ok")
