"""Descriptors: the agent has as many as it may, backends as many as before, and no client can use them up."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from pydra_dev.node import run_node
from tests.integration.agent.process import run_agent

SOFT = 512


@pytest.fixture
def soft_limit() -> Iterator[int]:
    """Of processes that the test starts; the hard limit is higher."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT, hard))
    yield SOFT
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def children(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


async def test_the_agent_raises_its_limit_of_descriptors_and_its_backends_keep_what_it_was_started_with(
    soft_limit: int,
) -> None:
    async with run_node(lambda _: None) as node, run_agent(node, "--backend", "sim", forked=False) as agent:
        await agent.wait_ready()
        soft, hard = resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard > soft_limit
        (backend,) = children(agent.process.pid)
        assert resource.prlimit(backend, resource.RLIMIT_NOFILE) == (soft_limit, hard)
        assert await agent.stop() == 0


async def test_requests_that_stay_half_sent_do_not_take_the_descriptors_of_claims() -> None:
    async with run_node(lambda _: None) as node, run_agent(node, "--backend", "sim") as agent:
        await agent.wait_ready()
        limit = 600
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
        opened: list[asyncio.StreamWriter] = []
        for _ in range(limit + 50):
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", agent.port)
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: ")
                opened.append(writer)
        assert len(opened) > limit
        await agent.wait_ready()
        assert len(os.listdir(f"/proc/{agent.process.pid}/fd")) < limit / 2
        assert "Too many open files" not in agent.log.read_text()
        for writer in opened:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        assert await agent.stop() == 0


async def test_an_agent_without_descriptors_outlives_its_backends_process() -> None:
    async with run_node(lambda _: None) as node, run_agent(node, "--backend", "sim") as agent:
        await agent.wait_ready()
        limits = resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE)
        (backend,) = children(agent.process.pid)
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        os.kill(backend, signal.SIGKILL)
        await agent.wait_log(lambda said: "cannot be started: [Errno 24] Too many open files" in said)
        resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, limits)
        await agent.wait_log(lambda said: said.count("ready again") == 1)
        assert await agent.stop() == 0
