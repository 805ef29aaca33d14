"""A stream's bytes become lines, however they were cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra.kube.lines import LineSplitter, LineTooLong

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
