"""Bounds on the webhook's connections: how many there may be, and how long one may take until it asks something.

aiohttp bounds neither; a body that does not arrive is bounded by the handler, which has not begun before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

MOST_CONNECTIONS = 500
"""An API server has one connection for each review that waits."""


class Connections:
    """Makes the protocol of each new connection. `server` is set before the first; seconds in `first_deadline`."""

    def __init__(self, *, most: int, first_deadline: float) -> None:
        self._first_deadline = first_deadline
        self._most = most
        self._silent: set[web.RequestHandler] = set()
        self.server: web.Server | None = None

    def open(self) -> asyncio.BaseProtocol:
        """The protocol of one connection; of one too many, one that ends it."""
        assert self.server is not None
        if len(self._silent.union(self.server.connections)) >= self._most:  # some are still in their handshake
            return _TooMany()
        protocol = self.server()
        self._silent.add(protocol)
        asyncio.get_running_loop().call_later(self._first_deadline, self._end_silent, protocol)
        return protocol

    def _end_silent(self, protocol: web.RequestHandler) -> None:
        if protocol in self._silent:
            self._silent.discard(protocol)
            if protocol.transport is not None:
                protocol.transport.abort()

    def build_middleware(self) -> Callable[..., Awaitable[web.StreamResponse]]:
        """What tells a connection that asked from one that only stands."""

        @web.middleware
        async def note(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            self._silent.discard(request.protocol)
            return await handler(request)

        return note


class _TooMany(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.abort()
