"""What the API has, by the watch cache and by what was just written. No I/O.

The answer to a write is known before its event comes through the watch; without it, the next look would write the
same again. What is laid over the cache goes as soon as the cache must know better.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from pydra.kube.resources import JsonObject, WatchEvent, WatchEventType, parse_resource_version


class CacheState(Protocol):
    """How far the watch cache is; `pydra.kube.informer.Reflector` says what the numbers mean."""

    resource_version: int
    lists_begun: int
    list_shown: int


class _Written(msgspec.Struct, frozen=True):
    body: JsonObject
    version: int
    lists_begun: int


class Overlay:
    """Own writes that the cache may not have yet."""

    def __init__(self) -> None:
        self._written: dict[str, _Written] = {}
        self._deleted: set[str] = set()

    def note_write(self, answer: JsonObject, cache: CacheState) -> None:
        """The API server stored this."""
        metadata = answer["metadata"]
        version = parse_resource_version(metadata.get("resourceVersion", ""))
        if version > cache.resource_version:
            self._written[metadata["uid"]] = _Written(answer, version, cache.lists_begun)
        else:
            self._written.pop(metadata["uid"], None)  # its event was faster than the answer

    def note_delete(self, uid: str) -> None:
        """The API server deleted this; a uid never comes back."""
        self._deleted.add(uid)
        self._written.pop(uid, None)

    def take_echo(self, event: WatchEvent) -> bool:
        """Whether the event, which the cache has by now, tells of a write that was noted here."""
        metadata = event.object["metadata"]
        uid = metadata["uid"]
        if event.type is WatchEventType.DELETED:
            echo = uid in self._deleted
            self._deleted.discard(uid)
            return echo
        written = self._written.get(uid)
        if written is None or written.body["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            return False
        del self._written[uid]
        return True

    def look(self, cached: Iterable[JsonObject], cache: CacheState) -> list[JsonObject]:
        """All objects that there are now, as far as can be known."""
        by_uid = {body["metadata"]["uid"]: body for body in cached}
        self._deleted &= by_uid.keys()
        self._written = {
            uid: written
            for uid, written in self._written.items()
            # Seen up to its version, or listed since: what the cache has is newer, also when it has nothing.
            if written.version > cache.resource_version and cache.list_shown <= written.lists_begun
        }
        merged = by_uid | {uid: written.body for uid, written in self._written.items()}
        return [body for uid, body in merged.items() if uid not in self._deleted]
