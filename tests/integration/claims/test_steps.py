"""Steps of plans: what claims share, what a failure leaves, and what cannot be undone now."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from pydra import Claim, ClaimError, CounterConsumption, CounterSet, Device, DeviceInUse, LeftBehind, UndoLater
from pydra.claims.device_use import PublishedPool
from pydra.claims.gc import retry_left_over
from pydra.claims.work_queue import StepsLeftOver
from pydra.errors import BackendDied, CheckpointError
from tests.integration.claims.node import NOTHING, POOL, Instance, Node, ref


def two_claims(root: Path) -> Node:
    """A node whose claims need one mode, and a slot each; slot-0 is the first one's."""
    node = Node(root, steps=True)
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-1")
    return node


def fail(agent: Instance, error: Exception, *, at: str, operation: str) -> Callable[[], None]:
    """Let the step `at` fail in apply or undo; the result ends that."""
    original = getattr(agent.hardware, operation)

    async def failing(claim: Claim, place: int, *, until: float) -> object:
        if claim.steps[place].label == at:
            raise error
        return await original(claim, place, until=until)

    setattr(agent.hardware, operation, failing)
    return lambda: setattr(agent.hardware, operation, original)


def stages(node: Node, uid: str) -> dict[str, str]:
    record = json.loads(node.record_file(uid).read_text())["record"]
    return {one["label"]: one.get("stage", "planned") for one in record["claim"]["steps"]}


async def test_each_result_is_in_the_record_before_the_next_step_begins(tmp_path: Path) -> None:
    node = two_claims(tmp_path)
    seen: list[dict[str, str]] = []
    async with node.running() as agent:

        async def look(claim: Claim) -> None:
            seen.append(stages(node, "a"))

        agent.hardware.before_step = look
        assert isinstance((await agent.prepare("a"))[0], tuple)
    assert seen == [{"mode": "begun", "take slot-0": "planned"}, {"mode": "done", "take slot-0": "begun"}]


async def test_a_step_that_two_claims_have_is_undone_with_the_last_of_them(tmp_path: Path) -> None:
    node = two_claims(tmp_path)
    async with node.running() as agent:
        await agent.prepare("a", "b")
        assert await agent.unprepare("a") == [None]
        assert agent.hardware.is_fast()
        assert await agent.unprepare("b") == [None]
        assert node.traces() == NOTHING


async def test_the_last_claim_undoes_a_step_whichever_instance_did_it(tmp_path: Path) -> None:
    node = two_claims(tmp_path)
    async with node.running() as old, node.running() as new:
        await old.prepare("a")
        await new.prepare("b")
        assert await old.unprepare("a") == [None]
        assert new.hardware.is_fast()
        assert await old.unprepare("b") == [None]
        assert node.traces() == NOTHING


@pytest.mark.parametrize(
    ("error", "undone"),
    [
        pytest.param(ClaimError("no room"), False, id="changed nothing"),
        pytest.param(LeftBehind("half done"), True, id="left something"),
        pytest.param(BackendDied("b", "died"), True, id="died"),
    ],
)
async def test_a_step_that_fails_is_undone_if_it_may_have_changed_something(
    tmp_path: Path, error: Exception, undone: bool
) -> None:
    node = two_claims(tmp_path)
    async with node.running() as agent:
        fail(agent, error, at="take slot-0", operation="apply")
        assert await agent.prepare("a") == [error]
        await agent.preparer.queue.wait_idle()
        assert agent.hardware.calls.count(("undo", "a")) == 1 + undone
        assert node.traces() == NOTHING


async def test_a_step_that_is_refused_when_its_claim_is_prepared_again_stays_done(tmp_path: Path) -> None:
    node = Node(tmp_path, steps=True, durable=True)
    node.api.allocate("a", "gpu-0")
    async with node.running() as agent:
        await agent.prepare("a")
    node.reboot()
    async with node.running() as agent:
        mend = fail(agent, ClaimError("the driver is still loading"), at="take slot-0", operation="apply")
        assert isinstance((await agent.prepare("a"))[0], ClaimError)
        mend()
        assert await agent.unprepare("a") == [None]
        assert node.traces() == NOTHING


@pytest.mark.parametrize("is_full", [False, True], ids=["", "and the disk is full"])
async def test_what_cannot_be_undone_now_lets_the_pod_end_and_is_undone_later(is_full: bool, tmp_path: Path) -> None:
    def refuse_bytes(effect: str) -> None:
        if is_full and effect == "records: write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    node = two_claims(tmp_path)
    async with node.running() as agent:
        await agent.prepare("a")
        node.step = refuse_bytes
        mend = fail(agent, UndoLater("the GPU is lost"), at="take slot-0", operation="undo")
        assert await agent.unprepare("a") == [None]
        assert node.traces()["records"] == ["a.left-1.undo"]
        assert [one for one in node.reported if isinstance(one, StepsLeftOver)]
        node.api.allocate("c", "gpu-0")
        (refused,) = await agent.prepare("c")
        assert isinstance(refused, DeviceInUse)
        why = "it could not be undone when the claim ended" if is_full else "step take slot-0"
        assert f"that claim has ended, and what was done for it cannot be undone yet: {why}" in str(refused)
        mend()
    is_full = False
    async with node.running() as agent:
        tries = 0

        async def fail_twice(_claim: Claim) -> None:
            nonlocal tries
            tries += 1
            if tries <= 2:
                raise UndoLater("the GPU is still lost")

        agent.hardware.before_step = fail_twice
        retrying = asyncio.create_task(retry_left_over(agent.preparer, agent.store, first=0.01))
        async with asyncio.timeout(20):
            while agent.store.records:
                await asyncio.sleep(0)
        retrying.cancel()
        assert {operation for operation, _ in agent.hardware.calls} == {"undo"}
        assert node.traces() == NOTHING


async def test_a_claim_is_told_why_what_it_needs_cannot_be_undone_now(tmp_path: Path) -> None:
    node = two_claims(tmp_path)
    node.api.allocate("c", "gpu-0")
    async with node.running() as agent:
        await agent.prepare("a")
        mend = fail(agent, UndoLater("the GPU is lost"), at="take slot-0", operation="undo")
        await agent.unprepare("a")
        mend()
        fail(agent, UndoLater("in maintenance"), at="take slot-0", operation="undo")
        (refused,) = await agent.prepare("c")
        assert "step take slot-0: in maintenance" in str(refused)


async def test_steps_that_are_left_over_hold_every_share_of_a_device_that_the_claim_had(tmp_path: Path) -> None:
    node = two_claims(tmp_path)
    node.api.allocate("a", "gpu-0", "gpu-0", share="one")
    node.api.claims["a"]["status"]["allocation"]["devices"]["results"][1]["shareID"] = "two"
    node.api.allocate("b", "gpu-0", share="two")
    async with node.running() as agent:
        await agent.prepare("a")
        fail(agent, UndoLater("the GPU is lost"), at="take slot-0", operation="undo")
        await agent.unprepare("a")
        assert isinstance((await agent.prepare("b"))[0], DeviceInUse)


async def test_what_is_left_over_holds_the_devices_of_its_steps_and_keeps_the_steps_that_wait_for_these(
    tmp_path: Path,
) -> None:
    node = two_claims(tmp_path)
    node.api.allocate("a", "gpu-0", "gpu-1")
    node.api.allocate("c", "gpu-0")
    node.api.allocate("d", "gpu-2", "gpu-3")
    node.api.allocate("e", "board")
    own = (CounterConsumption(counter_set="all", counters={"memory": 1}),)
    gpus = [Device(name=f"gpu-{number}", consumes_counters=own) for number in range(4)]
    pool = PublishedPool(
        devices={one.name: one for one in (*gpus, Device(name="board"))},
        counter_sets=(CounterSet(name="all", counters={"memory": 3}),),
    )
    async with node.running() as agent:
        agent.preparer.set_published({POOL: pool})
        await agent.prepare("a")
        fail(agent, UndoLater("the GPU is lost"), at="take slot-1", operation="undo")
        assert await agent.unprepare("a") == [None]
        assert node.traces()["hardware"] == ["mode", "slot-1"]
        refused = await agent.prepare("b", "e")
        assert [type(one) for one in refused] == [DeviceInUse, DeviceInUse]
        assert "step mode waits for step take slot-1" in str(refused[0])
        for uid in ("c", "d"):
            assert isinstance((await agent.prepare(uid))[0], tuple)
            assert await agent.unprepare(uid) == [None]


async def test_an_undo_leaves_time_to_those_after_it(tmp_path: Path) -> None:
    node = two_claims(tmp_path)
    async with node.running() as agent:
        await agent.prepare("a")
        original, ends = agent.hardware.undo, list[float]()

        async def note(claim: Claim, place: int, *, until: float) -> None:
            ends.append(until)
            await original(claim, place, until=until)

        agent.hardware.undo = note  # type: ignore[method-assign]
        assert await agent.unprepare("a") == [None]
        assert ends[0] < ends[1]


async def test_what_another_instance_has_left_over_is_undone_later(tmp_path: Path) -> None:
    node = two_claims(tmp_path)
    async with node.running() as old, node.running() as new:
        retrying = asyncio.create_task(retry_left_over(new.preparer, new.store, first=0.0))
        await old.prepare("a")
        fail(old, UndoLater("the GPU is lost"), at="take slot-0", operation="undo")
        await old.unprepare("a")
        await new.garbage.collect()
        async with asyncio.timeout(20):
            while new.store.records:
                await asyncio.sleep(0)
        retrying.cancel()
        assert node.traces() == NOTHING


async def test_a_claim_for_a_device_that_is_left_over_has_it_undone_first(tmp_path: Path) -> None:
    node = two_claims(tmp_path)
    async with node.running() as agent:
        await agent.prepare("a")
        mend = fail(agent, UndoLater("the GPU is lost"), at="take slot-0", operation="undo")
        await agent.unprepare("a")
        mend()
        assert isinstance((await agent.prepare("a"))[0], tuple)
        assert node.traces()["records"] == ["a.json"]
        assert await agent.unprepare("a") == [None]
        assert node.traces() == NOTHING


async def test_a_claim_takes_over_a_step_that_is_left_over_with_the_state_before(tmp_path: Path) -> None:
    node = two_claims(tmp_path)
    async with node.running() as agent:
        await agent.prepare("a")
        mend = fail(agent, UndoLater("in maintenance"), at="mode", operation="undo")
        await agent.unprepare("a")
        mend()
        assert isinstance((await agent.prepare("b"))[0], tuple)
        await agent.preparer.reconcile(ref("a.left-1"))
        assert agent.hardware.is_fast()
        assert await agent.unprepare("b") == [None]
        assert node.traces() == NOTHING


@pytest.mark.parametrize("later", [False, True])
async def test_a_full_disk_does_not_keep_a_claim_with_steps_from_ending(tmp_path: Path, later: bool) -> None:
    node = two_claims(tmp_path)
    async with node.running() as agent:
        await agent.prepare("a", "b")
        full = OSError(28, "No space left on device")

        def refuse(effect: str) -> None:
            if effect == "records: create":
                raise full

        node.step = refuse
        mend = fail(agent, UndoLater("the GPU is lost"), at="take slot-0", operation="undo") if later else lambda: None
        assert await agent.unprepare("a", "b") == [None, None]
        assert node.traces()["records"] == (["a.left-1.undo"] if later else [])
        assert agent.preparer.left_over.is_set() is later
        node.step = lambda _: None
        mend()
        node.api.allocate("c", "gpu-0")
        assert isinstance((await agent.prepare("c"))[0], tuple)
        assert await agent.unprepare("c") == [None]
    assert node.traces() == NOTHING


@pytest.mark.parametrize("device", ["gpu-0", "gpu-1"])
async def test_a_step_that_a_claim_with_an_unreadable_record_may_need_stays(tmp_path: Path, device: str) -> None:
    node = two_claims(tmp_path)
    async with node.running() as agent:
        await agent.prepare("a", "b")
    record = node.record_file("b")
    record.write_bytes(record.read_bytes().replace(b'"gpu-1"', f'"{device}"'.encode())[:-9])
    (node.root / "hardware" / "slot-1").unlink()  # what was done for it is not known
    async with node.running() as agent:
        assert await agent.unprepare("a") == [None]
        assert agent.hardware.is_fast() is (device == "gpu-0")
        assert node.traces()["records"] == (["a.left-1.undo"] if device == "gpu-0" else [])
        assert await agent.unprepare("b") == [None]
        await agent.preparer.reconcile(ref("a.left-1"))
        assert [name for name in node.traces()["records"] if "left" in name] == []


async def test_records_with_steps_have_a_schema_that_older_versions_leave_alone(tmp_path: Path) -> None:
    node = two_claims(tmp_path)
    async with node.running() as agent:
        await agent.prepare("a")
    assert json.loads(node.record_file("a").read_text())["record"]["schema"] == 2


async def test_the_disk_fails_between_a_step_and_its_result(tmp_path: Path) -> None:
    node = two_claims(tmp_path)
    writes = 0

    def break_third(effect: str) -> None:
        nonlocal writes
        writes += effect == "records: create"
        if effect == "records: create" and writes == 3:
            raise OSError(5, "Input/output error")

    async with node.running() as agent:
        node.step = break_third
        (outcome,) = await agent.prepare("a")
        assert isinstance(outcome, CheckpointError)
        await agent.preparer.queue.wait_idle()
        assert node.traces() == NOTHING


async def test_a_claim_whose_undoing_failed_halfway_is_not_answered_from_its_record(tmp_path: Path) -> None:
    node = two_claims(tmp_path)
    async with node.running() as agent:
        await agent.prepare("a")
        mend = fail(agent, ClaimError("busy"), at="mode", operation="undo")
        assert isinstance((await agent.unprepare("a"))[0], ClaimError)
        mend()
        agent.hardware.calls.clear()
        assert isinstance((await agent.prepare("a"))[0], tuple)
        assert ("prepare", "a") in agent.hardware.calls
        assert await agent.unprepare("a") == [None]
        assert node.traces() == NOTHING


async def test_a_record_of_what_is_left_over_that_is_too_new_is_left_alone(tmp_path: Path) -> None:
    node = two_claims(tmp_path)
    path = tmp_path / "records" / "a.left-1.undo"
    async with node.running() as agent:
        await agent.prepare("a")
        fail(agent, UndoLater("the GPU is lost"), at="take slot-0", operation="undo")
        await agent.unprepare("a")
    record = json.dumps({**json.loads(path.read_text())["record"], "schema": 3}).encode()
    path.write_bytes(b'{"checksum":"sha256:%s","record":%s}\n' % (sha256(record).hexdigest().encode(), record))
    newer = path.read_bytes()
    node.api.allocate("a", "gpu-1")
    async with node.running() as agent:
        await agent.prepare("a")
        fail(agent, UndoLater("the GPU is lost"), at="take slot-0", operation="undo")
        await agent.unprepare("a")
        assert path.read_bytes() == newer
        assert node.traces()["records"] == ["a.left-1.undo", "a.left-2.undo"]
