"""What there is, by the cache and by own writes."""

from __future__ import annotations

from typing import Any

from pydra.kube.resources import WatchEvent, WatchEventType
from pydra.slices.overlay import Overlay

JsonObject = dict[str, Any]


class Cache:
    """A watch cache as the overlay sees it."""

    def __init__(self, *bodies: JsonObject, version: int = 10) -> None:
        self.bodies = bodies
        self.resource_version = version
        self.lists_begun = 1
        self.list_shown = 1


def body(uid: str, version: int) -> JsonObject:
    return {"metadata": {"name": f"slice-{uid}", "uid": uid, "resourceVersion": str(version)}}


def look(overlay: Overlay, cache: Cache) -> list[tuple[str, str]]:
    found = overlay.look(cache.bodies, cache)
    return sorted((one["metadata"]["uid"], one["metadata"]["resourceVersion"]) for one in found)


def test_an_own_write_is_seen_before_its_event() -> None:
    overlay, cache = Overlay(), Cache(body("a", 5))
    overlay.note_write(body("b", 11), cache)
    overlay.note_write(body("a", 12), cache)
    assert look(overlay, cache) == [("a", "12"), ("b", "11")]


def test_a_cache_that_has_come_further_knows_better() -> None:
    overlay, cache = Overlay(), Cache()
    overlay.note_write(body("a", 11), cache)
    cache.bodies, cache.resource_version = (body("a", 13),), 13
    assert look(overlay, cache) == [("a", "13")]


def test_an_own_slice_that_was_deleted_meanwhile_does_not_live_on() -> None:
    overlay, cache = Overlay(), Cache()
    cache.resource_version = 12  # created at 11 and deleted at 12, both seen before the answer was
    overlay.note_write(body("a", 11), cache)
    assert look(overlay, cache) == []


def test_a_list_begun_after_the_write_knows_better_even_with_an_older_version() -> None:
    overlay, cache = Overlay(), Cache(version=1000)
    overlay.note_write(body("a", 1001), cache)
    cache.resource_version, cache.lists_begun, cache.list_shown = 50, 2, 2  # restored from a backup
    assert look(overlay, cache) == []


def test_a_list_that_was_under_way_during_the_write_does_not() -> None:
    overlay, cache = Overlay(), Cache(version=10)
    cache.lists_begun = 2
    overlay.note_write(body("a", 11), cache)
    cache.list_shown = 2
    assert look(overlay, cache) == [("a", "11")]


def test_an_own_delete_is_seen_before_its_event_and_forgotten_after() -> None:
    overlay, cache = Overlay(), Cache(body("a", 5), body("b", 6))
    overlay.note_delete("a")
    assert look(overlay, cache) == [("b", "6")]
    cache.bodies = (body("b", 6),)
    assert overlay.take_echo(WatchEvent(WatchEventType.DELETED, body("a", 11)))
    assert not overlay.take_echo(WatchEvent(WatchEventType.DELETED, body("a", 11)))
    assert look(overlay, cache) == [("b", "6")]


def test_only_the_very_version_that_was_written_is_an_echo_and_only_once() -> None:
    overlay = Overlay()
    overlay.note_write(body("a", 11), Cache())
    assert not overlay.take_echo(WatchEvent(WatchEventType.ADDED, body("b", 11)))
    assert not overlay.take_echo(WatchEvent(WatchEventType.MODIFIED, body("a", 12)))
    assert not overlay.take_echo(WatchEvent(WatchEventType.DELETED, body("a", 11)))
    assert overlay.take_echo(WatchEvent(WatchEventType.ADDED, body("a", 11)))
    assert not overlay.take_echo(WatchEvent(WatchEventType.ADDED, body("a", 11)))


def test_after_its_echo_the_cache_alone_counts() -> None:
    overlay, cache = Overlay(), Cache()
    overlay.note_write(body("a", 11), cache)
    cache.bodies, cache.resource_version = (body("a", 11),), 11
    assert overlay.take_echo(WatchEvent(WatchEventType.ADDED, body("a", 11)))
    cache.bodies = ()
    assert look(overlay, cache) == []
