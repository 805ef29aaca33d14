"""What is read of machines as they are, as they change, and of GPUs that are lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pydra import Inventory
from pydra_amd.hardware_types import Mode
from pydra_amd.inventory.build import build_inventory
from pydra_amd.settings import Partitioning, Settings
from pydra_amd.simulation.machine import open_machine
from pydra_amd.telemetry import Telemetry
from pydra_pci import Tree

ADDRESS = "0000:27:00.0"
BOUND = "bus/pci/drivers/amdgpu"


def open_tree(root: Path, scenario: str = "mi300x-2") -> Tree:
    return open_machine(Settings(scenario=scenario, state=str(root)))


def publish(telemetry: Telemetry) -> Inventory:
    return build_inventory(telemetry.read_here(), Partitioning.EXISTING)


@pytest.mark.parametrize(
    ("scenario", "devices", "profile", "neighbours"),
    [
        ("mi210-4", 4, None, 3),
        ("mi300a-4", 4, "spx_nps1", 3),
        ("mi300x-8", 8, "spx_nps1", 7),
        ("mi300x-8-cpx", 64, "cpx_nps1", 7),
        ("w7900", 1, None, None),
    ],
)
def test_gpus_have_their_profile_and_their_neighbours_in_the_hive_where_they_have_any(
    scenario: str, devices: int, profile: str | None, neighbours: int | None, tmp_path: Path
) -> None:
    found = publish(Telemetry(open_tree(tmp_path, scenario))).devices
    assert len(found) == devices
    told = {(one.attributes.get("partitionProfile"), one.attributes.get("xgmiNeighbours")) for one in found}
    assert told == {(profile, neighbours)}
    assert len({one.attributes.get("xgmiHive") for one in found}) == 1


def let_fall(tree: Tree) -> None:
    """It is there in name only: what is read of it is ones."""
    Path(tree.sys(f"{BOUND}/{ADDRESS}/config")).write_bytes(b"\xff" * 64)


def remove(tree: Tree) -> None:
    for folder in ("devices", "drivers/amdgpu"):
        os.unlink(tree.sys(f"bus/pci/{folder}/{ADDRESS}"))


def take_away(tree: Tree) -> None:
    os.unlink(tree.sys(f"{BOUND}/{ADDRESS}"))


@pytest.mark.parametrize(
    ("lose", "why"), [(let_fall, "does not answer on the PCI bus"), (remove, "is gone from the PCI bus")]
)
async def test_a_gpu_that_is_lost_keeps_its_name_and_the_others_their_numbers(
    lose: Callable[[Tree], None], why: str, tmp_path: Path
) -> None:
    tree = open_tree(tmp_path)
    telemetry = Telemetry(tree)
    before = publish(telemetry)
    lose(tree)
    assert await telemetry.has_changed()
    after = publish(telemetry)
    assert [(one.name, one.attributes) for one in after.devices] == [
        (one.name, one.attributes) for one in before.devices
    ]
    (lost,) = telemetry.last.lost
    assert lost.gpu.address == ADDRESS
    assert lost.why == f"it {why}"
    assert after.unreadable == ()


def test_a_gpu_that_somebody_took_from_the_driver_is_not_lost(tmp_path: Path) -> None:
    tree = open_tree(tmp_path)
    telemetry = Telemetry(tree)
    publish(telemetry)
    take_away(tree)
    assert len(publish(telemetry).devices) == 1


async def test_only_what_has_changed_since_it_was_published_asks_for_another_reading(tmp_path: Path) -> None:
    tree = open_tree(tmp_path)
    telemetry = Telemetry(tree)
    await telemetry.read_to_publish()
    assert not await telemetry.has_changed()
    tree.write(tree.sys(f"{BOUND}/{ADDRESS}/current_compute_partition"), "CPX")
    assert (await telemetry.read()).gpus[1].mode == Mode("cpx", "nps1")  # as for a claim
    assert await telemetry.has_changed()
    await telemetry.read_to_publish()
    assert not await telemetry.has_changed()


async def test_a_gpu_whose_mode_is_changing_is_as_it_was_until_the_change_has_ended(tmp_path: Path) -> None:
    tree = open_tree(tmp_path)
    telemetry = Telemetry(tree)
    before = await telemetry.read_to_publish()
    shutil.rmtree(tree.sys("class/kfd/kfd/topology/nodes/3"))
    during = await telemetry.read_to_publish({ADDRESS})
    assert (during.find(ADDRESS), during.lost) == (before.find(ADDRESS), ())
    assert await telemetry.has_changed()
    assert [one.gpu.address for one in (await telemetry.read_to_publish()).lost] == [ADDRESS]


def test_a_file_that_says_n_a_costs_what_it_would_tell_and_no_other_gpu(tmp_path: Path) -> None:
    tree = open_tree(tmp_path)
    whole = publish(Telemetry(tree)).devices[0]
    files = [one for one in (tmp_path / "tree/sys").rglob("*") if one.is_file() and not one.is_symlink()]
    told = 0
    for file in files:
        before = file.read_text()
        file.write_text("N/A\n")
        found = publish(Telemetry(tree))
        assert whole in found.devices or ADDRESS not in str(file), file
        assert len(found.devices) + len(found.unreadable) == 2, file
        told += len(found.unreadable)
        file.write_text(before)
    assert told == 2  # of each GPU its node of KFD


@pytest.mark.parametrize("text", ["UNKNOWN\n", ""])
def test_a_gpu_that_does_not_tell_its_mode_any_more_stays_what_it_was_and_is_lost_until_it_does(
    text: str, tmp_path: Path
) -> None:
    tree = open_tree(tmp_path)
    telemetry = Telemetry(tree)
    before = publish(telemetry).devices
    file = Path(tree.sys(f"{BOUND}/{ADDRESS}/current_memory_partition"))
    file.write_text(text)
    assert publish(telemetry).devices == before
    assert [one.why for one in telemetry.last.lost] == ["the driver does not tell its partition mode any more"]
    assert publish(Telemetry(tree)).devices[1].attributes.get("partitionProfile") is None
    file.write_text("NPS1\n")
    publish(telemetry)
    assert telemetry.last.lost == ()
