"""What the API server sends is decoded, however it is cut and whoever wrote it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydra.kube.tolerant_decoding import LineSplitter, LineTooLong, decode_document, decode_page

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
