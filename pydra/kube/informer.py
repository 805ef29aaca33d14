"""Keeps a local cache of API objects up to date by list and watch."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from types import MappingProxyType

import msgspec

from pydra.backoff import find_pause
from pydra.errors import Gone, KubeError, Unavailable
from pydra.kube.api_resources import (
    JsonObject,
    Resource,
    WatchEvent,
    WatchEventType,
    object_key,
    parse_resource_version,
)
from pydra.kube.client import KubeClient

log = logging.getLogger(__name__)

PAUSE, PAUSE_LIMIT = 0.2, 2.0
"""Short on purpose: after an outage, a slice must be back within a second or two. 429 and Retry-After are honoured."""
REFUSED_PAUSE_LIMIT = 30.0
HEALTHY_SECONDS = 1.0
RESUME_ATTEMPTS = 3

Key = tuple[str, str]


class WatchFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The API server could not be listed or watched; tried again after `pause` seconds."""

    resource: str
    error: KubeError
    pause: float


class Informer:
    """Caches the objects of one resource that match the selectors, as of the last event.

    `objects` maps (namespace, name) to the object, without its managedFields; callers may replace a
    part of it by an equal value, to have that in memory once, and change nothing else. `resource_version` is the newest
    that was seen. `lists_begun` and `list_shown` count lists: the cache includes everything that was written before
    list number `list_shown` began.
    Without `lists` it begins with a watch, which shows first what is there: one request, for a cache that may keep what
    is deleted while the watch is broken. If that fails, it lists as well: an API server whose
    etcd cannot request the progress of watches (before 3.4.31 and 3.5.13) refuses a watch without a version.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        namespace: str = "",
        field_selector: str = "",
        label_selector: str = "",
        lists: bool = True,
        report: Callable[[WatchFailed], None] = lambda _: None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.resource_version = 0
        self.lists_begun = 0
        self.list_shown = 0
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._field_selector = field_selector
        self._label_selector = label_selector
        self._lists = lists
        self._report = report
        self._uniform = uniform
        self._objects: dict[Key, JsonObject] = {}
        self._callbacks: list[Callable[[WatchEvent], None]] = []
        self._synced = asyncio.Event()
        self._position = ""
        self._failures = 0

    @property
    def objects(self) -> Mapping[Key, JsonObject]:
        """The cache."""
        return MappingProxyType(self._objects)

    @property
    def is_synced(self) -> bool:
        """Whether the first list is in the cache."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Wait until the first list is in the cache."""
        await self._synced.wait()

    def subscribe(self, callback: Callable[[WatchEvent], None]) -> None:
        """Call `callback` after each change of the cache (added, modified, deleted), also for those found by a list."""
        self._callbacks.append(callback)

    async def run(self) -> None:
        """Follow the API server until cancelled. Its errors are reported, and retried with backoff."""
        while True:
            error: KubeError | None = None
            began = time.monotonic()
            try:
                if self._lists and not self._position:
                    await self._relist()
                await self._follow()
            except KubeError as raised:
                error = raised
                self._lists = self._lists or not self._position
            pause = self._decide(error, lasted=time.monotonic() - began)
            if error is not None and not isinstance(error, Gone):
                log.warning("watch of %s broke, trying again in %.1f s: %s", self._resource, pause, error)
                self._report(WatchFailed(resource=str(self._resource), error=error, pause=pause))
            if pause:
                await asyncio.sleep(pause)

    def _decide(self, error: KubeError | None, *, lasted: float) -> float:
        """Return the seconds to pause; clear the position if the next round must list again.

        A watch that ended without an error, or whose version expired, continues at once unless it was very short.
        """
        if lasted >= HEALTHY_SECONDS:
            self._failures = 0
        if isinstance(error, Gone):
            self._position = ""
        if lasted >= HEALTHY_SECONDS and (error is None or isinstance(error, Gone)):
            return 0.0
        self._failures += 1
        if error is not None and self._failures % RESUME_ATTEMPTS == 0:
            self._position = ""  # a server restored from a backup does not know the version
        if self._failures == 1 and (error is None or isinstance(error, Gone)):
            return 0.0
        refused = error is not None and not isinstance(error, Gone | Unavailable)
        longest = find_pause(self._failures, first=PAUSE, cap=REFUSED_PAUSE_LIMIT if refused else PAUSE_LIMIT)
        asked = error.retry_after if isinstance(error, Unavailable) else 0.0
        return max(asked, self._uniform(longest / 2, longest))

    async def _relist(self) -> None:
        self.lists_begun += 1
        ordinal = self.lists_begun
        listed = await self._client.list(
            self._resource,
            namespace=self._namespace,
            field_selector=self._field_selector,
            label_selector=self._label_selector,
        )
        before, self._objects = self._objects, {object_key(item): _slim(item) for item in listed.items}
        self._position = listed.resource_version
        self.resource_version = parse_resource_version(listed.resource_version)
        self.list_shown = ordinal
        self._synced.set()
        for change in diff(before, self._objects):
            self._notify(change)

    async def _follow(self) -> None:
        watch = self._client.watch(
            self._resource,
            resource_version=self._position,
            namespace=self._namespace,
            field_selector=self._field_selector,
            label_selector=self._label_selector,
        )
        async with aclosing(watch) as events:
            async for event in events:
                self._take(event)

    def _take(self, event: WatchEvent) -> None:
        self._position = event.object["metadata"].get("resourceVersion") or self._position
        self.resource_version = max(self.resource_version, parse_resource_version(self._position))
        if event.type is WatchEventType.BOOKMARK:
            return
        key = object_key(event.object)
        if event.type is WatchEventType.DELETED:
            self._objects.pop(key, None)
        else:
            self._objects[key] = _slim(event.object)
        self._notify(event)

    def _notify(self, change: WatchEvent) -> None:
        for callback in self._callbacks:
            callback(change)


def diff(before: Mapping[Key, JsonObject], after: Mapping[Key, JsonObject]) -> Iterator[WatchEvent]:
    """Yield the events between two lists; an object of the same name with another uid was deleted and added."""
    for key, old in before.items():
        new = after.get(key)
        if new is None or _uid(new) != _uid(old):
            yield WatchEvent(WatchEventType.DELETED, old)
    for key, new in after.items():
        old_or_none = before.get(key)
        if old_or_none is None or _uid(old_or_none) != _uid(new):
            yield WatchEvent(WatchEventType.ADDED, new)
        elif old_or_none["metadata"].get("resourceVersion") != new["metadata"].get("resourceVersion"):
            yield WatchEvent(WatchEventType.MODIFIED, new)


def _uid(body: JsonObject) -> str:
    return str(body["metadata"].get("uid", ""))


def _slim(body: JsonObject) -> JsonObject:
    """Return the object without its managedFields, which are as large as the object itself and not used."""
    body["metadata"].pop("managedFields", None)
    return body
