"""A metadata server on loopback, as a TPU VM's: attributes over HTTP, for those who ask with its header."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from pydra_tpu.simulation.machine_types import MachineType
from pydra_tpu.slice_facts.metadata_server import FLAVOR

PATH = "/computeMetadata/v1/instance/attributes/"


def describe_slice(machine: MachineType, *, contradicts: bool) -> Mapping[str, str]:
    """Reports the machine's slice. `contradicts`: the node's labels name another topology."""
    other = "16x16" if machine.topology.count("x") == 1 else "8x8x16"
    return {
        "tpu-env": f"TOPOLOGY: '{machine.topology}'\nWORKER_ID: '0'\n",
        "kube-labels": f"cloud.google.com/gke-tpu-accelerator={machine.accelerator},"
        f"cloud.google.com/gke-tpu-topology={other if contradicts else machine.topology}",
    }


@asynccontextmanager
async def serve_metadata(attributes: Mapping[str, str], *, late: bool = False) -> AsyncIterator[str]:
    """Serve them; yield the address. `late`: the first request gets no answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal late
        try:
            if late:
                late = False
                return
            request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            text = attributes.get(request.split(" ")[1].removeprefix(PATH))
            status = "404 Not Found" if text is None else "200 OK"
            if f"{FLAVOR[0]}: {FLAVOR[1]}" not in request:
                status, text = "403 Forbidden", None
            body = (text or "").encode()
            head = f"HTTP/1.1 {status}\r\n{FLAVOR[0]}: {FLAVOR[1]}\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{head}Connection: close\r\n\r\n".encode() + body)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has closed the connection
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
