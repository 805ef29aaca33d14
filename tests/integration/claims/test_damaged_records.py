"""What becomes of records and directories that are damaged, removed, or of another version."""

from __future__ import annotations

import json
import os
import shutil
from hashlib import sha256
from pathlib import Path

import pytest

from pydra import Claim, ClaimError, DeviceInUse
from pydra.checkpoint.store import UnreadableRecord
from pydra.claims.gc import GarbageCounts
from pydra.errors import CheckpointError, PydraError
from tests.integration.claims.node import NOTHING, POOL, SILENT, Node


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty"])
async def test_a_record_that_cannot_be_read_is_set_aside_and_its_devices_stay_held(node: Node, damage: str) -> None:
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-0")
    node.api.allocate("c", "gpu-1")
    async with node.running() as agent:
        await agent.prepare("a", "c")
    file = node.record_file("a")
    content = file.read_bytes()
    at = content.index(b"completed")
    damaged = {"flipped": content[:at] + b"C" + content[at + 1 :], "cut": content[: len(content) // 2], "empty": b""}
    file.write_bytes(damaged[damage])
    for _ in range(2):  # also after another restart
        async with node.running() as agent:
            assert agent.hardware.owners("gpu-0") == ["a"], "it was not undone"
            assert not file.exists()
            (aside,) = (node.root / "records" / "corrupt").iterdir()
            assert aside.read_bytes() == damaged[damage]
            await agent.garbage.collect()
            assert agent.hardware.owners("gpu-0") == ["a"]
            assert isinstance((await agent.prepare("c"))[0], tuple)
            if damage != "empty":
                (refused,) = await agent.prepare("b")
                assert isinstance(refused, DeviceInUse)
                assert "ns/claim-a" in str(refused)
    unreadable = [one for one in node.reported if isinstance(one, UnreadableRecord)]
    assert [one.claim.uid for one in unreadable] == ["a"]
    async with node.running() as agent:
        if damage == "flipped":
            node.api.failure = SILENT
            assert await agent.unprepare("a") == [SILENT]
            del node.api.claims["a"]
            node.api.failure = None
        assert await agent.unprepare("a") == [None]
        assert isinstance((await agent.prepare("b"))[0], tuple)
        assert agent.hardware.owners("gpu-0") == ["b"]
    assert not list((node.root / "records" / "corrupt").iterdir())


@pytest.mark.parametrize("pool", [POOL, "node-2"])
async def test_a_claim_of_which_nothing_is_known_undoes_no_device_that_it_was_allocated_since(
    node: Node, pool: str
) -> None:
    """The device is in use by another claim, or of another node."""
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-1")
    node.published = {"gpu-0", "gpu-1", "gpu-2"}
    async with node.running() as agent:
        await agent.prepare("a", "b")
    node.record_file("a").write_bytes(b"")
    node.cdi_file("a").unlink()
    undone: list[str] = []

    async def note(claim: Claim) -> None:
        undone.extend(one.device for one in claim.devices)

    async with node.running() as agent:
        agent.hardware.before_unprepare = note
        node.api.allocate("a", "gpu-1" if pool == POOL else "gpu-2", "gpu-0")
        (result, _) = node.api.claims["a"]["status"]["allocation"]["devices"]["results"]
        result["pool"] = pool
        assert await agent.unprepare("a") == [None]
        assert undone == ["gpu-0"]
        assert not agent.store.unreadable


async def test_a_claim_is_prepared_again_although_its_damaged_record_cannot_be_removed(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.api.allocate("a", "gpu-0")
    async with node.running() as agent:
        await agent.prepare("a")
    file = node.record_file("a")
    file.write_bytes(file.read_bytes()[:-9])
    async with node.running() as agent:
        (aside,) = (node.root / "records" / "corrupt").iterdir()
        aside.unlink()
        aside.mkdir()  # which unlink refuses
        assert isinstance((await agent.prepare("a"))[0], tuple)
        assert "removing the old record of claim a" in caplog.text
        aside.rmdir()
        assert await agent.unprepare("a") == [None]
    assert node.traces() == NOTHING


@pytest.mark.parametrize("damage", ["cut", "newer"])
async def test_a_backend_that_restores_or_plans_hears_of_the_claims_whose_records_cannot_be_read(
    tmp_path: Path, damage: str
) -> None:
    node = Node(tmp_path, plans=True)
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-1")
    async with node.running() as agent:
        await agent.prepare("a")
    content = node.record_file("a").read_text()
    newer = _sign(json.loads(content)["record"] | {"schema": 99})
    node.record_file("a").write_text(newer if damage == "newer" else content[:-9])
    async with node.running() as agent:
        (held,) = agent.store.held()
        assert (held.claim.uid, held.plan, held.completed) == ("a", None, False)
        assert [device.device for device in held.claim.devices] == ["gpu-0"]
        seen: list[str] = []

        async def note(claim: Claim, *, until: float) -> Claim:
            seen.extend(agent.hardware.held)
            raise ClaimError("nothing can be decided")

        agent.hardware.plan = note  # type: ignore[method-assign]
        await agent.prepare("b")
        assert seen == ["a"]


async def test_a_record_that_can_be_read_again_answers(node: Node) -> None:
    node.api.allocate("a", "gpu-0")
    async with node.running() as agent:
        prepared = await agent.prepare("a")
    content = node.record_file("a").read_bytes()
    node.record_file("a").write_bytes(content[:-9])
    async with node.running() as agent:
        (node.root / "records" / "corrupt" / "a.json").write_bytes(content)
        assert await agent.prepare("a") == prepared
        assert agent.hardware.calls == []


async def test_a_record_of_a_newer_version_stays_as_it_is_and_its_claim_is_refused(node: Node) -> None:
    node.api.allocate("a", "gpu-0")
    async with node.running() as agent:
        await agent.prepare("a")
    file = node.record_file("a")
    newer = _sign(json.loads(file.read_text())["record"] | {"schema": 99, "claim": "in another form"})
    file.write_text(newer)
    async with node.running() as agent:
        for outcome in (*await agent.unprepare("a"), *await agent.prepare("a")):
            assert isinstance(outcome, PydraError)
            assert "newer version of pydra" in str(outcome)
        node.api.allocate("b", "gpu-0")
        assert isinstance((await agent.prepare("b"))[0], DeviceInUse)
        node.api.allocate("a", "gpu-1")
        assert isinstance((await agent.prepare("a"))[0], CheckpointError)
        node.api.claims.clear()
        assert (await agent.garbage.collect()).counts == GarbageCounts()
        assert agent.hardware.calls == []
    assert file.read_text() == newer


def _sign(record: object) -> str:
    payload = json.dumps(record, separators=(",", ":"))
    return f'{{"checksum":"sha256:{sha256(payload.encode()).hexdigest()}","record":{payload}}}\n'


async def test_a_directory_that_is_removed_under_the_agent_is_written_again(node: Node) -> None:
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-1")
    async with node.running() as agent:
        (first,) = await agent.prepare("a")
        for name in ("records", "run", "cdi"):
            shutil.rmtree(node.root / name)
        assert isinstance((await agent.prepare("b"))[0], tuple)
        assert await agent.prepare("a") == [first]
        assert node.traces()["records"] == ["a.json", "b.json"]
    async with node.running() as agent:
        assert await agent.unprepare("a", "b") == [None, None]
    assert node.traces() == NOTHING


async def test_files_that_are_not_named_after_a_claim_are_left_alone(node: Node) -> None:
    node.api.allocate("a", "gpu-0")
    odd = [b"\xff.json", b"..json", b"corrupt/\xff.json"]
    (node.root / "records" / "corrupt").mkdir(parents=True)
    for name in odd:
        Path(os.fsdecode(os.fsencode(node.root / "records") + b"/" + name)).write_text("{}")
    async with node.running() as agent:
        assert isinstance((await agent.prepare("a"))[0], tuple)
        assert (list(agent.store.records), list(agent.store.unreadable)) == (["a"], [])
        assert await agent.unprepare("a") == [None]
    assert [one for one in odd if os.path.exists(os.fsencode(node.root / "records") + b"/" + one)] == odd


async def test_records_of_the_format_and_place_before_are_taken_over(node: Node) -> None:
    node.api.allocate("a", "gpu-0")
    async with node.running() as agent:
        (first,) = await agent.prepare("a")
    completed = node.record_file("a").read_text()
    started = _sign(json.loads(completed)["record"] | {"stage": "started", "prepared": []})
    (node.root / "elsewhere").mkdir()
    (node.root / "elsewhere" / "a.json").write_text(started.ljust(4096, "\n") + completed.ljust(4096, "\n"))
    node.record_file("a").unlink()
    async with node.running() as agent:
        assert await agent.prepare("a") == [first]
        assert agent.hardware.calls == []
        assert not list((node.root / "elsewhere").iterdir())
        await agent.unprepare("a")
    assert node.traces() == NOTHING


@pytest.mark.parametrize("name", ["a.undo", "corrupt/a.json"])
async def test_what_is_being_undone_or_was_set_aside_in_the_place_before_still_holds_its_devices(
    node: Node, name: str
) -> None:
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-0")
    async with node.running() as agent:
        await agent.prepare("a")
    moved = node.root / "elsewhere" / name
    moved.parent.mkdir(parents=True)
    content = node.record_file("a").read_bytes()
    moved.write_bytes(content[:-9] if name.startswith("corrupt") else content)
    node.record_file("a").unlink()
    async with node.running() as agent:
        assert isinstance((await agent.prepare("b"))[0], DeviceInUse)
        assert await agent.unprepare("a") == [None]
        assert isinstance((await agent.prepare("b"))[0], tuple)
        await agent.unprepare("b")
    assert not [path for path in (node.root / "elsewhere").rglob("*") if path.is_file()]
    assert node.traces() == NOTHING


async def test_a_copy_that_a_kill_left_in_the_place_before_does_not_come_back(node: Node) -> None:
    node.api.allocate("a", "gpu-0")
    node.api.allocate("b", "gpu-0")
    async with node.running() as agent:
        await agent.prepare("a")
    (node.root / "elsewhere").mkdir()
    shutil.copy(node.record_file("a"), node.root / "elsewhere")
    async with node.running(grace=100.0) as agent:
        assert await agent.unprepare("a") == [None]
        await agent.garbage.collect()
        assert isinstance((await agent.prepare("b"))[0], tuple)


async def test_a_file_in_the_place_before_that_cannot_be_read_keeps_nothing_from_being_served(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.api.allocate("a", "gpu-0")
    link = node.root / "elsewhere" / "x.json"
    link.parent.mkdir()
    link.symlink_to("/etc/passwd")
    async with node.running() as agent:
        assert isinstance((await agent.prepare("a"))[0], tuple)
    assert link.is_symlink()
    assert "is left where it is: the file cannot be read" in caplog.text
