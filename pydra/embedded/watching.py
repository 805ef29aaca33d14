"""One watch: the changes that it must tell, and the loop that tells them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

import anyio
import msgspec

from pydra.embedded.kinds import Kind
from pydra.embedded.selectors import Matcher, build_matcher
from pydra.embedded.status import JsonObject, expired
from pydra.embedded.store import Change, HistoryLostError
from pydra.embedded.verbs import Api, Query, parse_version, present

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


async def watch_events(
    api: Api, kind: Kind, query: Query, options: WatchOptions, written: Signal
) -> AsyncGenerator[JsonObject, None]:
    """The watch's events as JSON values, until its time is over or the server stops."""
    matches = build_matcher(kind, query.field_selector, query.label_selector)
    deadline = time.monotonic() + options.timeout
    bookmark_at = min(time.monotonic() + options.bookmark_period, deadline - LAST_BOOKMARK)
    after = parse_version(query.version or "0")
    if after == 0 or options.initial:
        after = api.store.version
        for obj in api.store.list(kind.storage, namespace=query.namespace):
            if matches(obj):
                yield _event("ADDED", kind, obj)
        if options.initial and options.bookmarks:
            yield _bookmark(kind, after, initial=True)
    while not written.closed:
        wakeup = written.event
        try:
            changes = tuple(api.store.changes(after))
        except HistoryLostError as error:
            yield {"type": "ERROR", "object": expired(str(error)).build_status()}
            return
        for change in changes:
            after = change.version
            seen = select_event(change, kind, query.namespace, matches)
            if seen is not None:
                yield _event(seen[0], kind, seen[1])
        now = time.monotonic()
        if now >= deadline:
            return
        if options.bookmarks and now >= bookmark_at:
            yield _bookmark(kind, after)
            bookmark_at = now + options.bookmark_period
        if not changes:
            limit = min(deadline, bookmark_at) if options.bookmarks else deadline
            with anyio.move_on_after(max(0.0, limit - now)):
                await wakeup.wait()


def _event(type_: str, kind: Kind, obj: JsonObject) -> JsonObject:
    return {"type": type_, "object": present(kind, obj)}


def _bookmark(kind: Kind, version: int, *, initial: bool = False) -> JsonObject:
    metadata: JsonObject = {"resourceVersion": str(version), "creationTimestamp": None}
    if initial:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    return {"type": "BOOKMARK", "object": {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}}
