"""Pipes of a backend's process: a descriptor is closed once, whichever event loop reads it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest
import uvloop

from pydra.backends.process_output import connect_pipe

PIPES = 500


@pytest.fixture(scope="module", autouse=True)
def _libuv() -> None:
    """libuv opens a pipe for signals with its first loop, and keeps it as long as the process lives."""
    uvloop.run(asyncio.sleep(0))


class Opener(Thread):
    """Opens, looks at and closes a directory again and again, as a thread that writes records does."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
        self.ended = Event()
        self.robbed = 0

    def run(self) -> None:
        while not self.ended.is_set():
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                for _ in range(3):
                    os.fstat(descriptor)
                os.close(descriptor)
            except OSError:
                self.robbed += 1


class Reader(asyncio.Protocol):
    """Knows when it is over."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


async def open_and_close_pipes() -> None:
    for _ in range(PIPES):
        reader, writer = os.pipe()
        os.close(writer)
        protocol = Reader()
        transport = await connect_pipe(reader, protocol)
        transport.close()
        await protocol.lost.wait()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_no_file_of_another_thread_is_closed_with_a_pipe(run: Callable[[Any], None], tmp_path: Any) -> None:
    before = len(os.listdir("/proc/self/fd"))
    openers = [Opener(str(tmp_path)) for _ in range(4)]
    for opener in openers:
        opener.start()
    try:
        run(open_and_close_pipes())
    finally:
        for opener in openers:
            opener.ended.set()
            opener.join()
    assert sum(opener.robbed for opener in openers) == 0
    assert len(os.listdir("/proc/self/fd")) <= before, "and none is left open"
