"""What a backend prints is logged line by line, at a bounded rate, and its end is kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra.backends.output import BURST, KEPT, MAX_LINE, OutputLog, is_stack


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_lines_are_the_same_however_the_output_is_cut(chunks: list[bytes]) -> None:
    whole: list[str] = []
    cut: list[str] = []
    one, many = OutputLog(whole.append, Clock()), OutputLog(cut.append, Clock())
    one.feed(b"".join(chunks))
    for chunk in chunks:
        many.feed(chunk)
    one.close()
    many.close()
    assert whole == cut
    assert one.tail() == many.tail()


def test_what_is_not_utf8_is_shown_escaped() -> None:
    lines: list[str] = []
    OutputLog(lines.append, Clock()).feed(b"temp \xff\x00 ok\n")
    assert lines == ["temp \\xff\x00 ok"]


def test_a_flood_is_thinned_and_says_how_much_was_left_out() -> None:
    lines: list[str] = []
    clock = Clock()
    output = OutputLog(lines.append, clock)
    output.feed(b"x\n" * (BURST + 1000))
    assert len(lines) == BURST
    clock.now = 1.0
    output.feed(b"y\n")
    assert lines[BURST:] == ["(1000 lines left out: more than 20 a second)", "y"]


def test_a_line_without_end_is_cut() -> None:
    lines: list[str] = []
    OutputLog(lines.append, Clock()).feed(b"x" * (MAX_LINE * 2 + 5))
    assert [len(line) for line in lines] == [MAX_LINE, MAX_LINE]


def test_the_last_bytes_are_kept() -> None:
    output = OutputLog(lambda line: None, Clock())
    output.feed(b"a" * KEPT)
    output.feed(b"end")
    assert len(output.tail()) == KEPT
    assert output.tail().endswith("aend")
    assert output.received == KEPT + 3


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Fatal Python error: Segmentation fault", True),
        ("Current thread 0x00007f5cd3c5cb80 (most recent call first):", True),
        ("Thread 0x00007f5cd3c5cb80 [backend_0] (most recent call first):", True),
        ('  File "/opt/driver/nvml.py", line 102 in _hang', True),
        ('  File "<frozen runpy>", line 88 in _run_code', True),
        ("Extension modules: msgspec._core, yaml._yaml (total: 2)", True),
        ('  File "/opt/driver/nvml.py", line 102, in prepare', False),
        ("NVRM: Xid 79, GPU has fallen off the bus", False),
        ("Thread pool is exhausted", False),
    ],
)
def test_stacks_of_a_dying_process_are_told_from_what_it_says(line: str, expected: bool) -> None:
    assert is_stack(line) is expected
