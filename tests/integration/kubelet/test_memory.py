"""The memory of a process that serves the kubelet's socket, beside clients that send all that it accepts."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from h2.events import WindowUpdated

from tests.integration.kubelet.fakes import wait_until
from tests.integration.kubelet.raw import frame, raw_client

SERVER = """\
import asyncio, sys, uvloop
from pydra.agent.orphans_and_memory import return_memory
from pydra.kubelet.grpc_server import GrpcServer
from pydra.kubelet.sockets import bind_socket

async def run():
    server = GrpcServer({})
    await server.listen(bind_socket(sys.argv[1]).sock)
    print("listens", flush=True)
    await return_memory(start=0.0, period=0.05)

uvloop.run(run())
"""
MIB = 2**20


async def test_memory_that_requests_took_is_returned_when_their_connection_ends(tmp_path: Path) -> None:
    path = str(tmp_path / "dra.sock")
    command = [sys.executable, "-c", SERVER, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:  # noqa: ASYNC220 - nothing else runs yet
        try:
            assert server.stdout is not None
            server.stdout.readline()
            before = _memory(server.pid)
            async with AsyncExitStack() as connections:
                for _ in range(2):
                    client = await connections.enter_async_context(raw_client(path))
                    await client.wait_for(lambda event: event if isinstance(event, WindowUpdated) else None)
                    for _ in range(900):
                        await client.send("/never/ends", frame(b"\0" * 16000, length=4 * MIB), end=False)
                await wait_until(lambda: _memory(server.pid) > before + 24 * MIB)
            await wait_until(lambda: _memory(server.pid) < before + 10 * MIB)
        finally:
            server.kill()


def _memory(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
