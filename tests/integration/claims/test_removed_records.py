"""Records that somebody removes or cuts: no device is given away, and nothing is left when the claims end."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pydra import Claim, DeviceInUse
from pydra.checkpoint.store import UnreadableRecord
from pydra.errors import CheckpointError
from tests.integration.claims.node import NOTHING, Node


def _node(path: Path, *, steps: bool = False) -> Node:
    node = Node(path, steps=steps)
    for uid, device in (("a", "gpu-0"), ("rival", "gpu-0"), ("c", "gpu-1"), ("d", "gpu-2")):
        node.api.allocate(uid, device)
    return node


@pytest.mark.parametrize("steps", [False, True], ids=["", "with steps"])
async def test_a_record_that_is_removed_under_an_agent_is_written_again(tmp_path: Path, steps: bool) -> None:
    node = _node(tmp_path, steps=steps)
    async with node.running() as agent:
        await agent.prepare("a")
        before = node.record_file("a").read_bytes()
        node.record_file("a").unlink()
        assert isinstance((await agent.prepare("rival"))[0], DeviceInUse)
        await agent.garbage.collect()
        assert node.record_file("a").read_bytes() == before
    async with node.running() as agent:
        assert await agent.unprepare("a") == [None]
    assert node.traces() == NOTHING


async def test_a_record_that_is_removed_under_two_agents_is_written_again_by_either(tmp_path: Path) -> None:
    node = _node(tmp_path, steps=True)
    async with node.running() as old, node.running() as new:
        await old.prepare("a", "d")
        await new.prepare("c")
        await old.garbage.collect()
        for agent, other in ((new, old), (old, new)):
            node.record_file("a").unlink()
            await agent.garbage.collect()
            assert node.record_file("a").exists()
            assert isinstance((await other.prepare("rival"))[0], DeviceInUse)
        assert await new.unprepare("a", "d") == [None, None]
        assert await old.unprepare("c") == [None]
    assert node.traces() == NOTHING


async def test_an_agent_that_missed_a_removed_record_gets_it_from_the_one_that_knows_it(tmp_path: Path) -> None:
    node = _node(tmp_path, steps=True)
    async with node.running() as old:
        await old.prepare("a")
        node.record_file("a").unlink()
        async with node.running() as new:
            for agent in (new, old):
                assert isinstance((await agent.prepare("rival"))[0], DeviceInUse)
            assert node.record_file("a").exists()
            assert isinstance((await new.prepare("c"))[0], tuple)
            assert await new.unprepare("a", "c") == [None, None]
    assert node.traces() == NOTHING
    assert not list((tmp_path / "records" / "corrupt").iterdir())


async def test_records_that_are_removed_while_the_disk_is_full_are_written_when_it_has_space(tmp_path: Path) -> None:
    node = _node(tmp_path)

    def fill_disk(effect: str) -> None:
        if effect == "records: create":
            raise OSError(28, "No space left on device")

    async with node.running() as agent:
        await agent.prepare("a", "c")
        shutil.rmtree(tmp_path / "records")
        shutil.rmtree(tmp_path / "run")
        node.step = fill_disk
        assert isinstance((await agent.prepare("rival"))[0], CheckpointError)
        node.step = lambda _: None
        assert isinstance((await agent.prepare("rival"))[0], DeviceInUse)
        assert node.traces()["records"] == ["a.json", "c.json"]


async def test_a_lock_file_that_cannot_be_created_again_is_created_by_a_later_call(tmp_path: Path) -> None:
    node = _node(tmp_path)
    async with node.running() as agent:
        await agent.prepare("a")
        (tmp_path / "run" / "lock").unlink()
        (tmp_path / "run" / "lock").mkdir()
        for _ in range(2):
            assert isinstance((await agent.prepare("rival"))[0], CheckpointError)
        (tmp_path / "run" / "lock").rmdir()
        assert isinstance((await agent.prepare("rival"))[0], DeviceInUse)
        assert await agent.unprepare("a") == [None]
    assert node.traces() == NOTHING


@pytest.mark.parametrize("removed", ["a.json", "."], ids=["one record", "all records"])
async def test_records_that_are_removed_before_the_agent_dies_still_hold_their_devices(
    tmp_path: Path, removed: str
) -> None:
    node = _node(tmp_path)
    async with node.running() as agent:
        await agent.prepare("a")
        path = tmp_path / "records" / removed
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for _ in range(2):  # also after another restart
        async with node.running() as agent:
            (refused,) = await agent.prepare("rival")
            assert isinstance(refused, DeviceInUse)
            await agent.garbage.collect()
            assert agent.hardware.owners("gpu-0") == ["a"]
            assert node.cdi_file("a").exists(), "its containers may restart"
    (reported,) = [one for one in node.reported if isinstance(one, UnreadableRecord)]
    assert (reported.claim.uid, reported.why.partition(";")[0]) == ("a", "somebody removed it")
    async with node.running() as agent:
        del node.api.claims["a"]
        assert await agent.unprepare("a") == [None]
        assert isinstance((await agent.prepare("rival"))[0], tuple)
        assert await agent.unprepare("rival") == [None]
    assert node.traces() == NOTHING


async def test_a_record_that_is_cut_before_its_devices_holds_those_of_the_cdi_file(tmp_path: Path) -> None:
    node = _node(tmp_path)
    async with node.running() as agent:
        await agent.prepare("a")
    os.truncate(node.record_file("a"), 100)
    for _ in range(2):
        async with node.running() as agent:
            assert isinstance((await agent.prepare("rival"))[0], DeviceInUse)
    async with node.running() as agent:
        del node.api.claims["a"]
        assert await agent.unprepare("a") == [None]
    assert node.traces() == NOTHING


@pytest.mark.parametrize("record", ["is gone", "is of that boot"])
async def test_a_cdi_file_of_an_earlier_boot_holds_nothing(tmp_path: Path, record: str) -> None:
    node = _node(tmp_path)
    async with node.running() as agent:
        await agent.prepare("a")
    if record == "is gone":
        node.record_file("a").unlink()
        os.utime(node.cdi_file("a"), (0, 0))
    node.boot_id += "+"
    (tmp_path / "hardware" / "gpu-0").unlink()
    async with node.running() as agent:
        assert not agent.store.unreadable
        assert isinstance((await agent.prepare("rival"))[0], tuple)


async def test_a_directory_of_records_that_is_a_link_is_refused(tmp_path: Path) -> None:
    node = _node(tmp_path)
    (tmp_path / "elsewhere-else").mkdir()
    (tmp_path / "records").symlink_to(tmp_path / "elsewhere-else")
    with pytest.raises(CheckpointError, match="is a link, so others could write records of claims"):
        async with node.running():
            pass
    (tmp_path / "records").unlink()
    async with node.running() as agent:
        assert isinstance((await agent.prepare("a"))[0], tuple)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
async def test_a_directory_of_records_of_another_user_is_refused(tmp_path: Path) -> None:
    node = _node(tmp_path)
    (tmp_path / "records").mkdir()
    os.chown(tmp_path / "records", 65534, 65534)
    with pytest.raises(CheckpointError, match="belongs to user 65534, so others could write records of claims"):
        async with node.running():
            pass


@pytest.mark.parametrize("damage", ["removed", "cut"])
@pytest.mark.parametrize("then", ["unprepared", "prepared again", "collected"])
async def test_a_claim_allocated_again_whose_record_is_lost_gives_back_what_it_had(
    tmp_path: Path, then: str, damage: str
) -> None:
    node = _node(tmp_path)
    async with node.running() as agent:
        await agent.prepare("a")
    file = node.record_file("a")
    if damage == "removed":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-9])
    node.api.allocate("a", "gpu-3")
    undone = []

    async def note(claim: Claim) -> None:
        undone.append([one.device for one in claim.devices])

    async with node.running() as agent:
        agent.hardware.before_unprepare = note
        if then == "collected":
            await agent.garbage.collect()
            assert node.traces() == NOTHING
        if then == "prepared again":
            assert [one.device for one in (await agent.prepare("a"))[0]] == ["gpu-3"]
            assert node.traces()["hardware"] == ["gpu-3"]
        assert await agent.unprepare("a") == [None]
    assert undone == [["gpu-0"], *([["gpu-3"]] if then == "prepared again" else [])], "not what others may have now"
    assert node.traces() == NOTHING
