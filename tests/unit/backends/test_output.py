"""What a backend prints is logged line by line, at a bounded rate, and its end is kept."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydra.backends.process_output import (
    KEPT_OUTPUT,
    LINES_AT_ONCE,
    MAX_LINE,
    READ_PER_PERIOD,
    LogLimit,
    OutputLog,
    OutputPipe,
    ProcessOutput,
    is_stack,
)
from pydra.backends.wire import LogLine


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def build_log(lines: list[str], clock: Clock | None = None) -> OutputLog:
    return OutputLog(lines.append, LogLimit(lines.append, clock or Clock()))


@pytest.mark.fuzz
@given(st.lists(st.binary(max_size=30), max_size=20))
def test_lines_are_the_same_however_the_output_is_cut(chunks: list[bytes]) -> None:
    whole: list[str] = []
    cut: list[str] = []
    one, many = build_log(whole), build_log(cut)
    one.feed(b"".join(chunks))
    for chunk in chunks:
        many.feed(chunk)
    one.close()
    many.close()
    assert whole == cut
    assert one.tail() == many.tail()


def test_what_is_not_utf8_is_shown_escaped_and_what_lacks_a_newline_at_the_end() -> None:
    lines: list[str] = []
    log = build_log(lines)
    log.feed(b"temp \xff\x00 ok\nlast ")
    log.feed(b"words")
    for _ in range(2):
        log.close()
    assert lines == ["temp \\xff\x00 ok", "last words"]


def test_lines_beyond_the_limit_are_dropped_and_counted() -> None:
    lines: list[str] = []
    clock = Clock()
    output = build_log(lines, clock)
    output.feed(b"x\n" * (LINES_AT_ONCE + 1000))
    assert len(lines) == LINES_AT_ONCE
    clock.now = 1.0
    output.feed(b"y\n")
    assert lines[LINES_AT_ONCE:] == ["(1000 lines were dropped: more than 20 a second)", "y"]


def test_a_line_without_end_is_cut() -> None:
    lines: list[str] = []
    build_log(lines).feed(b"x" * (MAX_LINE * 2 + 5))
    assert [len(line) for line in lines] == [MAX_LINE, MAX_LINE]


def test_the_last_bytes_are_kept() -> None:
    output = build_log([])
    output.feed(b"a" * KEPT_OUTPUT)
    output.feed(b"end")
    assert len(output.tail()) == KEPT_OUTPUT
    assert output.tail().endswith("aend")
    assert output.received == KEPT_OUTPUT + 3


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
def test_stacks_of_a_dying_process_are_distinguished_from_what_it_says(line: str, expected: bool) -> None:
    assert is_stack(line) is expected


class Transport(asyncio.ReadTransport):
    """Counts how often reading was paused and resumed."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = 0
        self.resumed: Callable[[], None] = lambda: None

    def pause_reading(self) -> None:
        self.paused += 1

    def resume_reading(self) -> None:
        self.paused -= 1
        self.resumed()

    def is_closing(self) -> bool:
        return False


@pytest.mark.parametrize("size", [2, 64 * 1024])
def test_a_stream_without_end_is_read_a_bounded_number_of_times_in_each_period(size: int) -> None:
    loop, transport, lines = asyncio.new_event_loop(), Transport(), list[str]()
    try:
        pipe = OutputPipe(build_log(lines), lambda: None, loop)
        pipe.connection_made(transport)
        reads = 0
        while not transport.paused:
            pipe.data_received(b"x\n" * (size // 2))
            reads += 1
        assert reads <= 128
        assert reads * size <= READ_PER_PERIOD
        assert len(lines) <= LINES_AT_ONCE
        loop.call_later(30.0, loop.stop)
        transport.resumed = loop.stop
        loop.run_forever()
        assert transport.paused == 0, "what it writes from now on is read in the next period"
    finally:
        loop.close()


async def test_levels_of_a_backends_lines_take_no_memory_however_many_there_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    output = ProcessOutput("levels")
    output.log(LogLine(level=10**9, logger="x", message="urgent"))
    assert caplog.records[-1].levelno == logging.CRITICAL
    for number in range(2 * LINES_AT_ONCE):
        output.log(LogLine(level=number, logger="x", message=""))
    tracemalloc.start()
    try:
        for number in range(20_000):
            output.log(LogLine(level=number, logger="x", message=""))
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
