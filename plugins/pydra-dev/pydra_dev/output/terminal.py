"""The terminal of `pydra dev`: what it prints, and how long it is waiting."""

from __future__ import annotations

import io
import os
import re
import select
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable

import anyio
from anyio.abc import ByteReceiveStream

from pydra_dev.output.descriptions import Paragraph, render

PROGRESS_SECONDS = 5.0
WATCH_SECONDS = 0.2
_DIFFERING = re.compile(r"\b(0x[0-9a-f]+|\d+(\.\d+)? (s|seconds))\b")


class Output:
    """Standard output until nobody reads it any more: `head` has ended, or the terminal is closed."""

    def __init__(self) -> None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # a pipe gets what the backend prints when it prints it
        self.closed = False
        self.when_closed: Callable[[], None] = lambda: None

    def write(self, text: str) -> None:
        """Print a paragraph."""
        if self.closed:
            return
        try:
            print(text, flush=True)  # noqa: T201 - this is what it is for
        except OSError:
            self._close()

    async def watch(self) -> None:
        """Return when nobody reads any more, also while nothing is printed."""
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # of which errors are reported always
        while not self.closed:
            if any(event & select.POLLERR for _, event in poll.poll(0)):
                self._close()
                return
            await anyio.sleep(WATCH_SECONDS)

    def _close(self) -> None:
        self.closed = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        self.when_closed()


async def read_lines(stream: ByteReceiveStream) -> AsyncIterator[str]:
    """The lines that a program writes, the last one also if it does not end."""
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


class Progress:
    """Says every few seconds what is still waited for; `look` must be called more often."""

    def __init__(
        self, say: Callable[[Paragraph], None], what: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say = say
        self._what = what
        self._clock = clock
        self._begun = clock()
        self._next = PROGRESS_SECONDS

    def look(self) -> None:
        """Say it if it is time."""
        waited = self._clock() - self._begun
        if waited >= self._next:
            self._say(Paragraph(headline=f"waiting until {self._what}, for {waited:.0f} s"))
            self._next += PROGRESS_SECONDS


ORDINARY = (
    "registered: ",
    "published: ",
    "applied: ",
    "allocated: ",
    "prepared: ",
    "CDI spec: ",
    "container created: ",
    "unprepared: ",
    "stopped: ",
)
"""How paragraphs begin that say what has gone well, each at length."""


class Printer:
    """Prints paragraphs with the time since the start, and passes them on; a failure that repeats is only counted.

    `quiet`: of what has gone well, only the headlines.
    """

    def __init__(
        self,
        write: Callable[[str], None],
        clock: Callable[[], float],
        tell: Callable[[Paragraph, float], None] = lambda _paragraph, _seconds: None,
        *,
        quiet: bool = False,
    ) -> None:
        self.write = write
        self._quiet = quiet
        self._clock = clock
        self._tell = tell
        self.restart()

    def restart(self) -> None:
        """Count from zero."""
        self._start = self._clock()
        self._failures: Counter[tuple[str, ...]] = Counter()
        self._first: list[tuple[tuple[str, ...], Paragraph]] = []

    def say(self, paragraph: Paragraph) -> None:
        """Print it."""
        seconds = self._clock() - self._start
        is_short = self._quiet and paragraph.headline.startswith(ORDINARY)
        self.write(render(Paragraph(headline=paragraph.headline) if is_short else paragraph, seconds))
        self._tell(paragraph, seconds)

    def say_failure(self, key: tuple[str, ...], paragraph: Paragraph) -> None:
        """Print it the first time that there is one with this key, and how often there was after 4, 16, 64, ...

        Addresses and durations in the key do not count: they differ each time.
        """
        key = tuple(_DIFFERING.sub("#", text) for text in key)
        self._failures[key] += 1
        count = self._failures[key]
        if count == 1:
            self._first.append((key, paragraph))
            self.say(paragraph)
        elif count & (count - 1) == 0 and count.bit_length() % 2:
            self.say(Paragraph(headline=f"{paragraph.headline}, for the {count}th time with the same error"))

    def summarize(self) -> None:
        """Print what has failed once more, in short, and how often; nothing if nothing has."""
        lines = []
        for key, paragraph in self._first:
            count = self._failures[key]
            lines.append(paragraph.headline.rstrip(":") + (f", {count} times" if count > 1 else ""))
            lines += [f"  {line}" for line in _choose_detail(paragraph)]
        if lines:
            self.say(Paragraph(headline=f"problems: {len(self._first)}", details=tuple(lines)))


def _choose_detail(paragraph: Paragraph) -> tuple[str, ...]:
    """What a failure says in one line: the first, or of a traceback the error at its end."""
    is_traceback = any(line.lstrip().startswith("Traceback") for line in paragraph.details)
    return paragraph.details[-1:] if is_traceback else paragraph.details[:1]
