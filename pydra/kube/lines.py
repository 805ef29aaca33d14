"""Cuts a stream of bytes into lines, however it was cut before. Pure."""

from __future__ import annotations


class LineTooLong(ValueError):
    """A line grew over the limit; the stream cannot be read further."""


class LineSplitter:
    """Feed it chunks, get whole lines without their newline; empty lines are dropped.

    Work is linear in the bytes fed, also for a line that comes in many chunks.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that this chunk completes; raises LineTooLong."""
        head, newline, rest = chunk.partition(b"\n")
        self._keep(head)
        if not newline:
            return []
        lines = [self._take()]
        *whole, tail = rest.split(b"\n")
        if any(len(line) > self._limit for line in whole):
            raise LineTooLong(f"a line of more than {self._limit} bytes")
        lines += whole
        self._keep(tail)
        return [line for line in lines if line.strip()]

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            raise LineTooLong(f"a line of more than {self._limit} bytes")
        if part:
            self._parts.append(part)

    def _take(self) -> bytes:
        line = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        return line
