"""The HTTP session to one API server: how many connections, how long they live, how a dead peer is noticed."""

from __future__ import annotations

import socket
from typing import Any

from pydra.kube.credentials import Credentials
from pydra.kube.transport import aiohttp

CONNECTIONS = 64
"""Connections at once, watches included. More would only cost handshakes: 64 requests are answered in milliseconds."""
IDLE_CONNECTION_SECONDS = 75.0
"""Kept open unused for less than the API server's own 90 s, so that a write never meets a connection that it closes."""
READ_BUFFER = 256 * 1024
KEEPALIVE = {
    socket.TCP_KEEPIDLE: 30,
    socket.TCP_KEEPINTVL: 10,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 60_000,
}


def open_session(credentials: Credentials) -> aiohttp.ClientSession:
    """A session with warm connections, no cookies, no redirects followed by itself, no proxies of the environment."""
    connector = aiohttp.TCPConnector(
        limit=CONNECTIONS,
        keepalive_timeout=IDLE_CONNECTION_SECONDS,
        ssl=credentials.ssl_context if credentials.ssl_context is not None else True,
        socket_factory=_open_socket,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        read_bufsize=READ_BUFFER,
    )


def _open_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket on which a vanished server is noticed within a minute, also by a watch that has nothing to send."""
    family, kind, protocol, *_ = address
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return sock
