"""Calls at the same time: who waits for whom, who joins whom, who gets the device."""

from __future__ import annotations

import anyio

from pydra.checkpoint.record import Stage
from pydra.errors import (
    TerminalError,
    Unavailable,
)
from tests.integration.claims.fakes import FakeApi, FakeNode, Gate, ref, running_agent


async def test_of_two_claims_at_once_for_one_device_one_gets_it() -> None:
    api = FakeApi()
    for uid in "abcd":
        api.allocate(uid, "gpu-0")
    async with running_agent(FakeNode(), api) as agent:
        outcomes = await agent.preparer.prepare([ref(uid) for uid in "abcd"])
    assert sorted(type(outcome).__name__ for outcome in outcomes.values()) == [*["DeviceInUse"] * 3, "tuple"]


async def test_a_retried_call_joins_the_one_that_the_kubelet_gave_up_on() -> None:
    gate, api = Gate("begin prepare"), FakeApi()
    api.allocate("a", "gpu-0")
    async with running_agent(FakeNode(step=gate), api) as agent:
        with anyio.move_on_after(0.01) as gave_up:
            await agent.preparer.prepare([ref("a")])
        assert gave_up.cancelled_caught
        outcomes: list[object] = []

        async def retry() -> None:
            outcomes.append((await agent.preparer.prepare([ref("a")]))["a"])

        async with anyio.create_task_group() as retries:
            retries.start_soon(retry)
            retries.start_soon(retry)
            await anyio.wait_all_tasks_blocked()
            gate.opened.set()
    assert [type(outcome) for outcome in outcomes] == [tuple, tuple]
    assert gate.names("a").count("begin prepare") == 1
    assert api.reads == 1


async def test_unprepare_waits_for_the_prepare_in_flight() -> None:
    gate, api = Gate("configure device"), FakeApi()
    api.allocate("a", "gpu-0")
    node = FakeNode(step=gate)
    async with running_agent(node, api) as agent, anyio.create_task_group() as calls:
        calls.start_soon(agent.preparer.prepare, [ref("a")])
        await gate.reached.wait()
        calls.start_soon(agent.preparer.unprepare, [ref("a")])
        await anyio.wait_all_tasks_blocked()
        assert "begin unprepare" not in gate.names("a")
        gate.opened.set()
    assert gate.names("a").index("write completed") < gate.names("a").index("begin unprepare")
    assert node.is_empty()


async def test_prepare_after_unprepare_in_flight_prepares_anew() -> None:
    api, node = FakeApi(), FakeNode()
    api.allocate("a", "gpu-0")
    async with running_agent(node, api) as agent:
        await agent.preparer.prepare([ref("a")])
        gate = Gate("begin unprepare")
        node.step = gate
        async with anyio.create_task_group() as calls:
            calls.start_soon(agent.preparer.unprepare, [ref("a")])
            await gate.reached.wait()
            calls.start_soon(agent.preparer.prepare, [ref("a")])
            await anyio.wait_all_tasks_blocked()
            assert "begin prepare" not in gate.names("a")
            gate.opened.set()
        await agent.preparer.wait_idle()
    assert node.records["a"].stage is Stage.COMPLETED
    assert node.hardware["a"]


async def test_claims_that_share_no_device_are_prepared_side_by_side() -> None:
    gate, api = Gate("configure device"), FakeApi()
    uids = [f"c{n}" for n in range(16)]
    for uid in uids:
        api.allocate(uid, f"gpu-{uid}")
    node = FakeNode(step=gate)
    async with running_agent(node, api) as agent, anyio.create_task_group() as calls:
        calls.start_soon(agent.preparer.prepare, [ref(uid) for uid in uids])
        await anyio.wait_all_tasks_blocked()
        assert [name for name, _ in gate.passed].count("begin prepare") == 16
        assert agent.lock.held == 16
        gate.opened.set()
    assert all(record.stage is Stage.COMPLETED for record in node.records.values())
    assert agent.checkpoints.refreshes == 16


async def test_the_kubelet_is_answered_before_a_failed_prepare_is_undone() -> None:
    api = FakeApi()
    api.allocate("a", "gpu-0")
    gate = Gate("begin unprepare")

    async def step(name: str, uid: str) -> None:
        if name == "configure device":
            raise TerminalError("never")
        await gate(name, uid)

    async with running_agent(FakeNode(step=step), api) as agent:
        assert isinstance((await agent.preparer.prepare([ref("a")]))["a"], TerminalError)
        await gate.reached.wait()
        async with anyio.create_task_group() as calls:
            calls.start_soon(agent.preparer.prepare, [ref("a")])
            await anyio.wait_all_tasks_blocked()
            assert gate.names("a").count("begin prepare") == 1, "the retry waits for the undoing"
            gate.opened.set()
        assert gate.names("a").count("begin prepare") == 2


async def test_calls_that_wait_when_the_agent_stops_are_told_so() -> None:
    gate, api = Gate("begin prepare"), FakeApi()
    api.allocate("a", "gpu-0")
    node = FakeNode(step=gate)
    outcomes: list[object] = []
    async with anyio.create_task_group() as kubelet, running_agent(node, api) as agent:

        async def call() -> None:
            outcomes.append((await agent.preparer.prepare([ref("a")]))["a"])

        kubelet.start_soon(call)
        await gate.reached.wait()
    assert isinstance(outcomes[0], Unavailable)
    assert "the agent is stopping" in str(outcomes[0])
    assert node.records["a"].stage is Stage.STARTED, "as after a crash: the successor undoes it"
