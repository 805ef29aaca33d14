"""The HTTP endpoint over a real socket."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import aiohttp
import anyio
import pytest

from pydra.errors import SettingsError
from pydra.observability.http import Limits, serve_http
from pydra.observability.metrics import Metrics


async def fetch(port: int, path: str) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text()


async def test_metrics_are_served_in_the_format_that_prometheus_reads() -> None:
    metrics = Metrics()
    metrics.announce_driver("sim.pydra.dev")
    async with serve_http("127.0.0.1", 0, metrics=metrics, missing=list) as port:
        status, text = await fetch(port, "/metrics")
    assert status == 200
    assert "# TYPE pydra_backend_up gauge" in text


async def test_the_agent_is_ready_when_nothing_is_missing_and_says_what_is() -> None:
    missing = ["backend sim: not started yet"]
    async with serve_http("127.0.0.1", 0, metrics=Metrics(), missing=lambda: missing) as port:
        assert await fetch(port, "/readyz") == (503, "backend sim: not started yet\n")
        missing.clear()
        assert await fetch(port, "/readyz") == (200, "ok\n")
        assert await fetch(port, "/healthz") == (200, "ok\n")
        assert (await fetch(port, "/elsewhere"))[0] == 404


async def test_an_address_in_use_is_a_settings_error_that_names_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1:{port}"):
            async with serve_http("127.0.0.1", port, metrics=Metrics(), missing=list):
                pass


HALF = b"GET /metrics HTTP/1.1\r\nHost: "


async def open_plain(port: int, said: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    return reader, writer


async def wait_ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the server has closed the connection without a word."""
    with anyio.fail_after(30), suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    with suppress(ConnectionResetError):
        await writer.wait_closed()


async def test_a_connection_whose_first_request_does_not_arrive_is_closed_and_others_are_kept() -> None:
    limits = Limits(head=0.3)
    async with (
        serve_http("127.0.0.1", 0, metrics=Metrics(), missing=list, limits=limits) as port,
        aiohttp.ClientSession() as session,
    ):
        for _ in range(2):  # over the same connection
            async with session.get(f"http://127.0.0.1:{port}/healthz") as response:
                assert response.status == 200
            await wait_ended(*await open_plain(port, HALF))


async def test_a_request_that_stays_half_sent_after_an_answer_ends_its_connection() -> None:
    limits = Limits(idle=0.3)
    async with serve_http("127.0.0.1", 0, metrics=Metrics(), missing=list, limits=limits) as port:
        reader, writer = await open_plain(port, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        with anyio.fail_after(30):
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
        writer.write(HALF)
        await wait_ended(reader, writer)


async def test_when_there_are_too_many_connections_the_one_that_has_asked_nothing_for_the_longest_makes_way() -> None:
    limits = Limits(connections=3, head=60.0)
    async with serve_http("127.0.0.1", 0, metrics=Metrics(), missing=list, limits=limits) as port:
        asked = await open_plain(port, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        with anyio.fail_after(30):
            await asked[0].readuntil(b"ok\n")
        silent = [await open_plain(port, HALF) for _ in range(2)]
        assert await fetch(port, "/healthz") == (200, "ok\n"), "a probe always gets its turn"
        await wait_ended(*silent[0])
        asked[1].write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        with anyio.fail_after(30):
            await asked[0].readuntil(b"ok\n")
        silent[1][1].write(b"a\r\n\r\n")
        with anyio.fail_after(30):
            assert b" 200 " in await silent[1][0].readline()
        for _, writer in (asked, silent[1]):
            writer.close()
            await writer.wait_closed()
