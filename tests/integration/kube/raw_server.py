"""A server on loopback that answers with bytes that a test gives: what no well-behaved API server would send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from pydra.kube.client import KubeClient
from pydra.kube.credentials import Credentials, Loaded

Answer = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


def reply(body: bytes, *, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


@asynccontextmanager
async def serve_raw(answer: Answer | bytes) -> AsyncIterator[str]:
    """The URL of a server that calls `answer` with each request's target, or sends the same bytes to all."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if isinstance(answer, bytes):
                    writer.write(answer)
                    break
                await answer(head.split(b" ", 2)[1].decode(), writer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1")
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def open_raw_client(url: str, **options: object) -> AsyncIterator[KubeClient]:
    async def load(_refused: bool) -> Loaded:
        return Loaded(host=url)

    credentials = Credentials(load, source="the test", environ={})
    await credentials.open()
    async with KubeClient(credentials, **options) as client:  # type: ignore[arg-type]
        yield client
