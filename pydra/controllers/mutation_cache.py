"""What a controller knows of one resource: an informer's cache, with its own writes until the informer has them.

Without them a decision made right after a write would be made once more, from the state before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from pydra.kube.api_resources import (
    JsonObject,
    Resource,
    WatchEvent,
    WatchEventType,
    object_key,
    parse_resource_version,
)
from pydra.kube.informer import Informer

Key: TypeAlias = tuple[str, str]

Change: TypeAlias = tuple[JsonObject | None, JsonObject | None]
"""An object before and after; None where it did not exist, or did not match the selectors."""


class Cache:
    """The objects of one resource. `changed` is called with each change that the informer sees."""

    def __init__(self, resource: Resource, informer: Informer, changed: Callable[[Resource, Change], None]) -> None:
        self.resource = resource
        self._informer = informer
        self._changed = changed
        self._before = dict[Key, JsonObject]()
        self._written = dict[Key, JsonObject]()
        informer.subscribe(self._note)

    def objects(self) -> Iterator[JsonObject]:
        """All objects, sorted by namespace and name."""
        known = {**self._informer.objects, **self._newer()}
        return iter([known[key] for key in sorted(known)])

    def find(self, name: str, *, namespace: str = "") -> JsonObject | None:
        """The object, or None."""
        key = (namespace, name)
        return self._newer().get(key) or self._informer.objects.get(key)

    def remember(self, stored: JsonObject) -> None:
        """Show an object as the API server returned it from a write, until the informer has seen that write."""
        self._written[object_key(stored)] = stored

    def _newer(self) -> dict[Key, JsonObject]:
        seen = self._informer.resource_version
        self._written = {key: one for key, one in self._written.items() if _version(one) > seen}
        return self._written

    def _note(self, event: WatchEvent) -> None:
        key = object_key(event.object)
        before = self._before.pop(key, None)
        after = None if event.type is WatchEventType.DELETED else event.object
        if after is not None:
            self._before[key] = after
        self._changed(self.resource, (before, after))


def _version(body: JsonObject) -> int:
    return parse_resource_version(body["metadata"].get("resourceVersion", ""))
