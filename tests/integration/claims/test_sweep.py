"""Sweeps over a node in memory: what they remove, and what they never touch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import pytest

from pydra.checkpoint.record import Stage
from pydra.claims.gc import Sweep
from pydra.claims.reports import SweepCounts, SweepDone
from pydra.errors import CdiError, ClaimError, Unreadable
from tests.integration.claims.fakes import (
    DRIVER,
    Agent,
    FakeApi,
    FakeCdi,
    FakeNode,
    claim_object,
    ref,
    running_agent,
)


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class BrokenCdi(FakeCdi):
    async def read(self) -> dict[str, bytes]:
        raise CdiError("the CDI directory is gone")


@asynccontextmanager
async def sweeping(
    node: FakeNode, api: FakeApi, clock: Clock, *, cdi: FakeCdi | None = None, fetch_deadline: float = 10.0
) -> AsyncIterator[tuple[Agent, Sweep, list[SweepDone]]]:
    reports: list[SweepDone] = []
    async with running_agent(node, api) as agent:
        sweep = Sweep(
            driver=DRIVER,
            boot_id=node.boot_id,
            fetch_claim=api.fetch_claim,
            checkpoints=agent.checkpoints,
            cdi=cdi or FakeCdi(node),
            service=agent.preparer,
            period=600.0,
            grace=100.0,
            fetch_deadline=fetch_deadline,
            report=reports.append,
            clock=clock,
        )
        yield agent, sweep, reports


async def prepared(*uids: str) -> tuple[FakeNode, FakeApi]:
    """A node with these claims prepared, each with a device of its own."""
    node, api = FakeNode(), FakeApi()
    for uid in uids:
        api.allocate(uid, f"gpu-{uid}")
    async with running_agent(node, api) as agent:
        await agent.preparer.prepare([ref(uid) for uid in uids])
    assert set(node.hardware) == set(uids)
    return node, api


async def test_claims_that_the_api_server_still_has_are_never_touched() -> None:
    node, api = await prepared("a", "b")
    api.claims["claim-a"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    del api.claims["claim-b"]["status"]
    clock = Clock()
    async with sweeping(node, api, clock) as (_, sweep, _):
        for clock.now in (0.0, 1000.0, 2000.0):
            assert (await sweep.sweep()).counts == SweepCounts()
    assert set(node.hardware) == {"a", "b"}


@pytest.mark.parametrize("replaced", [False, True], ids=["deleted", "another-of-the-name"])
async def test_a_claim_that_is_gone_is_unprepared_after_the_grace(replaced: bool) -> None:
    node, api = await prepared("a", "b")
    if replaced:
        api.claims["claim-a"] = claim_object("other", "gpu-9")
    else:
        del api.claims["claim-a"]
    clock = Clock()
    async with sweeping(node, api, clock) as (_, sweep, reports):
        assert (await sweep.sweep()).counts == SweepCounts(waiting=1)
        assert set(node.hardware) == {"a", "b"}
        clock.now = 100.0
        assert (await sweep.sweep()).counts == SweepCounts(claims_unprepared=1)
        assert set(node.hardware) == set(node.records) == set(node.files) == {"b"}
        assert (await sweep.sweep()).counts == SweepCounts()
    assert len(reports) == 3


async def test_the_kubelet_may_unprepare_what_a_sweep_has_unprepared() -> None:
    node, api = await prepared("a")
    api.claims.clear()
    clock = Clock()
    async with sweeping(node, api, clock) as (agent, sweep, _):
        await sweep.sweep()
        clock.now = 100.0
        await sweep.sweep()
        assert await agent.preparer.unprepare([ref("a")]) == {"a": None}


async def test_nothing_is_unprepared_while_the_api_server_does_not_answer_for_every_claim() -> None:
    node, api = await prepared("a", "b")
    del api.claims["claim-a"]
    clock = Clock()
    async with sweeping(node, api, clock) as (_, sweep, _):
        await sweep.sweep()
        clock.now, api.down = 100.0, True
        done = await sweep.sweep()
        assert done.counts == SweepCounts()
        assert "the API server does not answer" in done.problem
        clock.now, api.down = 150.0, False
        assert (await sweep.sweep()).counts == SweepCounts(waiting=1), "the grace starts anew"
    assert set(node.hardware) == {"a", "b"}


async def test_a_claim_that_cannot_be_decoded_is_there_and_does_not_speak_for_others() -> None:
    node, api = await prepared("a", "b")
    api.claims["claim-a"] = Unreadable("it is nested too deep")  # type: ignore[assignment]
    del api.claims["claim-b"]
    clock = Clock()
    async with sweeping(node, api, clock) as (_, sweep, _):
        await sweep.sweep()
        clock.now = 1000.0
        assert (await sweep.sweep()).counts == SweepCounts(claims_unprepared=1)
    assert set(node.hardware) == {"a"}


async def test_a_server_that_does_not_serve_claims_at_all_has_not_lost_one() -> None:
    node, api = await prepared("a")
    api.has_no_claims = True
    clock = Clock()
    async with sweeping(node, api, clock) as (agent, sweep, _):
        for clock.now in (0.0, 1000.0):
            done = await sweep.sweep()
            assert done.counts == SweepCounts()
            assert "claims were not looked up" in done.problem
        assert not isinstance((await agent.preparer.prepare([ref("a")]))["a"], Exception)
    assert set(node.hardware) == {"a"}


async def test_an_api_server_that_hangs_is_as_good_as_down() -> None:
    node, api = await prepared("a")
    api.silent = True
    async with sweeping(node, api, Clock(), fetch_deadline=0.01) as (_, sweep, _):
        assert "did not return claim ns/claim-a within 0.01 s" in (await sweep.sweep()).problem


async def test_what_a_dead_instance_left_is_put_right_at_once_without_the_api_server() -> None:
    node, api = await prepared("done", "half", "lost")

    async def fail(name: str, uid: str) -> None:
        if name == "begin unprepare":
            raise ClaimError("killed here")

    node.step = fail
    async with running_agent(node, api) as agent:
        await agent.preparer.unprepare([ref("half")])
    node.step = FakeNode().step
    assert node.records["half"].stage is Stage.STARTED
    del node.records["lost"], node.files["done"]
    api.down = True
    async with sweeping(node, api, Clock()) as (_, sweep, _):
        counts = (await sweep.sweep()).counts
    assert counts == SweepCounts(started_undone=1, files_removed=1, files_restored=1)
    assert set(node.records) == set(node.files) == {"done"}


async def test_a_directory_that_cannot_be_read_leaves_the_rest_of_the_sweep() -> None:
    node, api = await prepared("a")
    api.claims.clear()
    clock = Clock()
    async with sweeping(node, api, clock, cdi=BrokenCdi(node)) as (_, sweep, _):
        done = await sweep.sweep()
        assert "the CDI directory is gone" in done.problem
        clock.now = 100.0
        assert (await sweep.sweep()).counts == SweepCounts(claims_unprepared=1)


async def test_what_cannot_be_put_right_is_counted_and_tried_again() -> None:
    node, api = await prepared("a", "b")
    api.claims.clear()
    stuck = True

    async def step(name: str, uid: str) -> None:
        if stuck and uid == "a" and name == "begin unprepare":
            raise ClaimError("stuck")

    node.step = step
    clock = Clock()
    async with sweeping(node, api, clock) as (_, sweep, _):
        await sweep.sweep()
        clock.now = 100.0
        assert (await sweep.sweep()).counts == SweepCounts(claims_unprepared=1, failed=1)
        stuck = False
        assert (await sweep.sweep()).counts == SweepCounts(claims_unprepared=1)
    assert node.is_empty()


async def test_a_claim_in_work_is_not_mistaken_for_a_leftover() -> None:
    node, api = FakeNode(), FakeApi()
    api.allocate("a", "gpu-0")
    reached, go = anyio.Event(), anyio.Event()

    async def hold(name: str, uid: str) -> None:
        if name == "configure device":
            reached.set()
            await go.wait()

    node.step = hold
    async with sweeping(node, api, Clock()) as (agent, sweep, reports), anyio.create_task_group() as calls:
        calls.start_soon(agent.preparer.prepare, [ref("a")])
        await reached.wait()
        calls.start_soon(sweep.sweep)
        await anyio.wait_all_tasks_blocked()
        go.set()
    assert reports[0].counts == SweepCounts()
    assert node.records["a"].stage is Stage.COMPLETED


async def test_the_sweep_runs_at_start_and_on_a_hint() -> None:
    node, api = await prepared("a")
    node.files.clear()
    async with sweeping(node, api, Clock()) as (agent, sweep, reports):
        agent.tasks.start_soon(sweep.run)
        await anyio.wait_all_tasks_blocked()
        assert [done.counts for done in reports] == [SweepCounts(files_restored=1)]
        sweep.hint()
        await anyio.wait_all_tasks_blocked()
        assert len(reports) == 2
