"""An Informer: a cache of one list of objects that follows the API server through every fault of a watch."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Protocol

import msgspec

from pydra.errors import Gone, KubeError, Unavailable
from pydra.kube.resources import (
    JsonObject,
    ObjectList,
    Resource,
    WatchEvent,
    WatchEventType,
    object_key,
    parse_resource_version,
)

log = logging.getLogger(__name__)

PAUSE, PAUSE_LIMIT = 0.1, 2.0
"""Short on purpose: after an outage, a slice must be back within a second or two. 429 and Retry-After are honoured."""
REFUSED_PAUSE_LIMIT = 30.0
HEALTHY_SECONDS = 1.0
RESUME_ATTEMPTS = 3

Key = tuple[str, str]


class Source(Protocol):
    """The part of a KubeClient that is used here."""

    async def list(
        self, resource: Resource, *, namespace: str = "", field_selector: str = "", label_selector: str = ""
    ) -> ObjectList:
        """All objects."""
        ...

    def watch(
        self, resource: Resource, *, resource_version: str, namespace: str = "", field_selector: str = ""
    ) -> AsyncGenerator[WatchEvent, None]:
        """What happens to them afterwards."""
        ...


class WatchFailed(msgspec.Struct, frozen=True, kw_only=True):
    """The API server could not be listed or watched; tried again after `pause` seconds."""

    resource: str
    error: KubeError
    pause: float


class Informer:
    """The objects of one resource and selector, as of the last event.

    `objects` maps (namespace, name) to the object, without its managedFields; it is not to be changed.
    `resource_version` grows with all that was seen. `lists_begun` and `list_shown` count lists: what is
    in the cache includes everything that was written before list number `list_shown` was begun.
    """

    def __init__(
        self,
        source: Source,
        resource: Resource,
        *,
        namespace: str = "",
        field_selector: str = "",
        report: Callable[[WatchFailed], None] = lambda _: None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self.resource_version = 0
        self.lists_begun = 0
        self.list_shown = 0
        self._source = source
        self._resource = resource
        self._namespace = namespace
        self._field_selector = field_selector
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
    def synced(self) -> bool:
        """Whether there was a whole list at least once."""
        return self._synced.is_set()

    async def wait_synced(self) -> None:
        """Return when the first list is in the cache."""
        await self._synced.wait()

    def subscribe(self, callback: Callable[[WatchEvent], None]) -> None:
        """Have `callback` called once the cache has a change (added, modified, deleted), also for those of a list."""
        self._callbacks.append(callback)

    async def run(self) -> None:
        """Follow the API server until cancelled. An error of the server is reported and never ends it."""
        while True:
            error: KubeError | None = None
            began = time.monotonic()
            try:
                if not self._position:
                    await self._relist()
                await self._follow()
            except KubeError as raised:
                error = raised
            pause = self._decide(error, lasted=time.monotonic() - began)
            if error is not None and not isinstance(error, Gone):
                log.warning("watch of %s broke, trying again in %.1f s: %s", self._resource, pause, error)
                self._report(WatchFailed(resource=str(self._resource), error=error, pause=pause))
            if pause:
                await asyncio.sleep(pause)

    def _decide(self, error: KubeError | None, *, lasted: float) -> float:
        """How long to pause, and whether the next round lists again or resumes.

        A watch that ended well, or grew too old, goes on at once, unless it ended the moment it began.
        """
        if lasted >= HEALTHY_SECONDS:
            self._failures = 0
        if isinstance(error, Gone):
            self._position = ""
        if lasted >= HEALTHY_SECONDS and (error is None or isinstance(error, Gone)):
            return 0.0
        self._failures += 1
        if error is not None and self._failures % RESUME_ATTEMPTS == 0:
            self._position = ""  # a server restored from a backup does not know the version: a list tells what it has
        if self._failures == 1 and (error is None or isinstance(error, Gone)):
            return 0.0
        refused = error is not None and not isinstance(error, Gone | Unavailable)
        longest = min(PAUSE * 2.0 ** min(self._failures, 16), REFUSED_PAUSE_LIMIT if refused else PAUSE_LIMIT)
        asked = error.retry_after if isinstance(error, Unavailable) else 0.0
        return max(asked, self._uniform(longest / 2, longest))

    async def _relist(self) -> None:
        self.lists_begun += 1
        ordinal = self.lists_begun
        listed = await self._source.list(self._resource, namespace=self._namespace, field_selector=self._field_selector)
        before, self._objects = self._objects, {object_key(item): _slim(item) for item in listed.items}
        self._position = listed.resource_version
        self.resource_version = parse_resource_version(listed.resource_version)
        self.list_shown = ordinal
        self._synced.set()
        for change in diff(before, self._objects):
            self._tell(change)

    async def _follow(self) -> None:
        watch = self._source.watch(
            self._resource,
            resource_version=self._position,
            namespace=self._namespace,
            field_selector=self._field_selector,
        )
        async with aclosing(watch) as events:
            async for event in events:
                self._take(event)

    def _take(self, event: WatchEvent) -> None:
        self._position = (event.object.get("metadata") or {}).get("resourceVersion") or self._position
        self.resource_version = max(self.resource_version, parse_resource_version(self._position))
        if event.type is WatchEventType.BOOKMARK:
            return
        key = object_key(event.object)
        if event.type is WatchEventType.DELETED:
            self._objects.pop(key, None)
        else:
            self._objects[key] = _slim(event.object)
        self._tell(event)

    def _tell(self, change: WatchEvent) -> None:
        for callback in self._callbacks:
            callback(change)


def diff(before: Mapping[Key, JsonObject], after: Mapping[Key, JsonObject]) -> Iterator[WatchEvent]:
    """What must have happened between two lists; an object of the same name but another uid was deleted and added."""
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
    return str((body.get("metadata") or {}).get("uid", ""))


def _slim(body: JsonObject) -> JsonObject:
    """Without managedFields: as large as the object itself, and of no use to a reader."""
    (body.get("metadata") or {}).pop("managedFields", None)
    return body
