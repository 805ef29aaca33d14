"""Turns what a backend's process prints and logs into lines of the agent's log, at a bounded rate.

The end of what it prints on stderr is kept for crash reports.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable
from typing import cast

import anyio

from pydra.backends.wire import MAX_EXCEPTION, MAX_MESSAGE, MAX_NAME, Budget, LogLine

KEPT_OUTPUT = 64 * 1024
"""Bytes of stderr kept for the crash report."""

MAX_LINE = 4096
LINES_AT_ONCE = 200
LINES_PER_SECOND = 20.0
READ_PER_PERIOD = 256 * 1024
"""Bytes of output read in each period; a read counts as at least `_READ_COST`, however little it brought."""

_READ_COST = 2048
_PERIOD_SECONDS = 0.1
_QUIET_SECONDS = 0.05


_STACK = re.compile(
    r"Fatal Python error: |(Current thread|Thread) 0x|Stack \(most recent|Extension modules: |"
    r'  File "[^"]*", line (\d+|\?\?\?) in |  \.\.\.$|  <no Python frame>'
)


def is_stack(line: str) -> bool:
    """Return whether faulthandler wrote this line; the report on the process's end has all of them together."""
    return _STACK.match(line) is not None


class LogLimit:
    """Admits LINES_AT_ONCE lines, and then LINES_PER_SECOND; reports how many it dropped."""

    def __init__(self, report: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._report = report
        self._clock = clock
        self._allowance = float(LINES_AT_ONCE)
        self._refilled = clock()
        self._dropped = 0

    def admit(self) -> bool:
        """Return whether one more line is admitted."""
        now = self._clock()
        self._allowance = min(float(LINES_AT_ONCE), self._allowance + (now - self._refilled) * LINES_PER_SECOND)
        self._refilled = now
        if self._allowance < 1:
            return False
        self._allowance -= 1
        self.flush()
        return True

    def drop(self, lines: int) -> None:
        """Count lines that were not admitted."""
        self._dropped += lines

    def flush(self) -> None:
        """Report how many lines were dropped, if any."""
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            self._report(f"({dropped} lines were dropped: more than {LINES_PER_SECOND:g} a second)")


class OutputLog:
    """Splits a stream in any encoding into lines: `emit` gets those that the limit admits, `tail` returns the end."""

    def __init__(self, emit: Callable[[str], None], limit: LogLimit) -> None:
        self._emit = emit
        self._limit = limit
        self._tail = bytearray()
        self._partial = b""
        self.received = 0

    def feed(self, data: bytes) -> None:
        """Process the next bytes, split anywhere. Dropped lines are counted together, without work for each."""
        self.received += len(data)
        self._tail += data
        del self._tail[:-KEPT_OUTPUT]
        data = self._partial + data
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            if not self._limit.admit():
                self._limit.drop(data.count(b"\n", start))
                start = data.rfind(b"\n") + 1
                break
            self._pass(data[start:end])
            start = end + 1
        while len(data) - start > MAX_LINE:  # a line without end must not be kept without end
            if not self._limit.admit():
                pieces = (len(data) - start) // MAX_LINE
                self._limit.drop(pieces)
                start += pieces * MAX_LINE
                break
            self._pass(data[start : start + MAX_LINE])
            start += MAX_LINE
        self._partial = data[start:]

    def close(self) -> None:
        """Log the rest."""
        self._pass(self._partial)
        self._partial = b""
        self._limit.flush()

    def tail(self) -> str:
        """Return the last `KEPT_OUTPUT` bytes."""
        return self._tail.decode("utf-8", "backslashreplace")

    def _pass(self, line: bytes) -> None:
        text = line[:MAX_LINE].decode("utf-8", "backslashreplace").rstrip()
        if text:
            self._emit(text)


class OutputPipe(asyncio.Protocol):
    """The read end of stdout or stderr. At most READ_PER_PERIOD is read in each period; the writer waits."""

    def __init__(self, output: OutputLog, on_data: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        self._output = output
        self._on_data = on_data
        self._loop = loop
        self._budget = Budget(READ_PER_PERIOD, _PERIOD_SECONDS)
        self._transport: asyncio.ReadTransport | None = None
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        self._transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        self._output.feed(data)
        self._on_data()
        pause = self._budget.spend(max(len(data), _READ_COST), self._loop.time())
        if pause and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._loop.call_later(pause, self._go_on)

    def _go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._output.close()
        self.ended.set()
        self._on_data()


async def connect_pipe(reader: int, protocol: asyncio.Protocol) -> asyncio.ReadTransport:
    """Start reading from the pipe; the transport owns the descriptor and closes it once.

    asyncio lets the file object close the descriptor. uvloop closes it itself, and then the file object: in between,
    another thread may have got the same number for a record that it writes, and would lose it.
    """
    loop = asyncio.get_running_loop()
    file = os.fdopen(reader, "rb", buffering=0, closefd=not type(loop).__module__.startswith("uvloop"))
    transport, _ = await loop.connect_read_pipe(lambda: protocol, file)
    return transport


class ProcessOutput:
    """What one process prints on stdout and stderr, and what it logs; neither can silence the others.

    Between `open` and `close` it is read.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._log = logging.getLogger(f"pydra.backend.{backend}")
        self._limits = [LogLimit(self._log.warning) for _ in range(3)]
        self._stderr = OutputLog(self._log_stderr, self._limits[1])
        logs = (OutputLog(self._log.info, self._limits[0]), self._stderr)
        self._pipes = [OutputPipe(log, self._note_written, asyncio.get_running_loop()) for log in logs]
        self._transports: list[asyncio.BaseTransport] = []
        self._written = asyncio.Event()

    @property
    def level(self) -> int:
        """The level from which on the backend's lines are wanted."""
        return self._log.getEffectiveLevel()

    async def open(self, writers: list[int]) -> None:
        """Append the descriptors that the process gets as stdout and stderr; the caller closes them. Raises OSError."""
        for pipe in self._pipes:
            reader, writer = os.pipe()
            writers.append(writer)
            self._transports.append(await connect_pipe(reader, pipe))

    def log(self, line: LogLine) -> None:
        """Log a line of the backend's own logging."""
        # One of a few: logging remembers each level that it was asked for.
        level = min(max(line.level, logging.NOTSET), logging.CRITICAL)
        if not self._log.isEnabledFor(level):
            return
        if not self._limits[2].admit():
            self._limits[2].drop(1)
            return
        fields = {"backend": self._backend}
        if line.uid:
            fields |= {"claim": line.claim[:MAX_NAME], "uid": line.uid[:MAX_NAME]}
        if line.exception:
            fields["details"] = line.exception[:MAX_EXCEPTION]
        # Without a logger of that name: a backend could create any number of them.
        name, message = f"{self._log.name}.{line.logger[:MAX_NAME]}", line.message[:MAX_MESSAGE]
        record = self._log.makeRecord(name, level, "", 0, message, (), None, extra={"fields": fields})
        self._log.handle(record)

    def flush(self) -> None:
        """Report lines that were dropped."""
        for limit in self._limits:
            limit.flush()

    def tail(self) -> str:
        """Return the end of stderr."""
        return self._stderr.tail()

    def received(self) -> int:
        """Return how many bytes stderr had."""
        return self._stderr.received

    async def wait_quiet(self, before: int, seconds: float) -> None:
        """Wait until stderr has more than `before` bytes and nothing follows; for each of the two at most `seconds`."""
        with anyio.move_on_after(seconds):
            while self._stderr.received == before:
                await self._wait_written()
        quiet = False
        with anyio.move_on_after(seconds):
            while not quiet:
                with anyio.move_on_after(_QUIET_SECONDS) as pause:
                    await self._wait_written()
                quiet = pause.cancelled_caught

    def close(self) -> None:
        """Read no more."""
        for transport in self._transports:
            transport.close()

    async def wait_closed(self) -> None:
        """Wait until both streams have ended: the process's own children may hold them open."""
        for pipe in self._pipes:
            await pipe.ended.wait()

    def _note_written(self) -> None:
        self._written.set()

    async def _wait_written(self) -> None:
        self._written.clear()
        await self._written.wait()

    def _log_stderr(self, line: str) -> None:
        self._log.log(logging.DEBUG if is_stack(line) else logging.WARNING, line)
