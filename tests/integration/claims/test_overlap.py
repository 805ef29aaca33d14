"""Two instances of the agent at once, as in a rolling update, over one node's directories."""

from __future__ import annotations

import asyncio
import resource
import shutil
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import anyio
import pytest

from pydra import Claim, DeviceInUse
from pydra.errors import CheckpointError
from tests.integration.claims.node import NOTHING, Instance, Node, ref
from tests.integration.claims.test_preparing import Gate


async def test_each_instance_goes_on_from_what_the_other_did(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-0")
    async with node.running() as old, node.running() as new:
        (first,) = await old.prepare("a")
        assert await new.prepare("a") == [first]
        assert new.hardware.calls == []
        assert isinstance((await new.prepare("b"))[0], DeviceInUse)
        assert await new.unprepare("a") == [None]
        assert isinstance((await old.prepare("b"))[0], tuple)
        assert await new.unprepare("b") == [None]
    assert node.traces() == NOTHING


async def test_what_was_read_of_the_others_records_before_the_disk_failed_holds_its_devices(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for uid, device in (("a", "gpu-0"), ("b", "gpu-1"), ("rival", "gpu-0")):
        node.api.allocate(uid, device)

    def refuse(effect: str) -> None:
        if effect == "records: make directory":
            raise OSError(30, "Read-only file system")

    async with node.running() as old, node.running() as new:
        await old.prepare("a", "b")
        node.record_file("b").write_bytes(b"damaged, so it is set aside")
        node.step = refuse
        assert isinstance((await new.prepare("rival"))[0], CheckpointError)
        node.step = lambda _: None
        assert isinstance((await new.prepare("rival"))[0], DeviceInUse)


async def test_records_of_the_other_that_could_not_be_read_once_are_read_the_next_time(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-0")
    async with node.running() as old, node.running() as new:
        await old.prepare("a")
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))  # all further descriptors are refused
        try:
            (refused,) = await new.prepare("b")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert isinstance(refused, CheckpointError)
        assert isinstance((await new.prepare("b"))[0], DeviceInUse)
        assert await new.unprepare("a") == [None]
        assert new.hardware.calls == [("unprepare", "a")]
    assert node.traces() == NOTHING


@pytest.mark.parametrize("places", [("records",), ("records", "run")], ids=["the records", "the lock, too"])
async def test_removed_records_are_written_again_by_the_instance_that_knows_them_all(
    tmp_path: Path, places: Sequence[str]
) -> None:
    node = Node(tmp_path)
    for uid, device in (("ended", "gpu-0"), ("new", "gpu-1"), ("rival", "gpu-1"), ("third", "gpu-2")):
        node.api.allocate(uid, device)
    async with node.running() as old:
        async with node.running() as new:
            await old.prepare("ended")
            await new.unprepare("ended")
            await new.prepare("new")
            for place in places:
                shutil.rmtree(tmp_path / place)
            (refused,) = await old.prepare("rival")
            assert isinstance(refused, CheckpointError)
            assert "another instance of the agent, which has changed them since, writes them again" in str(refused)
            assert isinstance((await new.prepare("third"))[0], tuple)
            assert isinstance((await old.prepare("rival"))[0], DeviceInUse)
            assert node.traces()["records"] == ["new.json", "third.json"]
            assert await new.unprepare("third") == [None]
            shutil.rmtree(tmp_path / "records")
        assert isinstance((await old.prepare("rival"))[0], DeviceInUse), "alone, it writes what it knows"
        assert await old.unprepare("new", "third") == [None, None]
    assert node.traces() == NOTHING


async def test_a_claim_that_is_slow_in_one_instance_holds_up_nothing_but_itself_in_the_other(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for number in range(3):
        node.api.allocate(f"c{number}", f"gpu-{number}")
    node.api.allocate("rival", "gpu-0")
    async with node.running() as old, node.running() as new:
        old.hardware.before_prepare = gate = Gate()
        slow = asyncio.create_task(old.prepare("c0"))
        await gate.reached.wait()
        assert isinstance((await new.prepare("c1"))[0], tuple)
        assert isinstance((await new.prepare("rival"))[0], DeviceInUse)
        assert await new.unprepare("c1") == [None]
        counts = (await new.garbage.collect()).counts
        assert (counts.started_undone, counts.failed) == (0, 0), "what the other prepares is left to it"
        again = asyncio.create_task(new.prepare("c0"))
        assert isinstance((await new.prepare("c2"))[0], tuple)
        assert not again.done()
        gate.opened.set()
        assert await again == await slow
        assert new.hardware.calls.count(("prepare", "c0")) == 0


async def test_a_claim_that_the_other_instance_does_not_let_go_of_is_refused_in_words(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.api.allocate("a", "gpu-0")
    async with node.running() as old, node.running(prepare=0.05) as new:
        old.hardware.before_prepare = gate = Gate()
        slow = asyncio.create_task(old.prepare("a"))
        await gate.reached.wait()
        (outcome,) = await new.prepare("a")
        assert isinstance(outcome, CheckpointError)
        assert "waiting for another instance of the agent, which is at work on the same claim" in str(outcome)
        gate.opened.set()
        await slow
        await old.store.lock.begin_restore(asyncio.get_running_loop().time())  # the refused claim keeps it from nothing


async def test_only_one_instance_plans_at_a_time(tmp_path: Path) -> None:
    node = Node(tmp_path, plans=True)
    uids = [f"c{number}" for number in range(8)]
    for number, uid in enumerate(uids):
        node.api.allocate(uid, f"gpu-{number}")
    async with node.running() as old, node.running() as new:
        for agent in (old, new):
            agent.hardware.plan = _slowly(agent.hardware.plan)  # type: ignore[assignment, method-assign]
        outcomes = [*await asyncio.gather(old.prepare(*uids[:4]), new.prepare(*uids[4:]))]
        assert all(isinstance(one, tuple) for some in outcomes for one in some), outcomes
        assert sorted(node.traces()["hardware"])[-8:] == [f"slot-{number}" for number in range(8)]


def _slowly(plan: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def slow(claim: Claim, *, until: float) -> object:
        await asyncio.sleep(0)
        answer = await plan(claim, until=until)
        await asyncio.sleep(0)
        return answer

    return slow


async def test_restore_waits_for_the_other_instances_work_and_keeps_it_from_beginning(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-1")
    node.api.allocate("c", "gpu-2")
    async with node.running() as old, node.running() as new:
        old.hardware.before_prepare = gate = Gate()
        slow = asyncio.create_task(old.prepare("a"))
        await gate.reached.wait()
        until = asyncio.get_running_loop().time() + 20
        restoring = asyncio.create_task(new.store.lock.begin_restore(until))
        await asyncio.sleep(0)
        assert not restoring.done()
        gate.opened.set()
        await slow
        await restoring
        others = [asyncio.create_task(old.prepare(name)) for name in ("b", "c")]
        for _ in range(100):
            await asyncio.sleep(0)
        assert old.hardware.calls == [("prepare", "a")]
        new.store.lock.end_restore()
        assert all([isinstance((await other)[0], tuple) for other in others])


async def test_a_restore_stays_exclusive_when_claims_of_its_own_instance_begin_and_end(tmp_path: Path) -> None:
    node = _two_claims(tmp_path)
    async with node.running() as old, node.running() as new:
        await old.store.lock.begin_restore(_soon())
        assert isinstance((await old.prepare("a"))[0], tuple)
        other = new.preparer.prepare(ref("b"))
        await _let_run()
        assert new.hardware.calls == []
        old.store.lock.end_restore()
        assert isinstance(await other, tuple)


async def test_two_instances_that_restore_do_not_wait_for_the_claims_that_wait_for_them(tmp_path: Path) -> None:
    node = _two_claims(tmp_path)
    async with node.running() as old, node.running() as new:
        waiting, restores = [], []
        for agent, uid in ((old, "a"), (new, "b")):
            agent.hardware.before_prepare = gate = Gate()  # a process that is not restored yet
            waiting.append(agent.preparer.prepare(ref(uid)))
            await gate.reached.wait()
            restores.append(_restore(agent, gate))
        await asyncio.gather(*restores)
        assert [type(await one) for one in waiting] == [tuple, tuple]


async def test_a_device_that_another_instance_took_during_a_plan_is_refused(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-0")
    async with node.running() as old:  # of a version that does not plan yet
        node.plans = True
        async with node.running() as new:
            plan, gate = new.hardware.plan, Gate()

            async def slow(claim: Claim, *, until: float) -> Claim:
                await gate(claim)
                return await plan(claim, until=until)

            new.hardware.plan = slow  # type: ignore[method-assign]
            planned = new.preparer.prepare(ref("a"))
            await gate.reached.wait()
            assert isinstance((await old.prepare("b"))[0], tuple)
            gate.opened.set()
            assert isinstance(await planned, DeviceInUse)


async def test_what_a_stop_cuts_off_stays_locked_until_the_process_ends(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.api.allocate("a", "gpu-0")
    async with node.running() as new:
        async with node.running() as old:
            old.hardware.before_prepare = gate = Gate()
            old.preparer.prepare(ref("a"))
            await gate.reached.wait()
            await old.preparer.stop()
            unprepared = new.preparer.unprepare(ref("a"))
            await _let_run()
            assert new.hardware.calls == []
        assert await unprepared is None
    assert node.traces() == NOTHING


async def test_a_durable_write_that_a_stop_cuts_off_ends_before_others_look(tmp_path: Path) -> None:
    begun, go_on = Event(), Event()

    def step(name: str) -> None:
        if name == "records: rename" and not begun.is_set():
            begun.set()
            go_on.wait(10)

    node = Node(tmp_path, durable=True, step=step)
    node.api.allocate("a", "gpu-0")
    async with node.running() as old, node.running() as new:
        old.preparer.prepare(ref("a"))
        await asyncio.to_thread(begun.wait, 10)
        stopping = asyncio.create_task(old.preparer.stop())
        unprepared = new.preparer.unprepare(ref("b"))
        await _let_run()
        assert not unprepared.done()
        go_on.set()
        await stopping
        await unprepared
        assert list(new.store.records) == ["a"]


async def test_a_record_that_one_instance_sets_aside_holds_its_devices_in_both_and_is_let_go_by_both(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    for uid, device in (("a", "gpu-0"), ("rival", "gpu-0"), ("c", "gpu-1")):
        node.api.allocate(uid, device)
    async with node.running() as old, node.running() as new:
        await old.prepare("a")
        node.record_file("a").write_bytes(node.record_file("a").read_bytes()[:-9])
        await new.prepare("c")
        for agent in (new, old):
            assert isinstance((await agent.prepare("rival"))[0], DeviceInUse)
        assert await new.unprepare("a") == [None]
        assert isinstance((await old.prepare("rival"))[0], tuple)


def _two_claims(path: Path) -> Node:
    node = Node(path)
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-1")
    return node


async def _restore(agent: Instance, gate: Gate) -> None:
    await agent.store.lock.begin_restore(_soon())
    agent.store.lock.end_restore()
    gate.opened.set()


def _soon() -> float:
    return asyncio.get_running_loop().time() + 10


_locking: Counter[str] = Counter()


def _note(event: str, _arguments: object) -> None:
    if event == "fcntl.fcntl":
        _locking[event] += 1


sys.addaudithook(_note)


async def _let_run() -> None:
    """Until a task that waits for a lock has tried again several times."""
    before = _locking.total()
    with anyio.fail_after(30):
        while _locking.total() < before + 5:
            await asyncio.sleep(0)
