"""Records Kubernetes Events through a client, with deduplication and rate limiting.

Repetitions are counted in the existing Event (`series`) instead of creating new ones, and an object that keeps failing
gets only a few Events a minute. `EventDeduplicator` decides that, without a clock or I/O; `EventRecorder` writes in a
task of its own, so callers do not wait for the API server. Source: Kubernetes API reference, events.k8s.io/v1 Event
(note at most 1024 bytes, reason 128).
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import anyio
import msgspec

from pydra.errors import KubeError, NotFound
from pydra.kube.api_resources import EVENTS
from pydra.kube.client import KubeClient
from pydra.message_text import cut_bytes, escape

_log = logging.getLogger(__name__)
_WAITING = 256
_DEFAULT_NAMESPACE = "default"
"""Of Events about objects that have none."""

NOTE_BYTES = 1024
REMEMBERED = 1000
DIFFERENT = 25
"""How many different notes an object gets for one reason while they are remembered: a backend may vary its messages."""
SERIES_SECONDS = 600.0
QUIET_SECONDS = 10.0


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The object an Event is about."""

    api_version: str
    kind: str
    name: str
    namespace: str = ""
    uid: str = ""


class EventRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An Event to record: a stable `reason`, and a `note` for people."""

    subject: Subject
    reason: str
    note: str
    action: str
    warning: bool = True


class Create(msgspec.Struct, frozen=True):
    """Write a new Event."""

    namespace: str
    body: dict[str, Any]


class Repetition(msgspec.Struct, frozen=True):
    """Increase the count of an Event that was written before."""

    namespace: str
    name: str
    body: dict[str, Any]


class _WrittenEvent(msgspec.Struct):
    name: str  # empty: it is not there
    first: float
    last_written: float
    count: int


class EventDeduplicator:
    """Remembers the last `REMEMBERED` Events and decides what to write for a request. No clock, no I/O."""

    def __init__(self, *, controller: str, instance: str) -> None:
        self._controller = controller
        self._instance = instance[:128]
        self._written: dict[tuple[str, str, str, str], _WrittenEvent] = {}

    def decide(self, request: EventRequest, *, now: float, stamp: str, suffix: str) -> Create | Repetition | None:
        """Return what to write for the request, or None if it was written a moment ago, or too many others were.

        `now` is in monotonic seconds, `stamp` the same time in RFC 3339 with microseconds, and `suffix` makes a new
        Event's name unique.
        """
        subject = request.subject
        namespace = subject.namespace or _DEFAULT_NAMESPACE
        note = shorten(request.note, NOTE_BYTES)
        key = (subject.uid or f"{namespace}/{subject.name}", request.reason, request.action, note)
        written = self._written.get(key)
        if written is not None and now - written.first < SERIES_SECONDS:
            written.count += 1
            if now - written.last_written < QUIET_SECONDS:
                return None
            written.last_written = now
            if written.name:
                series = {"count": written.count, "lastObservedTime": stamp}
                return Repetition(namespace, written.name, {"series": series})
        else:
            self._written.pop(key, None)
            recent = [one for other, one in self._written.items() if other[:2] == key[:2]]
            if sum(now - one.first < SERIES_SECONDS for one in recent) >= DIFFERENT:
                return None  # the log has it
            while len(self._written) >= REMEMBERED:
                self._written.pop(next(iter(self._written)))
            written = self._written[key] = _WrittenEvent("", now, now, 1)
        written.name = f"{subject.name[:200].rstrip('-.')}.{suffix}"  # still a DNS subdomain when shortened
        return Create(namespace, self._build(request, note=note, name=written.name, namespace=namespace, stamp=stamp))

    def note_lost(self, write: Create | Repetition) -> None:
        """Note that the Event is not there: its next repetition creates one."""
        name = write.name if isinstance(write, Repetition) else write.body["metadata"]["name"]
        for one in self._written.values():
            if one.name == name:
                one.name = ""

    def _build(self, request: EventRequest, *, note: str, name: str, namespace: str, stamp: str) -> dict[str, Any]:
        subject = request.subject
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
            "action": request.action,
            "reason": request.reason[:128],
            "regarding": regarding,
            "note": note,
            "type": "Warning" if request.warning else "Normal",
        }


class EventRecorder:
    """Queues and writes a controller's Events: `record` never waits, `run` writes.

    If the queue is full, new ones are dropped. `report` is called with every result.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        controller: str,
        instance: str,
        report: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._client = client
        self._deduplicator = EventDeduplicator(controller=controller, instance=instance)
        self._report = report
        self._clock = clock
        self._send, self._receive = anyio.create_memory_object_stream[EventRequest](_WAITING)

    def record(self, request: EventRequest) -> None:
        """Queue the request."""
        try:
            self._send.send_nowait(request)
        except (anyio.WouldBlock, anyio.ClosedResourceError):
            self._report("dropped")
            _log.warning("Event dropped: the queue is full, or the agent stops: %s %s", request.reason, request.note)

    async def run(self) -> None:
        """Write until cancelled. An Event that cannot be written is lost until it is repeated; the log has its text."""
        async with self._send, self._receive:
            async for request in self._receive:
                stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
                write = self._deduplicator.decide(request, now=self._clock(), stamp=stamp, suffix=secrets.token_hex(8))
                if write is not None:
                    await self._try(write)

    async def _try(self, write: Create | Repetition) -> None:
        try:
            if isinstance(write, Create):
                await self._client.create(EVENTS, write.body, namespace=write.namespace)
            else:
                await self._client.patch(EVENTS, write.name, write.body, namespace=write.namespace)
        except NotFound:
            # The namespace, or the Event itself (they expire after an hour), no longer exists.
            self._deduplicator.note_lost(write)
            self._report("gone")
        except KubeError as error:
            if isinstance(write, Create):
                self._deduplicator.note_lost(write)
            self._report("failed")
            _log.warning("Event not written: %s", error)
        else:
            self._report("ok")


def shorten(text: str, limit: int) -> str:
    """Escape the text and cut it to `limit` bytes of UTF-8."""
    return cut_bytes(escape(text[: limit + 1]), limit)  # which is longer than the limit if the text is
