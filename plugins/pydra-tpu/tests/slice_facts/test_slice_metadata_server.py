"""The metadata server: a real HTTP server on loopback, which answers, lies, hangs, or comes up later."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pydra import AttributeValue
from pydra_pci import Roots, Tree
from pydra_tpu import Settings
from pydra_tpu.backend import TpuBackend
from pydra_tpu.geometry import HOST_BOUNDS
from pydra_tpu.libtpu.sdk_monitor import SdkMonitor
from pydra_tpu.simulation.simulation import open_simulation
from pydra_tpu.slice_facts.metadata_server import LIMIT, MetadataServer, NoAnswer, fetch_attributes
from pydra_tpu.slice_facts.parse import ATTRIBUTES
from tpu_metadata import FakeMetadataServer
from tpu_values import claim_of

if TYPE_CHECKING:
    from collections.abc import Mapping

WORKER = "ACCELERATOR_TYPE: 'v5litepod-32'\nTOPOLOGY: '4x8'\nWORKER_ID: '2'\n"


@asynccontextmanager
async def backend_that_asks(address: str, state: Path) -> AsyncIterator[TpuBackend]:
    """Over a machine with eight chips, of which only the metadata server tells anything."""
    async with open_simulation(Settings(scenario="v5e-8", state=str(state))) as (told_by_machine, _):
        pass
    fields = {name: getattr(told_by_machine, name) for name in ("host_root", "sys_root", "proc_root", "dev_root")}
    settings = Settings(**fields, tpu_env=told_by_machine.tpu_env, poll_period=60)
    roots = Roots(host=settings.host_root, sys=settings.sys_root, proc=settings.proc_root, dev=settings.dev_root)
    tree = Tree(roots)
    metadata = MetadataServer(address, first_pause=0.01, deadline=30)
    async with asyncio.TaskGroup() as tasks:
        asking = tasks.create_task(metadata.run())
        yield TpuBackend(settings, tree, metadata, SdkMonitor((), 1, period=60))
        asking.cancel()


async def attributes(backend: TpuBackend) -> Mapping[str, AttributeValue]:
    """Of the whole host."""
    return (await backend.discover()).devices[0].attributes


async def test_what_a_silent_server_tells_later_is_published_and_no_call_waits_for_it(tmp_path: Path) -> None:
    server = FakeMetadataServer()
    server.attributes["tpu-env"] = WORKER
    server.answers.clear()
    async with server.serve() as address, backend_that_asks(address, tmp_path) as backend:
        before = await attributes(backend)
        claim = claim_of("2x2-0")
        (prepared,) = await backend.prepare(claim)
        assert prepared.edits.env["TPU_SKIP_MDS_QUERY"] == "true"
        waiting = asyncio.create_task(backend.wait_changed())
        server.answers.set()
        await asyncio.wait_for(waiting, 60)
        after = await attributes(backend)
    assert "workerId" not in before
    assert (before["topology"], after["topology"], after["workerId"]) == ("2x4", "4x8", 2)


async def test_a_server_that_comes_up_later_is_found(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = FakeMetadataServer()
    server.attributes["tpu-env"] = WORKER
    async with backend_that_asks(f"127.0.0.1:{port}", tmp_path) as backend:
        assert "workerId" not in await attributes(backend)
        waiting = asyncio.create_task(backend.wait_changed())
        async with server.serve(port):
            await asyncio.wait_for(waiting, 60)
        assert (await attributes(backend))["workerId"] == 2


async def test_an_answer_that_changes_is_published_and_a_server_that_goes_takes_nothing_back(tmp_path: Path) -> None:
    server = FakeMetadataServer()
    server.attributes["tpu-env"] = WORKER
    async with server.serve() as address, backend_that_asks(address, tmp_path) as backend:
        for worker in (2, 3):
            server.attributes["tpu-env"] = WORKER.replace("'2'", f"'{worker}'")
            while (await attributes(backend)).get("workerId") != worker:
                await asyncio.wait_for(backend.wait_changed(), 60)
        server.status = 503
        await server.be_asked(2)  # a round ends with the first attribute that is refused
        assert (await attributes(backend))["workerId"] == 3


async def test_an_answer_that_stays_the_same_is_no_change() -> None:
    server = FakeMetadataServer()
    server.attributes["tpu-env"] = WORKER
    async with server.serve() as address:
        metadata = MetadataServer(address, first_pause=0.001, deadline=30)
        asking = asyncio.create_task(metadata.run())
        await metadata.wait_changed(60)
        waiting = asyncio.create_task(metadata.wait_changed(60))
        await server.be_asked(3 * len(ATTRIBUTES))
        assert not waiting.done()
        for task in (asking, waiting):
            task.cancel()


async def test_metadata_of_another_machine_is_told_and_not_used(tmp_path: Path) -> None:
    server = FakeMetadataServer()
    server.attributes["tpu-env"] = "ACCELERATOR_TYPE: 'tpu7x-8'\nTOPOLOGY: '2x2x1'\n"
    async with server.serve() as address, backend_that_asks(address, tmp_path) as backend:
        await backend.discover()
        await asyncio.wait_for(backend.wait_changed(), 60)
        inventory = await backend.discover()
    assert inventory.devices[0].attributes["topology"] == "x".join(map(str, HOST_BOUNDS[8][:2]))
    (text,) = inventory.unreadable
    assert "the chips of this machine are TPU7x, but they are TPU v5e" in text


async def test_the_attributes_that_a_server_has_are_fetched() -> None:
    server = FakeMetadataServer()
    server.attributes |= {"tpu-env": WORKER, "kube-labels": "a=b", "ssh-keys": "none of our business"}
    async with server.serve() as address:
        assert await fetch_attributes(address, 30) == {"tpu-env": WORKER.strip(), "kube-labels": "a=b"}
    assert {server.asked.get_nowait() for _ in ATTRIBUTES} == {*ATTRIBUTES}
    assert server.asked.empty()


@pytest.mark.parametrize(
    ("headers", "status", "text", "words"),
    [
        ({}, 200, WORKER, "it is not the metadata server"),
        ({"Metadata-Flavor": "Google"}, 500, WORKER, "status 500 for tpu-env"),
        ({"Metadata-Flavor": "Google"}, 200, "x" * (LIMIT + 1), "more than"),
    ],
)
async def test_a_server_that_is_not_googles_is_not_believed(
    headers: dict[str, str], status: int, text: str, words: str
) -> None:
    server = FakeMetadataServer()
    server.attributes["tpu-env"] = text
    server.headers, server.status = headers, status
    async with server.serve() as address:
        with pytest.raises(NoAnswer, match=words):
            await fetch_attributes(address, 30)


async def _talk(reply: bytes) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    "reply",
    [b"", b"\x00\xff garbage", b"HTTP/1.1 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: 99\r\n\r\nshort"],
)
async def test_a_server_that_speaks_no_http_or_stops_in_the_middle_is_no_answer(reply: bytes) -> None:
    async for address in _talk(reply):
        with pytest.raises(NoAnswer):
            await fetch_attributes(address, 30)


async def test_a_server_that_hangs_costs_its_deadline_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    server = FakeMetadataServer()
    server.answers.clear()
    async with server.serve() as address:
        with pytest.raises(NoAnswer, match="timed out after 0"):
            await fetch_attributes(address, 0.01)
        with caplog.at_level(logging.INFO):
            asking = asyncio.create_task(MetadataServer(address, first_pause=0.001, deadline=0.01).run())
            await server.be_asked(3)
            asking.cancel()
    assert [one.message for one in caplog.records if "does not answer" in one.message] == [
        f"the metadata server at {address} does not answer, will ask again: timed out after 0.01 s"
    ]


async def test_without_an_address_nothing_is_asked() -> None:
    await asyncio.wait_for(MetadataServer("").run(), 30)


@pytest.mark.parametrize("port", [0, 65536])
def test_an_address_with_a_port_that_does_not_exist_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match=f"metadataServer: {port} is not a port; it must be 1 to 65535"):
        Settings(metadata_server=f"169.254.169.254:{port}")
