"""Records Kubernetes Events with deduplication and rate limiting.

Repetitions are counted in the existing Event (`series`) instead of creating new ones, and an object that keeps failing
gets only a few Events a minute. `EventBook` decides that, without a clock or I/O; `EventRecorder` writes in a task of
its own, so callers do not wait for the API server.
Source: Kubernetes API reference, events.k8s.io/v1 Event (note at most 1024 bytes, reason 128).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import anyio
import msgspec

from pydra.errors import KubeError, NotFound

_log = logging.getLogger(__name__)
_WAITING = 256

NOTE_BYTES = 1024
REMEMBERED = 1000
SERIES_SECONDS = 600.0
QUIET_SECONDS = 10.0


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The object an Event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What to say: a stable `reason`, and a `note` for the person who reads it."""

    subject: Subject
    reason: str
    note: str
    action: str
    warning: bool = True


class Create(msgspec.Struct, frozen=True):
    """Write a new Event."""

    namespace: str
    body: dict[str, Any]


class Repeat(msgspec.Struct, frozen=True):
    """Count one more in an Event that was written before."""

    namespace: str
    name: str
    body: dict[str, Any]


class _Said(msgspec.Struct):
    name: str
    first: float
    last_written: float
    count: int


class EventBook:
    """What was said lately, at most `REMEMBERED` things; decides what an Event costs. No clock, no I/O."""

    def __init__(self, *, controller: str, instance: str, default_namespace: str) -> None:
        self._controller = controller
        self._instance = instance[:128]
        self._default_namespace = default_namespace
        self._said: dict[tuple[str, str, str, str], _Said] = {}

    def decide(self, notice: Notice, *, now: float, stamp: str, suffix: str) -> Create | Repeat | None:
        """What to write for the notice, or None when it was written moments ago.

        `now` is in monotonic seconds, `stamp` the same moment in RFC 3339 with microseconds, `suffix`
        makes a new Event's name unique.
        """
        subject = notice.subject
        namespace = subject.namespace or self._default_namespace
        note = shorten(notice.note, NOTE_BYTES)
        key = (subject.uid or f"{namespace}/{subject.name}", notice.reason, notice.action, note)
        said = self._said.get(key)
        if said is not None and now - said.first < SERIES_SECONDS:
            said.count += 1
            if now - said.last_written < QUIET_SECONDS:
                return None
            said.last_written = now
            return Repeat(namespace, said.name, {"series": {"count": said.count, "lastObservedTime": stamp}})
        self._said.pop(key, None)
        while len(self._said) >= REMEMBERED:
            self._said.pop(next(iter(self._said)))
        name = f"{subject.name[:200].rstrip('-.')}.{suffix}"  # still a DNS subdomain where the cut falls
        self._said[key] = _Said(name, now, now, 1)
        return Create(namespace, self._build(notice, note=note, name=name, namespace=namespace, stamp=stamp))

    def _build(self, notice: Notice, *, note: str, name: str, namespace: str, stamp: str) -> dict[str, Any]:
        subject = notice.subject
        regarding = {
            "apiVersion": subject.api_version,
            "kind": subject.kind,
            "name": subject.name,
            **({"namespace": subject.namespace} if subject.namespace else {}),
            **({"uid": subject.uid} if subject.uid else {}),
        }
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": stamp,
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "action": notice.action,
            "reason": notice.reason[:128],
            "regarding": regarding,
            "note": note,
            "type": "Warning" if notice.warning else "Normal",
        }


class EventRecorder:
    """`record` never waits; `run` writes. When the API server is slower than the trouble, the newest are dropped.

    `write` makes the request of a Create or Repeat, or raises KubeError; `report` hears of every result.
    """

    def __init__(
        self,
        write: Callable[[Create | Repeat], Awaitable[None]],
        book: EventBook,
        *,
        report: Callable[[str], None] = lambda result: None,
    ) -> None:
        self._write = write
        self._book = book
        self._report = report
        self._send, self._receive = anyio.create_memory_object_stream[Notice](_WAITING)

    def record(self, notice: Notice) -> None:
        """Queue the notice."""
        try:
            self._send.send_nowait(notice)
        except (anyio.WouldBlock, anyio.ClosedResourceError):
            self._report("dropped")
            _log.warning("Event dropped: too many wait, or the agent stops: %s %s", notice.reason, notice.note)

    async def run(self) -> None:
        """Write until cancelled. An Event that cannot be written is given up: the log has its words too."""
        async with self._send, self._receive:
            async for notice in self._receive:
                stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                write = self._book.decide(notice, now=monotonic(), stamp=stamp, suffix=secrets.token_hex(8))
                if write is not None:
                    await self._try(write)

    async def _try(self, write: Create | Repeat) -> None:
        try:
            await self._write(write)
        except NotFound:
            # The namespace, or the Event itself (they expire after an hour), no longer exists: nobody can read it.
            self._report("gone")
        except KubeError as error:
            self._report("failed")
            _log.warning("Event not written: %s", error)
        else:
            self._report("ok")


def shorten(text: str, limit: int) -> str:
    """At most `limit` bytes of UTF-8, with `...` where something is missing, and never half a character."""
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    return encoded[: limit - 3].decode(errors="ignore") + "..."
