"""Leader election against a server that is slow."""

from __future__ import annotations

import asyncio
import json

import anyio

from pydra.controllers.leader_election import LeaderElection, LeaseTimes
from tests.integration.kube.raw_server import open_raw_client, reply, serve_raw

TIMES = LeaseTimes(retry_period=0.01)


async def test_a_lease_is_seen_when_its_answer_arrives_however_long_ago_it_was_asked_for() -> None:
    """The holder may have renewed it just before the answer."""
    spec = {"holderIdentity": "other", "leaseDurationSeconds": 15}
    lease = {"kind": "Lease", "metadata": {"name": "one", "resourceVersion": "7"}, "spec": spec}
    now, asked = 100.0, 0

    async def answer(_target: str, writer: asyncio.StreamWriter) -> None:
        nonlocal now, asked
        asked += 1
        now += 20 if asked == 1 else 0
        writer.write(reply(json.dumps(lease).encode()))

    async with serve_raw(answer) as url, open_raw_client(url) as client:
        election = LeaderElection(client, namespace="n", name="one", identity="me", times=TIMES, clock=lambda: now)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(election.acquire)
            while asked < 4 and not election.is_leader():
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    assert not election.is_leader()


async def test_conflicts_are_reported_since_each_write_may_be_refused_so() -> None:
    async def answer(target: str, writer: asyncio.StreamWriter) -> None:
        status, reason = ("404 Not Found", "NotFound") if target.endswith("/one") else ("409 Conflict", "AlreadyExists")
        refusal = {"kind": "Status", "reason": reason, "details": {"name": "one"}}
        writer.write(reply(json.dumps(refusal).encode(), status=status, headers="Connection: close\r\n"))

    async with serve_raw(answer) as url, open_raw_client(url) as client:
        election = LeaderElection(client, namespace="n", name="one", identity="me", times=TIMES)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(election.acquire)
            while "409 AlreadyExists" not in election.problem:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
