"""How many connections to the API server are open, counted by the server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from pydra.kube.api_resources import NAMESPACES
from pydra.kube.client import KubeClient
from tests.integration.kube.raw_server import open_raw_client, reply

BURST = 50


class Server:
    """Answers a GET once `together` of them have arrived. `opened` counts connections since the start."""

    def __init__(self) -> None:
        self.together = 1
        self.opened = 0
        self.open = 0
        self.port = 0
        self._arrived = 0
        self._changed = asyncio.Condition()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self.open += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await self._wait_for_others()
                writer.write(reply(b'{"metadata":{"name":"default"}}'))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            async with self._changed:
                self.open -= 1
                self._changed.notify_all()

    async def _wait_for_others(self) -> None:
        async with self._changed:
            self._arrived += 1
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._arrived >= self.together)

    async def wait_open(self, at_most: int) -> None:
        with anyio.fail_after(30):
            async with self._changed:
                await self._changed.wait_for(lambda: self.open <= at_most)

    async def get_together(self, client: KubeClient, count: int) -> None:
        self.together, self._arrived = count, 0
        await asyncio.gather(*(client.get(NAMESPACES, "default") for _ in range(count)))


@asynccontextmanager
async def connect(burst_idle: float) -> AsyncIterator[tuple[Server, KubeClient]]:
    server = Server()
    listening = await asyncio.start_server(server.handle, "127.0.0.1")
    try:
        server.port = listening.sockets[0].getsockname()[1]
        async with open_raw_client(f"http://127.0.0.1:{server.port}", burst_idle=burst_idle) as client:
            yield server, client
    finally:
        listening.close()


async def test_after_a_burst_at_most_two_connections_stay_open() -> None:
    async with connect(burst_idle=0.05) as (server, client):
        await server.get_together(client, BURST)
        assert server.opened == BURST
        await server.wait_open(at_most=2)
        await server.get_together(client, 2)
        assert server.opened == BURST, "the two that stayed are used"


async def test_requests_one_after_the_other_share_a_connection_also_after_a_burst() -> None:
    async with connect(burst_idle=60.0) as (server, client):
        await server.get_together(client, 1)
        await server.get_together(client, 1)
        assert server.opened == 1
        await server.get_together(client, BURST)
        assert server.opened == BURST, "what was open is used by the burst"
        await server.get_together(client, BURST)
        await server.get_together(client, 1)
        assert server.opened == BURST, "the next burst soon after opens none"


async def test_the_kernel_asks_within_half_a_minute_whether_a_silent_server_is_still_there() -> None:
    async with connect(burst_idle=0.05) as (server, client):
        await server.get_together(client, 1)
        sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        [(timer, left)] = [one[5].split(":") for one in sockets if one[2].endswith(f":{server.port:04X}")]
        assert (timer, int(left, 16) <= 30 * os.sysconf("SC_CLK_TCK")) == ("02", True)
