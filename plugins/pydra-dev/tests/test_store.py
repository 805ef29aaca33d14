"""Versions, history and pictures of the past."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra_dev.apiserver.store import HistoryLostError, Store


def obj(name: str, **extra: object) -> dict[str, object]:
    return {"metadata": {"name": name}, **extra}


def test_every_write_has_the_next_version() -> None:
    store = Store()
    first = store.put("pods", ("ns", "a"), obj("a"))
    second = store.put("nodes", ("", "b"), obj("b"))
    gone = store.remove("pods", ("ns", "a"))
    versions = [one["metadata"]["resourceVersion"] for one in (first, second, gone)]
    assert versions == ["1", "2", "3"]
    assert store.version == 3


def test_a_writer_s_object_is_not_changed() -> None:
    body = obj("a")
    Store().put("pods", ("ns", "a"), body)
    assert body == obj("a")


def test_a_list_is_in_order_of_namespace_and_name() -> None:
    store = Store()
    for key in (("b", "a"), ("a", "z"), ("a", "b")):
        store.put("pods", key, obj(key[1]))
    assert [one["metadata"]["name"] for one in store.list("pods")] == ["b", "z", "a"]
    assert [one["metadata"]["name"] for one in store.list("pods", namespace="b")] == ["a"]


def test_changes_carry_what_was_there_before() -> None:
    store = Store()
    store.put("pods", ("", "a"), obj("a", spec=1))
    store.put("pods", ("", "a"), obj("a", spec=2))
    store.remove("pods", ("", "a"))
    told = [(change.type, change.version, (change.previous or {}).get("spec")) for change in store.changes(0)]
    assert told == [("ADDED", 1, None), ("MODIFIED", 2, 1), ("DELETED", 3, 2)]
    assert [change.version for change in store.changes(2)] == [3]


def test_a_full_history_forgets_the_oldest_change_and_says_so() -> None:
    store = Store(history=2)
    for index in range(3):
        store.put("pods", ("", f"p{index}"), obj(f"p{index}"))
    assert [change.version for change in store.changes(1)] == [2, 3]
    with pytest.raises(HistoryLostError, match=r"too old resource version: 0 \(1\)"):
        store.changes(0)


def test_a_compacted_history_still_serves_whoever_is_up_to_date() -> None:
    store = Store()
    store.put("pods", ("", "a"), obj("a"))
    store.compact()
    assert list(store.changes(1)) == []
    with pytest.raises(HistoryLostError):
        store.changes(0)
    with pytest.raises(HistoryLostError):
        store.list("pods", version=0)


def test_a_listener_is_told_until_it_stops() -> None:
    store, told = Store(), []
    stop = store.listen(lambda: told.append(store.version))
    store.put("pods", ("", "a"), obj("a"))
    stop()
    store.put("pods", ("", "a"), obj("a"))
    assert told == [1]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=30))
def test_a_list_at_a_version_is_what_was_there_then(writes: list[tuple[str, bool]]) -> None:
    store = Store()
    pictures = {0: store.list("pods")}
    for name, remove in writes:
        if remove and store.get("pods", ("", name)) is not None:
            store.remove("pods", ("", name))
        else:
            store.put("pods", ("", name), obj(name))
        pictures[store.version] = store.list("pods")
    for version, picture in pictures.items():
        assert store.list("pods", version=version) == picture
