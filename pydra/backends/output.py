"""What a backend prints: line by line into the agent's log, at a bounded rate, the end of it kept.

No I/O: bytes are fed in, the clock and the log are arguments.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

KEPT = 64 * 1024
"""Bytes kept for the crash report."""

MAX_LINE = 4096
BURST = 200
PER_SECOND = 20.0


_STACK = re.compile(
    r"Fatal Python error: |(Current thread|Thread) 0x|Stack \(most recent|Extension modules: |"
    r'  File "[^"]*", line (\d+|\?\?\?) in |  \.\.\.$|  <no Python frame>'
)


def is_stack(line: str) -> bool:
    """Whether faulthandler wrote this line; the report of the process's end has them all, in one piece."""
    return _STACK.match(line) is not None


class OutputLog:
    """One stream of a process: `emit` gets its lines, `tail` has its end."""

    def __init__(self, emit: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._emit = emit
        self._clock = clock
        self._tail = bytearray()
        self._partial = bytearray()
        self._allowance = float(BURST)
        self._refilled = clock()
        self._suppressed = 0
        self.received = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes, cut anywhere."""
        self.received += len(data)
        self._tail += data
        del self._tail[:-KEPT]
        *lines, rest = (self._partial + data).split(b"\n")
        self._partial = rest
        for line in lines:
            self._line(bytes(line))
        while len(self._partial) > MAX_LINE:  # a line without end must not grow without end
            self._line(bytes(self._partial[:MAX_LINE]))
            del self._partial[:MAX_LINE]

    def close(self) -> None:
        """Log what is left."""
        if self._partial:
            self._line(bytes(self._partial))
            self._partial.clear()
        self._tell_suppressed()

    def tail(self) -> str:
        """The last `KEPT` bytes, whatever they were encoded in."""
        return self._tail.decode("utf-8", "backslashreplace")

    def _line(self, line: bytes) -> None:
        if not line.strip():
            return
        now = self._clock()
        self._allowance = min(float(BURST), self._allowance + (now - self._refilled) * PER_SECOND)
        self._refilled = now
        if self._allowance < 1:
            self._suppressed += 1
            return
        self._allowance -= 1
        self._tell_suppressed()
        text = line[:MAX_LINE].decode("utf-8", "backslashreplace")
        self._emit(text.rstrip())

    def _tell_suppressed(self) -> None:
        if self._suppressed:
            self._emit(f"({self._suppressed} lines left out: more than {PER_SECOND:g} a second)")
            self._suppressed = 0
