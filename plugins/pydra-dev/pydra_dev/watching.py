"""One watch: the changes that it must tell, and the loop that tells them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator

import anyio
import msgspec

from pydra_dev.kinds import Kind
from pydra_dev.selectors import Matcher, build_matcher
from pydra_dev.status import JsonObject, expired
from pydra_dev.store import Change, HistoryLostError
from pydra_dev.verbs import Api, Query, parse_version, present

LAST_BOOKMARK = 2.0
"""Seconds before its end at which a watch gets a bookmark, as a real server gives it."""


class WatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to watch: `timeout` and `bookmark_period` in seconds."""

    timeout: float
    bookmarks: bool = False
    bookmark_period: float = 60.0
    initial: bool = False


class Signal:
    """Wakes every waiter when told that something was written, and for good when it is closed."""

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.closed = False

    def notify(self) -> None:
        """Wake whoever waits now."""
        self.event.set()
        self.event = anyio.Event()

    def close(self) -> None:
        """Nothing more will be told: whoever waits or watches should end."""
        self.closed = True
        self.notify()


def select_event(change: Change, kind: Kind, namespace: str, matches: Matcher) -> tuple[str, JsonObject] | None:
    """What a watch with these selectors sees of a change; None when nothing.

    An object that starts or stops matching appears or disappears for the watcher.
    """
    if change.collection != kind.storage or (namespace and change.key[0] != namespace):
        return None
    before = change.previous is not None and matches(change.previous)
    now = change.type != "DELETED" and matches(change.object)
    if now:
        return ("MODIFIED" if before else "ADDED"), change.object
    if not before or change.previous is None:
        return None
    version = {"resourceVersion": str(change.version)}
    last = change.object if change.type == "DELETED" else change.previous
    return "DELETED", {**last, "metadata": {**last["metadata"], **version}}


class Watch:
    """One watch of a collection; raises a 400 StatusError on construction for what it cannot follow."""

    def __init__(self, api: Api, kind: Kind, query: Query, options: WatchOptions) -> None:
        self._api = api
        self._kind = kind
        self._namespace = query.namespace
        self._options = options
        self._matches = build_matcher(kind, query.field_selector, query.label_selector)
        self._after = parse_version(query.version or "0")

    async def events(self, written: Signal) -> AsyncGenerator[JsonObject, None]:
        """The events as JSON values, until the watch's time is over, its history is lost or `written` is closed."""
        options, api = self._options, self._api
        deadline = time.monotonic() + options.timeout
        bookmark_at = min(time.monotonic() + options.bookmark_period, deadline - LAST_BOOKMARK)
        for event in self._begin():
            yield event
        while not written.closed:
            wakeup = written.event
            try:
                changes = tuple(api.store.changes(self._after))
            except HistoryLostError as error:
                yield {"type": "ERROR", "object": expired(str(error)).build_status()}
                return
            for change in changes:
                self._after = change.version
                seen = select_event(change, self._kind, self._namespace, self._matches)
                if seen is not None:
                    yield _event(seen[0], self._kind, seen[1])
            now = time.monotonic()
            if now >= deadline:
                return
            if options.bookmarks and now >= bookmark_at:
                yield _bookmark(self._kind, self._after)
                bookmark_at = now + options.bookmark_period
            if not changes:
                limit = min(deadline, bookmark_at) if options.bookmarks else deadline
                with anyio.move_on_after(max(0.0, limit - now)):
                    await wakeup.wait()

    def _begin(self) -> Iterator[JsonObject]:
        """What is there already, for a watch that does not resume."""
        if self._after and not self._options.initial:
            return
        self._after = self._api.store.version
        for obj in self._api.store.list(self._kind.storage, namespace=self._namespace):
            if self._matches(obj):
                yield _event("ADDED", self._kind, obj)
        if self._options.initial and self._options.bookmarks:
            yield _bookmark(self._kind, self._after, initial=True)


def _event(type_: str, kind: Kind, obj: JsonObject) -> JsonObject:
    return {"type": type_, "object": present(kind, obj)}


def _bookmark(kind: Kind, version: int, *, initial: bool = False) -> JsonObject:
    metadata: JsonObject = {"resourceVersion": str(version)}
    if initial:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    return {"type": "BOOKMARK", "object": {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}}
