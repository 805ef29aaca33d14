"""What must have happened between two lists."""

from __future__ import annotations

from typing import Any

from pydra.kube.api_resources import WatchEventType
from pydra.kube.informer import Key, diff

JsonObject = dict[str, Any]


def listed(**versions: str) -> dict[Key, JsonObject]:
    """name="uid/version"."""
    return {
        ("", name): {"metadata": dict(zip(("uid", "resourceVersion"), text.split("/"), strict=True), name=name)}
        for name, text in versions.items()
    }


def changes(before: dict[Key, JsonObject], after: dict[Key, JsonObject]) -> list[tuple[str, str]]:
    metadata = [(event.type.name, event.object["metadata"]) for event in diff(before, after)]
    return [(kind, f"{one['name']}={one['uid']}") for kind, one in metadata]


def test_two_equal_lists_tell_nothing() -> None:
    assert changes(listed(a="1/5", b="2/6"), listed(b="2/6", a="1/5")) == []


def test_deletions_come_before_additions() -> None:
    assert changes(listed(a="1/5"), listed(b="2/6")) == [("DELETED", "a=1"), ("ADDED", "b=2")]


def test_another_version_is_a_modification() -> None:
    assert changes(listed(a="1/5"), listed(a="1/6")) == [("MODIFIED", "a=1")]


def test_another_uid_is_a_deletion_and_an_addition() -> None:
    assert changes(listed(a="1/5"), listed(a="9/6")) == [("DELETED", "a=1"), ("ADDED", "a=9")]


def test_the_first_list_adds_everything() -> None:
    events = list(diff({}, listed(a="1/5", b="2/6")))
    assert [event.type for event in events] == [WatchEventType.ADDED] * 2
