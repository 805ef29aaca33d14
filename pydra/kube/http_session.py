"""HTTP sessions for the API server: their connections, buffers and keep-alive."""

from __future__ import annotations

import socket
from typing import Any

from pydra.kube.lean_imports import aiohttp

IDLE_SECONDS = 75.0
"""Less than the API server's own 90 s, so no write uses a connection that the server is closing."""
BURST_IDLE_SECONDS = 10.0
"""The same for connections that a burst opened: long enough for pods that start one after the other. aiohttp uses its
connections in turn, so otherwise the 50 connections of a burst would stay open with one request every 75 s each."""
READ_BUFFER = 256 * 1024
KEEPALIVE = {
    socket.TCP_KEEPIDLE: 30,
    socket.TCP_KEEPINTVL: 10,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 60_000,
}


def open_session(idle_seconds: float) -> aiohttp.ClientSession:
    """Open a session that closes connections `idle_seconds` after their last use, without cookies and proxies.

    The number of connections is not limited: waiting for one would look like a server that does not answer.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=idle_seconds, socket_factory=_open_socket)
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        read_bufsize=READ_BUFFER,
    )


def _open_socket(address: tuple[Any, ...]) -> socket.socket:
    """Open a socket that detects a vanished server within a minute, even for a watch, which sends nothing."""
    family, kind, protocol, *_ = address
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return sock
