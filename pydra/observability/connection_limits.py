"""Accepts connections within limits, so that no client keeps the others out.

Anybody in the cluster may connect. What a client could use up is therefore bounded before any of its bytes is read:
connections (handshakes included), the time until a request has arrived, and how many connections begin in a second.
A client is an address. One connection too many replaces one of the client that has the most, and clients that wait
begin in turn, so a client with many connections delays and replaces its own.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from enum import IntEnum
from typing import cast

import msgspec
from aiohttp import web

_log = logging.getLogger(__name__)
_BACKLOG = 1024
_ACCEPTS = 16
"""Connections accepted at a time: the event loop has other work in between."""
_RETRY_SECONDS = 1.0
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for clients: number of connections, and times in seconds."""

    connections: int = 100
    """That have begun: they cost memory."""
    waiting: int = 200
    """That have sent nothing yet, or wait for their turn to begin: they cost a file descriptor each."""
    head: float = 10.0
    """Until the head of a connection's first request has arrived, its TLS handshake included."""
    idle: float = 120.0
    """Between requests. Go's clients, such as API servers and Prometheus, close an idle connection after 90 s."""
    begin: int = 300
    """Connections that begin in a second; others wait for their turn."""


class _Stage(IntEnum):
    """What a connection does; the lower it is, the sooner another one takes its place."""

    SILENT = 0
    ASKING = 1
    IDLE = 2
    QUEUED = 3
    """It has sent something, and waits for its turn to begin."""
    ANSWERED = 4

    @property
    def is_kept(self) -> bool:
        """Whether it is closed only for a client that has fewer connections."""
        return self >= _Stage.QUEUED


class Connections:
    """Tracks the open connections of one server. `build` makes the protocol of one that begins."""

    def __init__(self, limits: Limits, build: Callable[[], asyncio.Protocol], tls: ssl.SSLContext | None) -> None:
        self._limits = limits
        self._build = build
        self._tls = tls
        self._turns = _Turns(limits.begin)
        self._waiting = _Places(limits.waiting)
        self._begun = _Places(limits.connections)
        self._by_http: dict[asyncio.BaseProtocol, _Connection] = {}

    @asynccontextmanager
    async def accept_from(self, listeners: Sequence[socket.socket]) -> AsyncIterator[None]:
        """Accept connections while the block runs, and close the listeners."""
        loop = asyncio.get_running_loop()
        turns = loop.create_task(self._turns.run(), name="turns of connections")
        for listener in listeners:
            loop.add_reader(listener, self._accept, listener)
        try:
            yield
        finally:
            for listener in listeners:
                loop.remove_reader(listener)
                listener.close()
            self._waiting.close()
            turns.cancel()

    async def note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer the request, and note meanwhile that its connection has one."""
        connection = self._by_http.get(request.protocol)
        if connection is None:  # it was closed in this event loop iteration, and nobody reads the answer
            return await handler(request)
        self._enter(connection, request, None)
        try:
            return await handler(request)
        finally:
            if connection in self._begun:
                self._enter(connection, None, self._limits.idle)

    def _enter(self, connection: _Connection, request: web.Request | None, seconds: float | None) -> None:
        connection.request = request
        connection.without_request = _Stage.IDLE
        connection.end_after(seconds)
        self._begun.renew(connection)

    def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTS):
            try:
                accepted, address = listener.accept()
            except OSError as error:
                if error.errno in _NO_ROOM:
                    _log.warning("a connection cannot be accepted: %s", error.strerror)
                    loop.remove_reader(listener)
                    loop.call_later(_RETRY_SECONDS, self._accept_again, listener)
                return
            accepted.setblocking(False)
            connection = _Connection(accepted, str(address[0]), self)
            if self._waiting.add(connection):
                connection.end_after(self._limits.head)
                connection.beginning = loop.create_task(self._begin(connection, accepted))
            else:
                accepted.close()

    def _accept_again(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def _begin(self, connection: _Connection, accepted: socket.socket) -> None:
        """Hand the connection to its protocol when the client has sent something: before, it costs no memory."""
        loop = asyncio.get_running_loop()
        try:
            await _wait_readable(accepted)
            connection.without_request = _Stage.QUEUED
            await self._turns.wait(connection.client)
            connection.without_request = _Stage.ASKING
            self._waiting.discard(connection)
            if not self._begun.add(connection):
                return
            deadline = self._limits.head if self._tls else None
            await loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=deadline
            )
        except OSError as error:
            _log.debug("a connection from %s did not begin: %s", connection.client, error)
        finally:
            if connection.transport is None:
                self.forget(connection)
                accepted.close()

    def begun(self, connection: _Connection) -> asyncio.Protocol:
        """Return the protocol of a connection that begins."""
        http = self._build()
        self._by_http[http] = connection
        return http

    def forget(self, connection: _Connection) -> None:
        """Give its place to another one."""
        connection.end_after(None)
        self._waiting.discard(connection)
        self._begun.discard(connection)
        if connection.http is not None:
            self._by_http.pop(connection.http, None)


class _Connection(asyncio.Protocol):
    """One connection: forwards everything to aiohttp's protocol, and can be closed at any time."""

    def __init__(self, accepted: socket.socket, client: str, connections: Connections) -> None:
        self.client = client
        self.http: asyncio.Protocol | None = None
        self.transport: asyncio.WriteTransport | None = None
        self.beginning: asyncio.Task[None] | None = None
        self.request: web.Request | None = None
        self.without_request = _Stage.SILENT
        self._connections = connections
        self._refused = False
        self._end: asyncio.TimerHandle | None = None

    @property
    def stage(self) -> _Stage:
        """What it does; a request whose body has not arrived is still being asked."""
        if self.request is None:
            return self.without_request
        return _Stage.ANSWERED if self.request.content.is_eof() else _Stage.ASKING

    def end_after(self, seconds: float | None) -> None:
        """Close the connection after `seconds` instead of at the time set before; None for never."""
        if self._end is not None:
            self._end.cancel()
        self._end = asyncio.get_running_loop().call_later(seconds, self.refuse) if seconds is not None else None

    def refuse(self) -> None:
        """Close it now, whatever it does."""
        self._refused = True
        self._connections.forget(self)
        if self.transport is not None:
            self.transport.abort()
        elif self.beginning is not None:
            self.beginning.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        made = cast("asyncio.WriteTransport", transport)  # those of uvloop are not registered as such
        self.transport = made
        if self._refused:
            made.abort()
            return
        self.http = self._connections.begun(self)
        self.http.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.forget(self)
        if self.http is not None:
            self.http.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.http is not None:
            self.http.data_received(data)

    def eof_received(self) -> bool | None:
        return self.http.eof_received() if self.http is not None else None

    def pause_writing(self) -> None:
        if self.http is not None:
            self.http.pause_writing()

    def resume_writing(self) -> None:
        if self.http is not None:
            self.http.resume_writing()


class _Places:
    """Places for connections; the one that has been in its stage the longest comes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: dict[_Connection, None] = {}
        self._of_client: Counter[str] = Counter()

    def __contains__(self, connection: _Connection) -> bool:
        return connection in self._taken

    def add(self, connection: _Connection) -> bool:
        """Return whether it has a place. If all are taken, another connection is closed, unless each is in use."""
        if len(self._taken) >= self._most:
            first = min(self._taken, key=self._order)
            own, others = self._of_client[connection.client], self._of_client[first.client]
            if first.stage.is_kept and others <= own + 1:
                return False
            first.refuse()
        self._taken[connection] = None
        self._of_client[connection.client] += 1
        return True

    def renew(self, connection: _Connection) -> None:
        """Note that it entered another stage."""
        del self._taken[connection]
        self._taken[connection] = None

    def discard(self, connection: _Connection) -> None:
        """Free its place, if it has one."""
        if connection in self._taken:
            del self._taken[connection]
            self._of_client -= Counter((connection.client,))

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._taken):
            connection.refuse()

    def _order(self, connection: _Connection) -> tuple[bool, int, int]:
        return connection.stage.is_kept, -self._of_client[connection.client], connection.stage


class _Turns:
    """Lets so many begin in a second, one of each client in turn."""

    def __init__(self, in_a_second: int) -> None:
        self._pause = 1 / in_a_second
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        self._some = asyncio.Event()

    async def wait(self, client: str) -> None:
        """Wait for a turn of this client."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, {})[turn] = None
        self._some.set()
        try:
            await turn
        except asyncio.CancelledError:
            turns = self._waiting.get(client, {})
            turns.pop(turn, None)
            if not turns:
                self._waiting.pop(client, None)
            raise

    async def run(self) -> None:
        """Give turns until cancelled."""
        while True:
            await self._some.wait()
            if self._waiting:
                self._give()
                await asyncio.sleep(self._pause)
            else:
                self._some.clear()

    def _give(self) -> None:
        client = next(iter(self._waiting))
        turns = self._waiting.pop(client)
        turn = next(iter(turns))
        del turns[turn]
        if turns:
            self._waiting[client] = turns  # behind all others
        if not turn.done():
            turn.set_result(None)


async def bind(host: str, port: int) -> list[socket.socket]:
    """Listen on each address of the host. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listeners: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((one[0], one[4]) for one in found):
            listeners.append(socket.create_server(address[:2], family=family, backlog=_BACKLOG))
            listeners[-1].setblocking(False)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


async def _wait_readable(accepted: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable = loop.create_future()

    def note() -> None:
        loop.remove_reader(accepted)
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(accepted, note)
    try:
        await readable
    finally:
        loop.remove_reader(accepted)
