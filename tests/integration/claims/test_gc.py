"""What is collected because nobody will ask for it, and what must be left alone."""

from __future__ import annotations

import asyncio
import json
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pydra.claim import Claim
from pydra.claims.gc import GarbageCollected, GarbageCounts
from pydra.errors import DeviceInUse, KubeError
from tests.integration.claims.node import DRIVER, NO_API, NOTHING, SILENT, Node

QUIET = GarbageCounts()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    found = Node(tmp_path)
    found.api.allocate("a", "gpu-0")
    found.api.allocate("b", "gpu-1")
    return found


def kubelet_knows(node: Node, *uids: str) -> None:
    """The kubelet's checkpoint: JSON in a string of JSON, with a checksum beside it."""
    claims = [{"ClaimUID": uid, "ClaimName": "c", "PodUIDs": {"p": {}}} for uid in uids]
    data = json.dumps({"kind": "DRACheckpoint", "ClaimInfoStateList": claims})
    checkpoint = {"Data": data, "Checksum": zlib.crc32(data.encode())}
    (node.root / "dra_manager_state").write_text(json.dumps(checkpoint))


async def test_a_claim_that_was_deleted_is_unprepared(node: Node) -> None:
    async with node.running() as agent:
        await agent.prepare("a", "b")
        del node.api.claims["a"]
        assert (await agent.garbage.collect()).counts == GarbageCounts(claims_unprepared=1)
        assert node.traces()["hardware"] == ["gpu-1"]


@pytest.mark.parametrize(
    "now",
    [
        {"status": {}},
        {"status": {"allocation": {"devices": {"results": []}}}},
        {"metadata": {"uid": "another"}},
        {
            "status": {
                "allocation": {
                    "devices": {
                        "results": [{"request": "r0", "driver": DRIVER, "pool": "another-node", "device": "gpu-0"}]
                    }
                }
            }
        },
    ],
    ids=["deallocated", "other devices", "replaced", "another node"],
)
async def test_a_claim_that_has_no_device_here_any_more_is_unprepared(node: Node, now: dict[str, Any]) -> None:
    async with node.running() as agent:
        await agent.prepare("a", "b")
        node.api.claims["a"] = {**node.api.claims["a"], **now}
        assert (await agent.garbage.collect()).counts == GarbageCounts(claims_unprepared=1)
        assert agent.hardware.owners("gpu-0") == []


async def test_metadata_files_of_another_driver_stay_as_long_as_its_claim(node: Node) -> None:
    spec = node.root / "cdi" / f"{DRIVER}_metadata_a_r0.json"
    async with node.running() as agent:
        await agent.prepare("a")
        spec.write_text("{}")
        assert (await agent.garbage.collect()).counts == QUIET
        assert spec.read_text() == "{}"
        await agent.unprepare("a")
        assert (await agent.garbage.collect()).counts == GarbageCounts(files_removed=1)
    assert node.traces() == NOTHING


async def test_a_claim_that_the_kubelet_still_knows_is_left_to_it(node: Node) -> None:
    kubelet_knows(node, "a", "b")
    async with node.running() as agent:
        await agent.prepare("a", "b")
    node.record_file("b").write_bytes(b"")
    node.api.claims.clear()
    async with node.running(grace=100.0) as agent:
        assert (await agent.garbage.collect()).counts == QUIET
    kubelet_knows(node)
    async with node.running() as agent:
        assert (await agent.garbage.collect()).counts == GarbageCounts(claims_unprepared=2)
    assert node.traces() == NOTHING


async def test_while_it_is_not_known_what_the_kubelet_knows_nothing_is_unprepared(node: Node) -> None:
    (node.root / "dra_manager_state").mkdir()
    async with node.running() as agent:
        await agent.prepare("a")
        node.api.claims.clear()
        done = await agent.garbage.collect()
        assert done.counts == QUIET
        assert "reading the kubelet's claims" in done.problem


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda content: b"", id="empty"),
        pytest.param(lambda content: content[: len(content) // 2], id="cut"),
        pytest.param(lambda content: b"\0" * len(content), id="zeroed"),
        pytest.param(lambda content: content.replace(b"ClaimUID", b"ClaimUIE"), id="a changed byte"),
        pytest.param(lambda content: b"{}", id="another document"),
        pytest.param(lambda content: b'{"a":' + b"[" * 100_000, id="without end"),
    ],
)
async def test_while_the_kubelets_checkpoint_is_damaged_nothing_is_unprepared(
    node: Node, damage: Callable[[bytes], bytes]
) -> None:
    kubelet_knows(node, "a")
    checkpoint = node.root / "dra_manager_state"
    checkpoint.write_bytes(damage(checkpoint.read_bytes()))
    async with node.running() as agent:
        await agent.prepare("a")
        node.api.claims.clear()
        done = await agent.garbage.collect()
        assert done.counts == QUIET
        assert "is damaged" in done.problem
        assert agent.hardware.owners("gpu-0") == ["a"]


async def test_a_claim_that_came_back_while_it_was_looked_up_is_left_alone(node: Node) -> None:
    async with node.running() as agent:
        (first,) = await agent.prepare("a")
        node.api.allocate("a")

        async def come_back() -> None:
            node.api.before_answer = answer_at_once
            node.api.allocate("a", "gpu-0")
            kubelet_knows(node, "a")
            assert await agent.prepare("a") == [first]

        answer_at_once, node.api.before_answer = node.api.before_answer, come_back
        assert (await agent.garbage.collect()).counts == QUIET
        assert agent.hardware.owners("gpu-0") == ["a"]


async def test_a_claim_is_unprepared_only_after_the_grace(node: Node) -> None:
    clock = 0.0
    async with node.running(grace=100.0, clock=lambda: clock) as agent:
        await agent.prepare("a")
        node.api.claims.clear()
        assert (await agent.garbage.collect()).counts == GarbageCounts(waiting=1)
        clock += 99.0
        assert (await agent.garbage.collect()).counts == GarbageCounts(waiting=1)
        clock += 1.0
        assert (await agent.garbage.collect()).counts == GarbageCounts(claims_unprepared=1)


@pytest.mark.parametrize("failure", [SILENT, NO_API], ids=["silent", "no API"])
async def test_while_nothing_is_known_about_claims_none_is_unprepared(node: Node, failure: KubeError) -> None:
    async with node.running() as agent:
        await agent.prepare("a", "b")
    node.record_file("b").write_bytes(b"")  # not even its name is known
    node.api.failure = failure
    async with node.running() as agent:
        done = await agent.garbage.collect()
        assert done.counts == QUIET
        assert "claims of unreadable records were not looked up" in done.problem
        assert "claims were not looked up" in done.problem.partition("; ")[2]
        assert await agent.unprepare("a") == [None]
        assert (await agent.garbage.collect()).counts == QUIET
    assert node.traces()["hardware"] == ["gpu-1"]


async def test_a_claim_that_cannot_be_read_is_not_gone(node: Node) -> None:
    async with node.running() as agent:
        await agent.prepare("a")
        node.api.claims["a"]["status"] = "of another form"
        assert await agent.garbage.collect() == GarbageCollected(driver=DRIVER, counts=QUIET)


async def test_cdi_files_are_restored_where_a_claim_is_prepared_and_removed_where_none_is(node: Node) -> None:
    async with node.running() as agent:
        await agent.prepare("a", "b")
        restored, changed = sorted((node.root / "cdi").iterdir())
        before = restored.read_bytes(), changed.read_bytes()
        restored.unlink()
        changed.write_bytes(b"{}")
        orphan = node.root / "cdi" / f"{DRIVER}-claim_gone.json"
        orphan.write_bytes(b"{}")
        assert (await agent.garbage.collect()).counts == GarbageCounts(files_removed=1, files_restored=2)
        assert (restored.read_bytes(), changed.read_bytes(), orphan.exists()) == (*before, False)
        assert (await agent.garbage.collect()).counts == QUIET


async def test_while_files_cannot_be_read_none_is_restored_or_removed(node: Node) -> None:
    async with node.running() as agent:
        await agent.prepare("a")
        (node.root / "cdi").rename(node.root / "cdi-before")
        (node.root / "cdi").write_text("")
        done = await agent.garbage.collect()
        assert (done.counts, "files of claims were not read" in done.problem) == (QUIET, True)


async def test_an_unreadable_record_of_a_claim_that_is_gone_frees_its_devices(node: Node) -> None:
    async with node.running() as agent:
        await agent.prepare("a")
    node.record_file("a").write_bytes(node.record_file("a").read_bytes()[:-9])
    async with node.running() as agent:
        assert (await agent.garbage.collect()).counts == QUIET
        del node.api.claims["a"]
        assert (await agent.garbage.collect()).counts == GarbageCounts(claims_unprepared=1)
        assert agent.hardware.owners("gpu-0") == []
    assert node.traces() == NOTHING


async def test_an_unreadable_record_with_admin_access_holds_up_nobody_and_is_undone_as_such(node: Node) -> None:
    node.api.allocate("admin", "gpu-0", admin=True)
    async with node.running() as agent:
        await agent.prepare("a", "admin")
        await agent.unprepare("a")
    node.record_file("admin").write_bytes(node.record_file("admin").read_bytes()[:-9])
    async with node.running() as agent:
        assert isinstance((await agent.prepare("a"))[0], tuple)
        undone: list[Claim] = []

        async def note(claim: Claim) -> None:
            undone.append(claim)

        agent.hardware.before_unprepare = note
        del node.api.claims["admin"]
        assert (await agent.garbage.collect()).counts == GarbageCounts(claims_unprepared=1)
        assert [(one.uid, one.devices[0].admin_access) for one in undone] == [("admin", True)]


async def test_a_record_of_which_nothing_can_be_read_is_forgotten_when_its_claim_is_gone(node: Node) -> None:
    async with node.running() as agent:
        await agent.prepare("a")
    node.record_file("a").write_bytes(b"\xff\xff")
    node.cdi_file("a").unlink()
    async with node.running() as agent:
        assert (await agent.garbage.collect()).counts == QUIET
        del node.api.claims["a"]
        await agent.garbage.collect()
        assert (agent.store.unreadable, agent.hardware.calls) == ({}, [])


async def test_it_looks_again_when_a_grace_ends_and_when_a_claim_finds_its_device_held(node: Node) -> None:
    seen: asyncio.Queue[GarbageCollected] = asyncio.Queue()
    async with node.running(grace=0.01, collected=seen.put_nowait) as agent:
        await agent.prepare("a")
        running = asyncio.create_task(agent.garbage.run())
        assert (await seen.get()).counts == QUIET
        del node.api.claims["a"]
        node.api.allocate("b", "gpu-0")
        assert [type(one) for one in await agent.prepare("b")] == [DeviceInUse]
        assert (await seen.get()).counts == GarbageCounts(waiting=1)
        while (await seen.get()).counts != GarbageCounts(claims_unprepared=1):
            continue
        running.cancel()
        await asyncio.wait((running,))
    assert node.traces() == NOTHING


async def test_conflicts_do_not_start_one_collection_after_the_other(node: Node) -> None:
    seen: asyncio.Queue[GarbageCollected] = asyncio.Queue()
    async with node.running(conflict_pause=600.0, collected=seen.put_nowait) as agent:
        await agent.prepare("a")
        running = asyncio.create_task(agent.garbage.run())
        await seen.get()
        for _ in range(10):
            agent.preparer.queue.conflict.set()
            await agent.prepare("a")
        assert seen.empty()
        running.cancel()
        await asyncio.wait((running,))


async def test_a_collection_is_put_off_while_no_thread_can_be_started(node: Node) -> None:
    async with node.running() as agent:
        await agent.prepare("a")
        del node.api.claims["a"]
        threading.stack_size(2**47)  # more than a process can have
        try:
            done = await agent.garbage.collect()
        finally:
            threading.stack_size(0)
        assert (done.counts, "can't start new thread" in done.problem) == (QUIET, True)
        assert (await agent.garbage.collect()).counts == GarbageCounts(claims_unprepared=1)
