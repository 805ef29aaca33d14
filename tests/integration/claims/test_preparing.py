"""What becomes of a claim when the kubelet asks for it, on real directories."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pydra import (
    Claim,
    ClaimError,
    ContainerEdits,
    Device,
    DeviceInUse,
    PodRef,
    PreparedDevice,
)
from pydra.claims.device_use import PublishedPool
from pydra.claims.gc import GarbageCounts
from pydra.claims.work_queue import Operation, OperationEnded
from pydra.errors import (
    BackendTimeout,
    BackendUnavailable,
    CdiError,
    CheckpointError,
    ClaimShared,
    HostPathMissing,
    KubeError,
    NotAllocated,
    PydraError,
    of_call,
)
from tests.integration.claims.node import DRIVER, NO_API, NOTHING, POOL, SILENT, Node, ref


class Gate:
    """Holds a backend's call until it is opened."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, _claim: Claim) -> None:
        self.reached.set()
        await self.opened.wait()


async def test_a_prepared_claim_is_answered_with_its_cdi_devices_and_again_from_its_record(node: Node) -> None:
    node.api.allocate("a", "gpu-0", "gpu-1")
    async with node.running() as agent:
        (first,) = await agent.prepare("a")
        assert [(one.device, one.pool, one.requests) for one in first] == [
            ("gpu-0", POOL, ("r0",)),
            ("gpu-1", POOL, ("r1",)),
        ]
        assert first[0].cdi_ids == (f"{DRIVER}/claim=a:r0:gpu-0",)
        assert await agent.prepare("a") == [first]
        assert agent.hardware.calls == [("prepare", "a")]
        assert await agent.unprepare("a") == [None]
    assert node.traces() == NOTHING
    done = [(one.operation.value, one.from_record) for one in node.reported if isinstance(one, OperationEnded)]
    assert done == [("prepare", False), ("prepare", True), ("unprepare", True)]


async def test_what_was_prepared_is_answered_by_the_next_instance(node: Node) -> None:
    node.api.allocate("a", "gpu-0")
    async with node.running() as agent:
        (first,) = await agent.prepare("a")
    async with node.running() as agent:
        assert await agent.prepare("a") == [first]
        assert agent.hardware.calls == []
        assert await agent.unprepare("a") == [None]
    assert node.traces() == NOTHING


async def test_metadata_waits_for_the_first_report_of_the_devices_and_a_prepared_claim_does_not(tmp_path: Path) -> None:
    node = Node(tmp_path, metadata=True)
    node.api.allocate("a", "gpu-0")
    async with node.running() as agent:
        outcome = agent.preparer.prepare(ref("a"))
        for _ in range(100):
            await asyncio.sleep(0)
        assert (agent.hardware.calls, outcome.done()) == ([], False)
        device = Device(name="gpu-0", attributes={"serial": "s-1"})
        agent.preparer.set_published({POOL: PublishedPool(devices={"gpu-0": device})})
        first = await outcome
    (file,) = (tmp_path / "dra-device-metadata").rglob("metadata.json")
    assert b'"s-1"' in file.read_bytes()
    async with node.running(prepare=0.05) as agent:
        assert await agent.prepare("a") == [first]
        node.api.allocate("b", "gpu-1")
        assert isinstance((await agent.prepare("b"))[0], BackendUnavailable)


async def test_a_claim_for_one_pod_follows_it_to_the_next_and_is_refused_while_two_use_it(tmp_path: Path) -> None:
    node = Node(tmp_path, steps=True, one_pod=True)
    node.api.allocate("a", "gpu-0")
    first = node.api.claims["a"]["status"]["reservedFor"]
    second = [{"resource": "pods", "name": "pod-b", "uid": "pod-uid-b"}]
    async with node.running() as agent:
        agent.preparer.set_published({POOL: PublishedPool(devices={"gpu-0": Device(name="gpu-0")})})
        assert isinstance((await agent.prepare("a"))[0], tuple)
        assert agent.hardware.held["a"].claim.pod == PodRef(uid="pod-uid-a", namespace="ns", name="pod-a")
        node.api.claims["a"]["status"]["reservedFor"] = first + second
        (error,) = await agent.prepare("a")
        assert isinstance(error, ClaimShared)
        assert "is reserved for 'pod-a', 'pod-b'" in str(error)
        node.api.claims["a"]["status"]["reservedFor"] = second
        assert isinstance((await agent.prepare("a"))[0], tuple)
        assert agent.hardware.held["a"].claim.pod == PodRef(uid="pod-uid-b", namespace="ns", name="pod-b")
        calls = len(agent.hardware.calls)
        await agent.prepare("a")
        assert len(agent.hardware.calls) == calls, "the same pod again is answered from the record"
        assert await agent.unprepare("a") == [None]
    assert node.traces() == NOTHING


async def test_a_retry_joins_the_call_in_work(node: Node) -> None:
    node.api.allocate("a", "gpu-0")
    async with node.running() as agent:
        agent.hardware.before_prepare = gate = Gate()
        first = agent.preparer.prepare(ref("a"))
        await gate.reached.wait()
        assert agent.preparer.prepare(ref("a")) is first
        gate.opened.set()
        assert isinstance(await first, tuple)
        assert agent.hardware.calls == [("prepare", "a")]


async def test_an_unprepare_waits_for_the_prepare_in_flight(node: Node) -> None:
    node.api.allocate("a", "gpu-0")
    async with node.running() as agent:
        agent.hardware.before_prepare = gate = Gate()
        prepared = agent.preparer.prepare(ref("a"))
        await gate.reached.wait()
        unprepared = agent.preparer.unprepare(ref("a"))
        gate.opened.set()
        assert isinstance(await prepared, tuple)
        assert await unprepared is None
    assert node.traces() == NOTHING


async def test_an_agent_that_stops_ends_all_work_and_answers_it(node: Node) -> None:
    for number in range(2):
        node.api.allocate(f"c{number}", f"gpu-{number}")
    before = asyncio.all_tasks()
    async with node.running() as agent:
        agent.hardware.before_prepare = gate = Gate()
        running = agent.preparer.prepare(ref("c0"))
        await gate.reached.wait()
        behind = agent.preparer.unprepare(ref("c0"))
        assert [agent.preparer.queue.count(one) for one in Operation] == [1, 1]
        just_begun = agent.preparer.prepare(ref("c1"))
    assert asyncio.all_tasks() == before
    for answer in (running, behind, just_begun):
        assert "the agent is stopping" in str(answer.result())


async def test_a_failure_is_answered_before_it_is_undone(node: Node) -> None:
    node.api.allocate("a", "gpu-0")

    async def fail(_claim: Claim) -> None:
        raise ClaimError("no")

    async with node.running() as agent:
        agent.hardware.before_prepare = fail
        agent.hardware.before_unprepare = gate = Gate()
        (outcome,) = await agent.prepare("a")
        assert str(outcome) == "no"
        await gate.reached.wait()
        gate.opened.set()
        await agent.preparer.queue.wait_idle()
    assert node.traces() == NOTHING


async def test_a_claim_refused_before_the_backends_code_ran_is_not_unprepared(node: Node) -> None:
    node.api.allocate("a", "gpu-0", admin=True)

    async def refuse(_claim: Claim) -> None:
        raise of_call(BackendUnavailable("b", "is starting"), reached_backend=False)

    async with node.running() as agent:
        agent.hardware.before_prepare = refuse
        for _ in range(2):
            assert isinstance((await agent.prepare("a"))[0], BackendUnavailable)
        await agent.preparer.queue.wait_idle()
        assert agent.hardware.calls == [("prepare", "a"), ("prepare", "a")]
    assert node.traces() == NOTHING


@pytest.mark.parametrize("failure", [SILENT, NO_API], ids=["silent", "no API"])
async def test_the_record_answers_while_the_api_server_says_nothing_about_the_claim(
    node: Node, failure: KubeError
) -> None:
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-1")
    async with node.running() as agent:
        await agent.prepare("a")
        node.api.failure = failure
        known, unknown = await agent.prepare("a", "b")
        assert isinstance(known, tuple)
        assert unknown is failure
        assert await agent.unprepare("a") == [None]


async def test_what_an_earlier_boot_prepared_is_no_answer(tmp_path: Path) -> None:
    node = Node(tmp_path, durable=True)
    node.api.allocate("a", "gpu-0")
    async with node.running() as agent:
        await agent.prepare("a")
    node.reboot()
    node.api.failure = SILENT
    async with node.running() as agent:
        assert await agent.prepare("a") == [SILENT]
        await agent.preparer.restore_files(seconds=10.0)
        assert (await agent.garbage.collect()).counts == GarbageCounts()
        assert agent.hardware.owners("gpu-0") == ["a"]
    assert node.traces()["cdi"] == []


async def test_a_claim_allocated_again_is_undone_and_prepared_with_its_new_devices(node: Node) -> None:
    node.api.allocate("a", "gpu-0")
    async with node.running() as agent:
        await agent.prepare("a")
        node.api.allocate("a", "gpu-1")
        (again,) = await agent.prepare("a")
        assert [one.device for one in again] == ["gpu-1"]
    assert node.traces()["hardware"] == ["gpu-1"]


async def test_a_claim_that_is_not_allocated_is_refused_in_words(node: Node) -> None:
    node.api.allocate("a")
    async with node.running() as agent:
        (outcome,) = await agent.prepare("a")
    assert isinstance(outcome, NotAllocated)
    (failed,) = [one for one in node.reported if isinstance(one, OperationEnded)]
    assert failed.error is outcome


async def test_a_missing_cdi_file_is_restored_when_the_claim_is_prepared_again(node: Node) -> None:
    node.api.allocate("a", "gpu-0")
    async with node.running() as agent:
        await agent.prepare("a")
        (file,) = (node.root / "cdi").iterdir()
        before = file.read_bytes()
        file.unlink()
        await agent.prepare("a")
        assert file.read_bytes() == before


async def test_a_host_path_that_is_missing_undoes_the_claim(node: Node) -> None:
    node.api.allocate("a", "gpu-0")
    async with node.running(host_root="/proc/nowhere") as agent:

        async def prepare(claim: Claim, *, until: float) -> object:
            edits = ContainerEdits().with_device_node("/dev/absent-accelerator")
            return tuple(device.prepared(edits) for device in claim.devices)

        agent.hardware.prepare = prepare  # type: ignore[assignment, method-assign]
        (outcome,) = await agent.prepare("a")
        assert isinstance(outcome, HostPathMissing)
        await agent.preparer.queue.wait_idle()
    assert node.traces() == NOTHING


async def test_an_optional_mount_that_has_gone_since_is_left_out_for_the_next_pod(node: Node) -> None:
    node.api.allocate("a", "gpu-0")
    (logs := node.root / "logs").mkdir()
    async with node.running() as agent:

        async def prepare(claim: Claim, *, until: float) -> object:
            edits = ContainerEdits().with_env("A", "1").with_mount(str(logs), optional=True)
            return tuple(device.prepared(edits) for device in claim.devices)

        agent.hardware.prepare = prepare  # type: ignore[assignment, method-assign]
        await agent.prepare("a")
        (file,) = (node.root / "cdi").iterdir()
        mounted = [str(logs) in file.read_text()]
        logs.rmdir()
        await agent.prepare("a")
        mounted.append(str(logs) in file.read_text())
        assert (await agent.garbage.collect()).counts == GarbageCounts()
    assert mounted == [True, False]


# What happens over a reboot


async def test_records_of_hardware_that_forgets_do_not_outlive_the_boot(node: Node) -> None:
    node.api.allocate("a", "gpu-0")
    async with node.running() as agent:
        await agent.prepare("a")
    node.reboot()
    async with node.running() as agent:
        assert node.traces() == NOTHING
        assert await agent.unprepare("a") == [None]
        assert agent.hardware.calls == []
        await agent.prepare("a")
        assert agent.hardware.calls == [("prepare", "a")]


async def test_hardware_that_remembers_is_prepared_again_by_the_same_plan_and_undone_by_it(tmp_path: Path) -> None:
    node = Node(tmp_path, durable=True, plans=True)
    node.api.allocate("b", "gpu-1")
    node.api.allocate("a", "gpu-0")
    async with node.running() as agent:
        await agent.prepare("b", "a")
        await agent.unprepare("b")
    node.reboot()
    async with node.running() as agent:
        assert isinstance((await agent.prepare("a"))[0], tuple)
        assert agent.hardware.calls == [("prepare", "a")]
        assert agent.hardware.owners("slot-1") == ["a"]
        await agent.unprepare("a")
    assert node.traces() == NOTHING


@pytest.mark.parametrize("reached", [True, False])
async def test_what_an_earlier_boot_prepared_is_kept_when_it_cannot_be_prepared_again(
    tmp_path: Path, reached: bool
) -> None:
    node = Node(tmp_path, durable=True, plans=True)
    node.api.allocate("a", "gpu-0")
    async with node.running() as agent:
        await agent.prepare("a")
    node.reboot()

    async def fail(_claim: Claim) -> None:
        raise of_call(BackendUnavailable("b", "is starting"), reached_backend=reached)

    async with node.running() as agent:
        agent.hardware.before_prepare = fail
        assert isinstance((await agent.prepare("a"))[0], BackendUnavailable)
        await agent.preparer.queue.wait_idle()
        assert agent.hardware.owners("slot-0") == ["a"]
        assert agent.store.held()[0].prepared
        assert await agent.unprepare("a") == [None]
    assert node.traces() == NOTHING


# Plans


async def test_a_plan_knows_all_that_is_held_and_is_on_disk_before_anything_is_done(tmp_path: Path) -> None:
    node = Node(tmp_path, plans=True)
    for number in range(3):
        node.api.allocate(f"c{number}", f"gpu-{number}")
    seen: dict[str, object] = {}

    async def look(claim: Claim) -> None:
        seen[claim.uid] = json.loads(node.record_file(claim.uid).read_text())["record"]["claim"]["plan"]

    async with node.running() as agent:
        agent.hardware.before_prepare = look
        await agent.prepare("c0", "c1", "c2")
    assert sorted(str(plan) for plan in seen.values()) == [f"{{'slots': ['slot-{number}']}}" for number in range(3)]


async def test_nothing_is_planned_for_a_device_that_another_claim_got_while_it_waited(tmp_path: Path) -> None:
    node = Node(tmp_path, plans=True)
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-0")
    async with node.running() as agent:
        original, opened = agent.hardware.plan, asyncio.Event()

        async def wait(claim: Claim, *, until: float) -> Claim:
            await opened.wait()
            return await original(claim, until=until)

        agent.hardware.plan = wait  # type: ignore[method-assign]
        outcomes = [agent.preparer.prepare(ref(uid)) for uid in ("a", "b")]
        for _ in range(100):
            await asyncio.sleep(0)
        opened.set()
        assert [type(await one) for one in outcomes] == [tuple, DeviceInUse]
        assert agent.hardware.calls == [("plan", "a"), ("prepare", "a")]


async def test_a_plan_that_fails_leaves_nothing_and_frees_the_devices(tmp_path: Path) -> None:
    node = Node(tmp_path, plans=True)
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-0")
    async with node.running() as agent:
        plan, agent.hardware.plan = agent.hardware.plan, _refuse  # type: ignore[method-assign]
        assert str((await agent.prepare("a"))[0]) == "no room"
        agent.hardware.plan = plan  # type: ignore[method-assign]
        assert isinstance((await agent.prepare("b"))[0], tuple)
        assert ("unprepare", "a") not in agent.hardware.calls


async def test_a_plan_that_hangs_leaves_time_for_the_plans_that_wait_behind_it(tmp_path: Path) -> None:
    node = Node(tmp_path, plans=True)
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-1")
    async with node.running(prepare=2.0) as agent:
        plan = agent.hardware.plan

        async def hang(claim: Claim, *, until: float) -> Claim:
            if claim.uid == "a":
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(until):
                        await asyncio.Event().wait()
            if until <= asyncio.get_running_loop().time():
                raise BackendTimeout("b", "plan", 1.0)
            return await plan(claim, until=until)

        agent.hardware.plan = hang  # type: ignore[method-assign]
        stuck, behind = (agent.preparer.prepare(ref(uid)) for uid in ("a", "b"))
        assert isinstance(await stuck, BackendTimeout)
        assert isinstance(await behind, tuple)


async def _refuse(*_: object, **__: object) -> Any:
    raise ClaimError("no room")


# Disks that refuse, forget or lie


@pytest.mark.parametrize(("place", "error"), [("records", CheckpointError), ("cdi", CdiError)])
async def test_a_full_disk_refuses_a_claim_and_lets_another_end(
    place: str, error: type[PydraError], tmp_path: Path
) -> None:
    full = False

    def step(name: str) -> None:
        if full and name == f"{place}: write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    node = Node(tmp_path, step=step)
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-1")
    async with node.running() as agent:
        await agent.prepare("a")
        full = True
        (refused,) = await agent.prepare("b")
        assert isinstance(refused, error)
        assert f"{node.root / place}" in str(refused)
        assert "the disk is full" in str(refused)
        assert await agent.unprepare("a") == [None]
        full = False
        assert isinstance((await agent.prepare("b"))[0], tuple)
        await agent.unprepare("b")
    assert node.traces() == NOTHING


async def test_what_the_backend_prepared_is_undone_with_its_answer_when_it_cannot_be_recorded(tmp_path: Path) -> None:
    writes: list[str] = []
    undone: list[Sequence[PreparedDevice]] = []

    def step(name: str) -> None:
        if name == "records: write":
            writes.append(name)
            if len(writes) == 2:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    node = Node(tmp_path, step=step)
    node.api.allocate("a", "gpu-0")
    async with node.running() as agent:
        unprepare = agent.hardware.unprepare

        async def note(claim: Claim, prepared: Sequence[PreparedDevice], **more: object) -> None:
            undone.append(prepared)
            await unprepare(claim, prepared, **more)  # type: ignore[arg-type]

        agent.hardware.unprepare = note  # type: ignore[method-assign]
        assert isinstance((await agent.prepare("a"))[0], CheckpointError)
        await agent.preparer.queue.wait_idle()
    assert [[one.state for one in prepared] for prepared in undone] == [[{"since": 1}]]
    assert node.traces() == NOTHING
