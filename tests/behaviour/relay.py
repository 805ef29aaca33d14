"""A relay in front of the API server that puts bytes into its answers that no JSON encoder would write."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio import CancelScope
from anyio.abc import SocketAttribute, SocketStream

NOT_UTF8 = "~BYTE~"
"""Replaced by as many bytes that are not UTF-8, so that lengths in headers stay right."""


@asynccontextmanager
async def serve_relay(port: int, asked: bytearray) -> AsyncIterator[int]:
    """Relay connections to this port of the loopback interface inside the block; yields the port to connect to.

    What clients send is added to `asked`.
    """
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)

    async def serve(client: SocketStream) -> None:
        async with client, await anyio.connect_tcp("127.0.0.1", port) as server, anyio.create_task_group() as tasks:
            tasks.start_soon(_copy, client, server, tasks.cancel_scope, asked)
            tasks.start_soon(_copy, server, client, tasks.cancel_scope, bytearray())

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


async def _copy(source: SocketStream, target: SocketStream, scope: CancelScope, seen: bytearray) -> None:
    try:
        async for chunk in source:
            seen += chunk
            await target.send(chunk.replace(NOT_UTF8.encode(), b"\xe9" * len(NOT_UTF8)))
    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass
    finally:
        scope.cancel()
