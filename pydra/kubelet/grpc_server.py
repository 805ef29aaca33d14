"""A gRPC server on Unix sockets that stops well: calls in flight end, new ones go elsewhere, nothing waits forever.

In front of grpclib's calls (`connection`); gets its sockets bound.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import anyio
from grpclib import GRPCError, Status
from grpclib.config import Configuration
from grpclib.const import Cardinality, Handler
from h2.config import H2Configuration

from pydra.kubelet.codec import Codec
from pydra.kubelet.connection import Calls, Connection
from pydra.kubelet.sockets import BACKLOG

CLOSE_SECONDS = 2.0
"""For the last bytes to reach the client, and for cancelled calls to end; after that the connection is cut."""


LEAVE_SECONDS = 1.0
"""For clients that were told to go elsewhere, and have all their answers, to leave by themselves."""

_ACCEPTING_TURNS = 3


class Servable(Protocol):
    """A gRPC service, generated or not."""

    def __mapping__(self) -> Mapping[str, Handler]:
        """Its methods by their paths."""


class Routes(dict[str, Handler]):
    """Methods by path. An unknown path leads to a method that answers UNIMPLEMENTED.

    grpclib's own answer lacks the content-type, and grpc-go takes that for an error of the transport.
    """

    def get(self, path: str, default: Any = None) -> Handler:
        """The method that serves the path."""
        return super().get(path) or Handler(_refuse(path), Cardinality.UNARY_UNARY, None, None)


def _refuse(path: str) -> Any:
    service, _, method = path.removeprefix("/").rpartition("/")

    async def refuse(_: object) -> None:
        raise GRPCError(Status.UNIMPLEMENTED, f"unknown method {method} of service {service}")

    return refuse


class DrainServer:
    """Serves the services on the listening socket that it is given last; connections outlive a change of sockets."""

    def __init__(self, services: Sequence[Servable]) -> None:
        self._routes = Routes()
        for service in services:
            self._routes.update(service.__mapping__())
        self._codec = Codec()
        self._config = Configuration().__for_server__()
        # Authorities are ignored: the kubelet's are `localhost` and, on the registration socket, the socket's path.
        self._h2_config = H2Configuration(
            client_side=False,
            header_encoding="latin-1",
            validate_inbound_headers=False,
            validate_outbound_headers=False,
            normalize_inbound_headers=False,
            normalize_outbound_headers=False,
        )
        self._connections: set[Connection] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._listener: asyncio.AbstractServer | None = None
        self._draining = False

    async def listen(self, sock: socket.socket) -> None:
        """Accept connections at the bound socket, which is the server's from now on, and no longer at another."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_unix_server(self._connect, sock=sock, backlog=BACKLOG)
        self._stop_listening()
        self._listener = listener

    async def drain(self, grace: float) -> int:
        """Stop: accept nothing new, wait up to `grace` seconds for the calls in flight, then close.

        Returns:
            How many calls had to be cut off.
        """
        self._draining = True
        for connection in tuple(self._connections):
            connection.go_away()
        # The path is gone already. What was accepted before needs a few turns of the loop to become a connection;
        # asyncio's own loop (3.12 and later) loses its descriptor when the listener closes in between.
        for _ in range(_ACCEPTING_TURNS):
            await asyncio.sleep(0)
        self._stop_listening()
        with anyio.move_on_after(grace):
            await self._wait_idle()
        cut_off = len(self._running)
        if not cut_off:
            await self._let_leave()
        for connection in tuple(self._connections):
            connection.close()
        with anyio.move_on_after(CLOSE_SECONDS):
            await self._wait_idle()
            for connection in tuple(self._connections):
                await connection.gone.wait()
        for connection in tuple(self._connections):
            connection.transport.abort()
        return cut_off

    async def _let_leave(self) -> None:
        """Who closes first reads no more. A client that then still writes, if only an acknowledgement, gets an error
        for an answer: gRPC's C core takes a broken pipe for the end of calls whose answers it has not read yet.
        """
        connections = tuple(self._connections)
        for connection in connections:
            connection.transport.write_eof()
        with anyio.move_on_after(LEAVE_SECONDS):
            for connection in connections:
                await connection.gone.wait()

    def _stop_listening(self) -> None:
        # `wait_closed` is left out: from Python 3.12 on it waits for the clients, and the kubelet never leaves.
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _wait_idle(self) -> None:
        while self._running:
            await asyncio.wait(self._running)

    def _connect(self) -> Connection:
        calls = Calls(self._routes, self._codec, self._running)
        return Connection(calls, self._config, self._h2_config, opened=self._opened, closed=self._connections.discard)

    def _opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        if self._draining:  # it was accepted a moment before the listener closed
            connection.go_away()
            connection.close()
