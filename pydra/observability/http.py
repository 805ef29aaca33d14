"""HTTP endpoint for `/metrics`, `/healthz` and `/readyz`.

`/healthz` tells that the event loop is responsive, `/readyz` that the agent can serve claims. `/readyz` answers 503
with one line for each thing that is missing. It needs nothing that another instance of the agent could hold, so two
overlapping instances can both be ready.

Anybody in the cluster may connect, so a server limits what a client can consume (`Limits`). aiohttp
bounds neither the number of connections nor the time until a request's head has arrived.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, cast

import msgspec
from aiohttp import web

from pydra.errors import SettingsError
from pydra.observability.metrics import CONTENT_TYPE

_log = logging.getLogger(__name__)
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for clients: number of connections, and times in seconds."""

    connections: int = 100
    head: float = 10.0
    """Until the head of a connection's first request has arrived, its TLS handshake included."""
    idle: float = 120.0
    """Between requests. Go's clients, such as API servers and Prometheus, close an idle connection after 90 s."""


_DEFAULTS = Limits()


class MetricsSource(Protocol):
    """A source of metrics for Prometheus."""

    def text(self) -> bytes:
        """Return them in Prometheus' text format."""
        ...


def build_routes(metrics: MetricsSource, missing: Callable[[], Sequence[str]]) -> list[web.RouteDef]:
    """Build the three pages; `missing` returns a line for each thing that keeps the process from being ready."""

    async def answer_metrics(_: web.Request) -> web.Response:
        return web.Response(body=metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def answer_alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def answer_ready(_: web.Request) -> web.Response:
        lines = missing()
        return web.Response(text="".join(f"{line}\n" for line in lines) or "ok\n", status=503 if lines else 200)

    return [web.get("/metrics", answer_metrics), web.get("/healthz", answer_alive), web.get("/readyz", answer_ready)]


@asynccontextmanager
async def serve_http(
    host: str,
    port: int,
    *,
    metrics: MetricsSource,
    missing: Callable[[], Sequence[str]],
    limits: Limits = _DEFAULTS,
) -> AsyncIterator[int]:
    """Serve the three pages while the block runs; yield the port, for a `port` of 0.

    Raises:
        SettingsError: the address cannot be bound.
    """
    routes = build_routes(metrics, missing)
    async with serve_routes(routes, host, port, setting="httpAddress", limits=limits) as bound:
        _log.info("serving /metrics, /healthz and /readyz on %s:%d", host, bound)
        yield bound


@asynccontextmanager
async def serve_routes(
    routes: Sequence[web.RouteDef],
    host: str,
    port: int,
    *,
    setting: str,
    limits: Limits,
    largest_body: int = 1024,
    tls: ssl.SSLContext | None = None,
    stop_seconds: float = 1.0,
) -> AsyncIterator[int]:
    """Serve these routes within the limits while the block runs; yield the port. `setting` has the address.

    Requests in progress at the end of the block are answered first, within `stop_seconds`.

    Raises:
        SettingsError: the address cannot be bound.
    """
    connections = _Connections(limits)
    application = web.Application(client_max_size=largest_body, middlewares=[connections.build_middleware()])
    application.add_routes(routes)
    runner = web.AppRunner(
        application,
        access_log=None,
        handle_signals=False,
        auto_decompress=False,
        shutdown_timeout=stop_seconds,
        keepalive_timeout=limits.idle,
        lingering_time=limits.head,  # for what a refused client still sends, so that it reads the refusal
    )
    await runner.setup()
    try:
        assert runner.server is not None
        connections.server = runner.server
        try:
            server = await asyncio.get_running_loop().create_server(
                connections.accept, host, port, ssl=tls, ssl_handshake_timeout=limits.head if tls else None
            )
        except OSError as error:
            raise SettingsError([f"{setting}: cannot listen on {host}:{port}: {error.strerror}"]) from error
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
    finally:
        await runner.cleanup()


class _Connections:
    """Tracks open connections. One too many replaces the one that has been without a request the longest."""

    def __init__(self, limits: Limits) -> None:
        self.server: web.Server | None = None
        self._limits = limits
        self._open: dict[asyncio.BaseProtocol, _Connection] = {}
        # In the order in which they would be closed. Those in the middle of a request are in neither.
        self._without_request: dict[_Connection, None] = {}
        self._idle: dict[_Connection, None] = {}

    def accept(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""
        assert self.server is not None
        connection = _Connection(self.server(), self._forget)
        if len(self._open) >= self._limits.connections:
            ready = (
                one for waiting in (self._without_request, self._idle) for one in waiting if one.transport is not None
            )
            oldest = next(ready, connection)
            oldest.refuse()
            if oldest is connection:
                return connection
        self._open[connection.http] = connection
        self._without_request[connection] = None
        connection.end_after(self._limits.head)
        return connection

    def build_middleware(self) -> Callable[..., Awaitable[web.StreamResponse]]:
        """Build the middleware that notes which connections have a request."""

        @web.middleware
        async def note(request: web.Request, handler: _Handler) -> web.StreamResponse:
            connection = self._open.get(request.protocol)
            if connection is None:  # it was closed in this event loop iteration, and nobody reads the answer
                return await handler(request)
            self._without_request.pop(connection, None)
            self._idle.pop(connection, None)
            connection.end_after(None)
            try:
                return await handler(request)
            finally:
                if request.protocol in self._open:
                    self._idle[connection] = None
                    connection.end_after(self._limits.idle)

        return note

    def _forget(self, connection: _Connection) -> None:
        self._open.pop(connection.http, None)
        self._without_request.pop(connection, None)
        self._idle.pop(connection, None)


class _Connection(asyncio.Protocol):
    """One connection: forwards everything to aiohttp's protocol, and can be closed at any time."""

    def __init__(self, http: asyncio.Protocol, forget: Callable[[_Connection], None]) -> None:
        self.http = http
        self.transport: asyncio.WriteTransport | None = None
        self._forget = forget
        self._refused = False
        self._end: asyncio.TimerHandle | None = None

    def end_after(self, seconds: float | None) -> None:
        """Close the connection after `seconds` instead of at the time set before; None for never."""
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(seconds, self.refuse) if seconds is not None else None

    def refuse(self) -> None:
        """Close it now; during a TLS handshake, the handshake's own deadline does."""
        self._refused = True
        self.end_after(None)
        self._forget(self)
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast("asyncio.WriteTransport", transport)  # those of uvloop are not registered as such
        if self._refused:
            made.abort()
            return
        self.transport = made
        self.http.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end_after(None)
        self._forget(self)
        if self.transport is not None:
            self.http.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.http.data_received(data)

    def eof_received(self) -> bool | None:
        return self.http.eof_received()

    def pause_writing(self) -> None:
        self.http.pause_writing()

    def resume_writing(self) -> None:
        self.http.resume_writing()
