"""One end of the connection between agent and backend: messages in and out of a socket.

Bytes become messages in `pydra.backends.wire`; what messages mean is not known here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Generic, TypeVar, cast

from pydra.backends.wire import FrameSplitter, Message, WireError, build_frame

M = TypeVar("M")


class Channel(asyncio.Protocol, Generic[M]):
    """Gives each message to `on_message`, and `on_end` its reason, once: None when the other end closed.

    After malformed bytes nothing more is read: where the next frame begins is unknown.
    """

    def __init__(
        self,
        parse: Callable[[bytes], M],
        on_message: Callable[[M], None],
        on_end: Callable[[WireError | None], None],
    ) -> None:
        self._parse = parse
        self._on_message = on_message
        self._on_end = on_end
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._closed = asyncio.Event()
        self._ended = False
        self._finished = False

    async def open(self, sock: socket.socket) -> None:
        """Take over the connected socket."""
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: self, sock=sock)

    def send(self, message: Message) -> None:
        """Queue a message. Raises WireError when it is too large; dropped once the connection is gone or finished."""
        frame = build_frame(message)
        if self._transport is not None and not self._finished and not self._transport.is_closing():
            self._transport.write(frame)

    async def drain(self) -> None:
        """Wait while the other end is slow to read."""
        await self._writable.wait()

    def finish(self) -> None:
        """Say that no more will be sent; the other end may still answer."""
        if self._transport is not None and not self._finished and not self._transport.is_closing():
            self._finished = True
            self._transport.write_eof()

    def close(self) -> None:
        """Drop the connection and what was not sent."""
        if self._transport is not None:
            self._transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the connection is gone, after `close`."""
        if self._transport is not None:
            await self._closed.wait()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # noqa: D102
        self._transport = cast("asyncio.Transport", transport)
        self._writable.set()

    def data_received(self, data: bytes) -> None:  # noqa: D102
        if self._ended:
            return
        try:
            for body in self._splitter.feed(data):
                self._on_message(self._parse(body))
        except WireError as error:
            self._end(error)

    def eof_received(self) -> bool:  # noqa: D102
        self._end(None)
        return True  # keep our half open: an answer may still be on its way out

    def pause_writing(self) -> None:  # noqa: D102
        self._writable.clear()

    def resume_writing(self) -> None:  # noqa: D102
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._writable.set()
        self._closed.set()
        self._end(None)

    def _end(self, reason: WireError | None) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(reason)
