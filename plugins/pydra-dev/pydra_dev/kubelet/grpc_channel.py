"""A gRPC channel that treats its connection as grpc-go does: it knows whether it is connected, and honours GOAWAY.

grpclib connects when a call needs it, tells nobody when a connection is lost, and on GOAWAY ends
the calls that the server still works on. The kubelet's grpc-go connects at once, watches, and lets
them finish. This touches private attributes of grpclib 0.4; the tests hold it to them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from grpclib.client import Channel, Handler
from grpclib.config import Configuration
from grpclib.protocol import H2Protocol
from h2.config import H2Configuration

FRAME_HEADER = 9
GOAWAY = 0x7


@contextmanager
def settle_cancellation() -> Iterator[None]:
    """Put around calls over grpclib: what it raises has nothing of a cancellation left.

    To wake a call whose time is over or whose connection is lost, grpclib cancels its task, raises
    the error in place of CancelledError, and leaves the cancellation counted. anyio would later
    take the count for a cancellation from outside, and end the task group without a word.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        yield
    except Exception:
        while task.cancelling() > before:
            task.uncancel()
        raise


class GoAwayFilter:
    """Takes GOAWAY frames out of a connection's bytes; h2 would refuse everything that comes after one."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """The whole frames so far without GOAWAY, and whether there was one."""
        data = self._rest + data
        kept, position, going = bytearray(), 0, False
        while len(data) - position >= FRAME_HEADER:
            length = int.from_bytes(data[position : position + 3], "big")
            end = position + FRAME_HEADER + length
            if end > len(data):
                break
            if data[position + 3] == GOAWAY:
                going = True
            else:
                kept += data[position:end]
            position = end
        self._rest = data[position:]
        return bytes(kept), going


class _Protocol(H2Protocol):
    """One connection: says when it is usable, and when no new calls may be made on it."""

    def __init__(self, channel: WatchedChannel, config: Configuration, h2_config: H2Configuration) -> None:
        self.calls = Handler()
        super().__init__(self.calls, config, h2_config)
        self._channel = channel
        self._frames = GoAwayFilter()

    def data_received(self, data: bytes) -> None:
        data, going = self._frames.feed(data)
        if going:
            self._channel.detach(self)
        if data:
            super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._channel.detach(self)


class WatchedChannel(Channel):
    """A channel to a Unix socket. `on_lost` is called when its connection takes no new calls any more."""

    def __init__(self, path: str, *, authority: str = "localhost", on_lost: Callable[[], None] = lambda: None) -> None:
        super().__init__(path=path)
        self._authority = authority
        self._on_lost = on_lost
        self._draining: list[_Protocol] = []

    @property
    def connected(self) -> bool:
        """Whether a call would be sent at once."""
        return self._connected

    async def connect(self) -> None:
        """Connect unless connected; raises OSError."""
        await self.__connect__()

    def detach(self, protocol: _Protocol) -> None:
        """Send nothing new over this connection; calls in flight go on until it ends."""
        if protocol in self._draining:
            self._draining.remove(protocol)
        elif protocol is self._protocol:
            self._protocol = None
            if not protocol.calls.connection_lost:
                self._draining.append(protocol)
            self._on_lost()

    def close(self) -> None:
        """Close the connection, and those that were draining."""
        for protocol in self._draining:
            protocol.processor.close()
        self._draining.clear()
        if self._protocol is not None:
            self._protocol.processor.close()
            self._protocol = None
        super().close()

    def _protocol_factory(self) -> H2Protocol:
        return _Protocol(self, self._config, self._h2_config)
