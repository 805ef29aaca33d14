"""What the API server sends is decoded, however it is cut, and no matter what wrote it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydra.devices import Capacity, Device, Pool
from pydra.kube.tolerant_decoding import (
    LineSplitter,
    LineTooLong,
    NotJson,
    Undecodable,
    decode_document,
    decode_event,
    decode_object,
    decode_page,
)
from pydra.slices.build import build_wanted
from pydra.slices.diff import plan_slices, share_devices
from pydra.slices.server_limitations import name_gates

lines = st.lists(st.binary(min_size=1, max_size=20).map(lambda b: b"x" + b.replace(b"\n", b"")), max_size=10)


@given(lines, st.lists(st.integers(1, 30), min_size=1, max_size=50))
def test_the_lines_are_the_same_however_the_stream_is_cut(expected: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(line + b"\n" for line in expected)
    splitter, found, position = LineSplitter(100), [], 0
    while position < len(stream):
        size = cuts[position % len(cuts)]
        found += splitter.feed(stream[position : position + size])
        position += size
    assert found == expected


def test_what_has_no_newline_yet_is_kept_back_and_empty_lines_are_dropped() -> None:
    splitter = LineSplitter(100)
    assert splitter.feed(b"") == []
    assert splitter.feed(b"\n\r\nab") == []
    assert splitter.feed(b"c\n\n") == [b"abc"]


@pytest.mark.parametrize(
    ("before", "chunk"),
    [(b"", b"x" * 11), (b"x" * 6, b"x" * 6), (b"", b"a\n" + b"x" * 11 + b"\n"), (b"x" * 6, b"x" * 5 + b"\n")],
    ids=["one chunk", "two chunks", "the second line", "the end of a line"],
)
def test_a_line_over_the_limit_is_refused_before_it_fills_the_memory(before: bytes, chunk: bytes) -> None:
    splitter = LineSplitter(10)
    splitter.feed(before)
    with pytest.raises(LineTooLong, match="more than 10 bytes"):
        splitter.feed(chunk)


def test_an_item_with_a_number_that_is_out_of_range_is_left_out_alone() -> None:
    items = b'{"metadata":{"name":"huge"},"spec":{"a":1e999}}', b'{"metadata":{"name":"plain"}}'
    page = b'{"metadata":{"resourceVersion":"7"},"items":[%s,%s]}' % items
    _, kept, left_out = decode_page(page)
    assert (kept, left_out) == ([{"metadata": {"name": "plain"}}], ["huge (it has a number that is out of range)"])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


@pytest.mark.fuzz
@given(st.lists(st.dictionaries(st.text(max_size=8), json_values, max_size=3), max_size=4), st.integers(0, 4))
@settings(max_examples=10)
def test_a_list_with_one_item_nested_too_deep_gives_all_others(bodies: list[dict[str, object]], place: int) -> None:
    items = [{**body, "metadata": {"name": f"n{number}"}} for number, body in enumerate(bodies)]
    encoded = [msgspec.json.encode(item) for item in items]
    encoded.insert(place, b'{"metadata":{"name":"deep"},"spec":%s}' % (b"[" * 200_000 + b"]" * 200_000))
    page = b'{"metadata":{"resourceVersion":"7"}, "items": [%s]}' % b", ".join(encoded)
    assert decode_page(page) == ({"resourceVersion": "7"}, items, ["deep (it is nested too deep)"])


def test_whole_surrogate_pairs_and_escaped_backslashes_are_not_repaired() -> None:
    config = decode_document(rb'{"a":"\ud800 \\ud800","b":"\ud83d\ude00","c":"\udc00\ud800"}')
    assert config == {"a": "\ufffd \\ud800", "b": "\U0001f600", "c": "\ufffd\ufffd"}


SLICE: dict[str, Any] = {
    "kind": "ResourceSlice",
    "metadata": {"name": "0000-a", "uid": "u", "resourceVersion": "1", "annotations": {"a": "b"}},
    "spec": {
        "driver": "d.example.com",
        "nodeName": "node-1",
        "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {
                "name": "gpu-0",
                "attributes": {"model": {"string": "a"}},
                "capacity": {"memory": {"value": "1Gi"}},
                "taints": [{"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}],
                "consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}],
            }
        ],
        "sharedCounters": [{"name": "s", "counters": {"c": {"value": "1"}}}],
    },
}
WRONG: tuple[Any, ...] = (None, {}, [], [None], 1, "x", True)


def find_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, found in inner:
        yield (*path, key)
        yield from find_paths(found, (*path, key))


def with_wrong(path: tuple[Any, ...], wrong: Any) -> dict[str, Any]:
    body = copy.deepcopy(SLICE)
    place: Any = body
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wrong
    return body


@pytest.mark.parametrize("path", list(find_paths(SLICE)), ids=lambda path: ".".join(map(str, path)))
def test_a_slice_of_any_shape_is_left_out_or_does_not_disturb_the_reconciler(path: tuple[Any, ...]) -> None:
    pool = Pool(
        name="node-1", devices=(Device(name="gpu-0", attributes={"model": "a"}, capacity={"memory": Capacity("1Gi")}),)
    )
    wanted = build_wanted(pool, driver="d.example.com", node="node-1")
    for wrong in WRONG:
        body = with_wrong(path, wrong)
        page = {"kind": "ResourceSliceList", "metadata": {"resourceVersion": "1"}, "items": [body]}
        _, kept, left_out = decode_page(json.dumps(page).encode())
        assert len(kept) + len(left_out) == 1
        share_devices(wanted, kept)
        plan_slices(wanted, kept)
        with suppress(Undecodable):
            decode_event(json.dumps({"type": "ADDED", "object": body}).encode())
        with suppress(Undecodable, NotJson):
            answer = decode_object(json.dumps(body).encode(), "ResourceSlice")
            name_gates(SLICE["spec"], answer["spec"])
            assert answer["metadata"]["uid"]
