"""The HTTP endpoint over a real socket."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress

import aiohttp
import anyio
import pytest
from aiohttp import web

from pydra.errors import SettingsError
from pydra.observability.connection_limits import Limits
from pydra.observability.http import serve_http, serve_routes
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


async def open_plain(
    port: int, said: bytes = b"", client: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(client, 0))
    writer.write(said)
    return reader, writer


async def wait_ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the server has closed the connection without a word."""
    with anyio.fail_after(30), suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    with suppress(ConnectionResetError):
        await writer.wait_closed()


ASK = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"


@asynccontextmanager
async def serve(limits: Limits) -> AsyncIterator[int]:
    """Serve a page whose connections are kept."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    route = web.get("/healthz", answer)
    async with serve_routes([route], "127.0.0.1", 0, setting="httpAddress", limits=limits) as port:
        yield port


async def wait_answer(reader: asyncio.StreamReader) -> None:
    with anyio.fail_after(30):
        assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")


async def close(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        with suppress(ConnectionResetError):
            await writer.wait_closed()


async def test_a_connection_whose_first_request_does_not_arrive_is_closed_and_others_are_kept() -> None:
    async with serve(Limits(head=0.3)) as port:
        reader, writer = await open_plain(port)
        for _ in range(2):
            writer.write(ASK)
            await wait_answer(reader)
            await wait_ended(*await open_plain(port, HALF))
            await wait_ended(*await open_plain(port))
        await close(writer)


async def test_connections_wait_while_no_descriptor_is_left(caplog: pytest.LogCaptureFixture) -> None:
    limits, loop = resource.getrlimit(resource.RLIMIT_NOFILE), asyncio.get_running_loop()
    async with serve(Limits()) as port:
        with socket.socket() as client, ExitStack() as descriptors:
            client.setblocking(False)
            resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, limits[1]))
            descriptors.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
            with suppress(OSError):
                while True:
                    descriptors.callback(os.close, os.dup(client.fileno()))
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, ASK)
            with anyio.fail_after(30):
                while "a connection cannot be accepted: Too many open files" not in caplog.text:
                    await anyio.sleep(0.01)
                for _ in range(100):
                    await anyio.lowlevel.checkpoint()
                descriptors.close()
                assert b" 200 " in await loop.sock_recv(client, 4096)
    assert len(caplog.records) == 1, "not at each turn of the loop"


async def test_a_request_that_stays_half_sent_after_an_answer_ends_its_connection() -> None:
    async with serve(Limits(idle=0.3)) as port:
        reader, writer = await open_plain(port, ASK)
        await wait_answer(reader)
        writer.write(HALF)
        await wait_ended(reader, writer)


async def test_when_there_are_too_many_connections_the_one_that_has_asked_nothing_for_the_longest_makes_way() -> None:
    async with serve(Limits(connections=3, head=60.0)) as port:
        asked = await open_plain(port, ASK)
        await wait_answer(asked[0])
        silent = [await open_plain(port, HALF) for _ in range(2)]
        assert await fetch(port, "/healthz") == (200, "ok\n"), "a probe always gets its turn"
        await wait_ended(*silent[0])
        asked[1].write(ASK)
        await wait_answer(asked[0])
        silent[1][1].write(b"a\r\n\r\n")
        with anyio.fail_after(30):
            assert b" 404 " in await silent[1][0].readline()
        await close(asked[1], silent[1][1])


async def test_a_client_with_many_connections_replaces_its_own_whatever_they_do() -> None:
    async with serve(Limits(connections=3, head=60.0)) as port:
        kept = await open_plain(port, HALF, client="127.0.0.2")
        others = []
        for _ in range(5):
            others.append(await open_plain(port, ASK))
            await wait_answer(others[-1][0])  # one that has asked nothing yet would make way first
        for reader, writer in others[:3]:
            with anyio.fail_after(30), suppress(ConnectionResetError):
                await reader.read()
            await close(writer)
        kept[1].write(b"a\r\n\r\n")
        with anyio.fail_after(30):
            assert b" 404 " in await kept[0].readline()
        await close(kept[1], *(writer for _, writer in others))


async def test_a_client_that_never_stops_asking_does_not_keep_a_probe_waiting() -> None:
    limits = Limits(connections=20, begin=50)
    async with serve_http("127.0.0.1", 0, metrics=Metrics(), missing=list, limits=limits) as port:

        async def ask_for_ever() -> None:
            while True:
                with suppress(OSError):
                    reader, writer = await open_plain(port, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n" * 100)
                    await reader.read()
                    await close(writer)

        async with anyio.create_task_group() as asking:
            for _ in range(30):
                asking.start_soon(ask_for_ever)
            for _ in range(3):
                reader, writer = await open_plain(port, ASK, client="127.0.0.2")
                await wait_answer(reader)
                await close(writer)
            asking.cancel_scope.cancel()


async def test_requests_that_are_sent_ahead_are_not_served() -> None:
    async with serve_http("127.0.0.1", 0, metrics=Metrics(), missing=list) as port:
        reader, writer = await open_plain(port, ASK * 100)
        with anyio.fail_after(30):
            assert (await reader.read()).count(b"HTTP/1.1 200") == 1
        await close(writer)


async def test_a_crowd_of_scrapes_builds_the_metrics_once_and_elsewhere() -> None:
    threads = []

    class Source:
        def text(self) -> bytes:
            threads.append(threading.current_thread())
            return b"pydra_build_info 1\n"

    async with serve_http("127.0.0.1", 0, metrics=Source(), missing=list) as port:
        answers = await asyncio.gather(*(fetch(port, "/metrics") for _ in range(50)))
    assert set(answers) == {(200, "pydra_build_info 1\n")}
    assert len(threads) < 10
    assert threading.main_thread() not in threads


async def test_what_is_not_http_is_refused_without_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serve_http("127.0.0.1", 0, metrics=Metrics(), missing=list) as port:
        for said in (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"GET / HTTP/1.1\r\n: a\r\n\r\n"):
            reader, writer = await open_plain(port, said)
            with anyio.fail_after(30):
                assert b" 400 " in await reader.readline()
            await close(writer)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []
