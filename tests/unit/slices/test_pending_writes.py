"""What the API has, by the cache and by own writes whose events have not come yet."""

from __future__ import annotations

from typing import Any

from pydra.kube.api_resources import WatchEvent, WatchEventType
from pydra.slices.reconciler import PendingWrites

JsonObject = dict[str, Any]


class Cache:
    """An informer's cache."""

    def __init__(self, *bodies: JsonObject, version: int = 10) -> None:
        self.bodies = bodies
        self.resource_version = version
        self.lists_begun = 1
        self.list_shown = 1

    @property
    def objects(self) -> dict[tuple[str, str], JsonObject]:
        return {("", str(one["metadata"]["name"])): one for one in self.bodies}

    async def wait_synced(self) -> None: ...

    def subscribe(self, callback: object) -> None: ...


def body(uid: str, version: int) -> JsonObject:
    return {"metadata": {"name": f"slice-{uid}", "uid": uid, "resourceVersion": str(version)}}


def merged(pending: PendingWrites) -> list[tuple[str, str]]:
    found = pending.merged()
    return sorted((one["metadata"]["uid"], one["metadata"]["resourceVersion"]) for one in found)


def test_an_own_write_is_seen_before_its_event() -> None:
    pending = PendingWrites(_cache := Cache(body("a", 5)))
    pending.note_write(body("b", 11))
    pending.note_write(body("a", 12))
    assert merged(pending) == [("a", "12"), ("b", "11")]


def test_a_cache_that_has_come_further_knows_better() -> None:
    pending = PendingWrites(cache := Cache())
    pending.note_write(body("a", 11))
    cache.bodies, cache.resource_version = (body("a", 13),), 13
    assert merged(pending) == [("a", "13")]


def test_an_own_slice_that_was_deleted_meanwhile_does_not_live_on() -> None:
    pending = PendingWrites(cache := Cache())
    cache.resource_version = 12  # created at 11 and deleted at 12, both seen before the answer was
    pending.note_write(body("a", 11))
    assert merged(pending) == []


def test_a_list_begun_after_the_write_knows_better_even_with_an_older_version() -> None:
    pending = PendingWrites(cache := Cache(version=1000))
    pending.note_write(body("a", 1001))
    cache.resource_version, cache.lists_begun, cache.list_shown = 50, 2, 2  # restored from a backup
    assert merged(pending) == []


def test_a_list_that_was_under_way_during_the_write_does_not() -> None:
    pending = PendingWrites(cache := Cache(version=10))
    cache.lists_begun = 2
    pending.note_write(body("a", 11))
    cache.list_shown = 2
    assert merged(pending) == [("a", "11")]


def test_an_own_delete_is_seen_before_its_event_and_forgotten_after() -> None:
    pending = PendingWrites(cache := Cache(body("a", 5), body("b", 6)))
    pending.note_delete("a")
    assert merged(pending) == [("b", "6")]
    cache.bodies = (body("b", 6),)
    assert pending.is_own_write(WatchEvent(WatchEventType.DELETED, body("a", 11)))
    assert not pending.is_own_write(WatchEvent(WatchEventType.DELETED, body("a", 11)))
    assert merged(pending) == [("b", "6")]


def test_only_the_very_version_that_was_written_is_an_echo_and_only_once() -> None:
    pending = PendingWrites(Cache())
    pending.note_write(body("a", 11))
    assert not pending.is_own_write(WatchEvent(WatchEventType.ADDED, body("b", 11)))
    assert not pending.is_own_write(WatchEvent(WatchEventType.MODIFIED, body("a", 12)))
    assert not pending.is_own_write(WatchEvent(WatchEventType.DELETED, body("a", 11)))
    assert pending.is_own_write(WatchEvent(WatchEventType.ADDED, body("a", 11)))
    assert not pending.is_own_write(WatchEvent(WatchEventType.ADDED, body("a", 11)))


def test_after_its_echo_the_cache_alone_counts() -> None:
    pending = PendingWrites(cache := Cache())
    pending.note_write(body("a", 11))
    cache.bodies, cache.resource_version = (body("a", 11),), 11
    assert pending.is_own_write(WatchEvent(WatchEventType.ADDED, body("a", 11)))
    cache.bodies = ()
    assert merged(pending) == []
