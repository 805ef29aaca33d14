"""The floor of a machine: the least that one prepare must wait for, in any driver.

One GET of a claim over a warm connection, one durable 2 KB file write (file and directory), and one
unary gRPC call on a Unix socket, each at its median. Every other figure is a multiple of the sum.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp
import grpc

ROUNDS = 300


@dataclass(frozen=True, kw_only=True)
class Floor:
    """Medians in seconds."""

    get: float
    write: float
    call: float

    @property
    def total(self) -> float:
        """What one prepare cannot be faster than."""
        return self.get + self.write + self.call


def measure_floor(claim_url: str, scratch: Path) -> Floor:
    """Measure the three parts one after the other; `claim_url` answers with a claim."""
    return Floor(get=asyncio.run(_measure_get(claim_url)), write=_measure_write(scratch), call=_measure_call(scratch))


async def _measure_get(url: str) -> float:
    seconds = []
    async with aiohttp.ClientSession() as session:
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            async with session.get(url) as response:
                await response.read()
            seconds.append(time.perf_counter() - begin)
            assert response.status == 200, response.status
    return median(seconds[20:])


def _measure_write(scratch: Path) -> float:
    content, seconds = b"x" * 2048, []
    directory = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
    for number in range(ROUNDS):
        begin = time.perf_counter()
        temporary = f"{scratch}/.{number}.tmp"
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(file, content)
        os.fsync(file)
        os.close(file)
        os.rename(temporary, f"{scratch}/{number}.json")
        os.fsync(directory)
        seconds.append(time.perf_counter() - begin)
    os.close(directory)
    return median(seconds[20:])


def _measure_call(scratch: Path) -> float:
    target = f"unix:{scratch}/floor.sock"
    # A process of its own, like a real plugin: two ends in one process would share the interpreter's lock.
    server = multiprocessing.get_context("fork").Process(target=_serve_echo, args=(target,), daemon=True)
    server.start()
    with grpc.insecure_channel(target) as channel:
        grpc.channel_ready_future(channel).result(timeout=10)
        call = channel.unary_unary("/floor.Echo/Call")
        seconds = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            call(b"x" * 200)
            seconds.append(time.perf_counter() - begin)
    server.kill()
    return median(seconds[20:])


def _serve_echo(target: str) -> None:
    handler = grpc.method_handlers_generic_handler(
        "floor.Echo", {"Call": grpc.unary_unary_rpc_method_handler(lambda request, _: request)}
    )
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(target)
    server.start()
    server.wait_for_termination()
