"""The objects and their history: one counter of versions, a bounded ring of changes. Pure, in memory.

The store knows collections, keys and versions, never a kind's rules. Objects that it returns are
shared and must not be changed; a writer hands in a new one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

import anyio
import msgspec

from pydra_dev.api.errors import JsonObject

T = TypeVar("T")
Key: TypeAlias = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name."""

DEFAULT_HISTORY = 10_000


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One write: `version` is the store's counter after it; `previous` is what was there before."""

    version: int
    type: Literal["ADDED", "MODIFIED", "DELETED"]
    collection: str
    key: Key
    object: JsonObject
    previous: JsonObject | None = None


class HistoryLostError(Exception):
    """The history does not reach back to the version asked for."""

    def __init__(self, version: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {version} ({oldest})")


class Signal:
    """Wakes every waiter when told that something was written, and for good when it is closed."""

    def __init__(self) -> None:
        self.event = anyio.Event()
        self.closed = False

    def notify(self) -> None:
        """Wake all that wait now."""
        self.event.set()
        self.event = anyio.Event()

    def close(self) -> None:
        """There will be no more events: waits and watches should end."""
        self.closed = True
        self.notify()


class Store:
    """Collections of objects by key; `written` wakes those who wait for a write, and `listen` calls them."""

    def __init__(self, *, history: int = DEFAULT_HISTORY) -> None:
        self._version = 0
        self._collections: dict[str, dict[Key, JsonObject]] = {}
        self._changes: deque[Change] = deque(maxlen=history)
        self._compacted = 0
        self.written = Signal()
        self._listeners: list[Callable[[], None]] = [self.written.notify]

    @property
    def version(self) -> int:
        """The version of the latest write."""
        return self._version

    def get(self, collection: str, key: Key) -> JsonObject | None:
        """The object, or None."""
        return self._collections.get(collection, {}).get(key)

    def list(self, collection: str, *, namespace: str = "", version: int | None = None) -> tuple[JsonObject, ...]:
        """The collection's objects in order of namespace and name, now or as they were at a version.

        Raises HistoryLostError when the history does not reach back that far.
        """
        objects: Mapping[Key, JsonObject] = self._collections.get(collection, {})
        if version is not None and version < self._version:
            objects = self._as_of(collection, version)
        return tuple(objects[key] for key in sorted(objects) if not namespace or key[0] == namespace)

    def _as_of(self, collection: str, version: int) -> Mapping[Key, JsonObject]:
        if version < self._compacted:
            raise HistoryLostError(version, self._compacted)
        objects = dict(self._collections.get(collection, {}))
        for change in reversed(self._changes):
            if change.version <= version:
                break
            if change.collection != collection:
                continue
            if change.previous is None:
                objects.pop(change.key, None)
            else:
                objects[change.key] = change.previous
        return objects

    def keys(self, collection: str) -> Sequence[Key]:
        """The keys of the collection's objects in the order in which they were created."""
        return tuple(self._collections.get(collection, {}))

    def put(self, collection: str, key: Key, obj: JsonObject) -> JsonObject:
        """Store an object, giving it the next version; returns it as stored."""
        objects = self._collections.setdefault(collection, {})
        previous = objects.get(key)
        stored = self._stamp(obj)
        objects[key] = stored
        self._record("MODIFIED" if previous is not None else "ADDED", collection, key, stored, previous)
        return stored

    def remove(self, collection: str, key: Key) -> JsonObject:
        """Take an object out; returns it with the version of its deletion. Raises KeyError when it is not there."""
        previous = self._collections.get(collection, {}).pop(key)
        stored = self._stamp(previous)
        self._record("DELETED", collection, key, stored, previous)
        return stored

    def _stamp(self, obj: JsonObject) -> JsonObject:
        self._version += 1
        return {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self._version)}}

    def _record(
        self,
        type_: Literal["ADDED", "MODIFIED", "DELETED"],
        collection: str,
        key: Key,
        obj: JsonObject,
        previous: JsonObject | None,
    ) -> None:
        if len(self._changes) == self._changes.maxlen:
            self._compacted = self._changes[0].version if self._changes else self._version
        self._changes.append(
            Change(version=self._version, type=type_, collection=collection, key=key, object=obj, previous=previous)
        )
        for listener in tuple(self._listeners):
            listener()

    def changes(self, after: int) -> Iterator[Change]:
        """Every change after a version, oldest first; raises HistoryLostError when some of them are forgotten."""
        if after < self._compacted:
            raise HistoryLostError(after, self._compacted)
        newer: list[Change] = []
        for change in reversed(self._changes):
            if change.version <= after:
                break
            newer.append(change)
        return reversed(newer)

    def compact(self) -> None:
        """Forget the whole history: a watch that resumes from before now gets the status 410."""
        self._changes.clear()
        self._compacted = self._version

    async def wait(self, look: Callable[[], T]) -> T:
        """What `look` finds, as soon as a write makes that something."""
        while True:
            wakeup = self.written.event
            if found := look():
                return found
            await wakeup.wait()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every write; returns what ends that."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)
