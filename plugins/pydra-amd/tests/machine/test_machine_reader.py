"""What is read of machines as they are, as they change, and of GPUs that are lost."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pydra import Inventory
from pydra_amd.hardware_reader import HardwareReader
from pydra_amd.hardware_types import Mode
from pydra_amd.host.kfd import NODES
from pydra_amd.inventory.build import build_inventory
from pydra_amd.settings import Partitioning, Settings
from pydra_amd.simulation.simulation import open_simulation
from pydra_pci import Tree

ADDRESS = "0000:27:00.0"
BOUND = "bus/pci/drivers/amdgpu"


def open_tree(root: Path, scenario: str = "mi300x-2") -> Tree:
    return open_simulation(Settings(scenario=scenario, state=str(root)))


def publish(telemetry: HardwareReader) -> Inventory:
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
    found = publish(HardwareReader(open_tree(tmp_path, scenario))).devices
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
    telemetry = HardwareReader(tree)
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
    telemetry = HardwareReader(tree)
    publish(telemetry)
    take_away(tree)
    assert len(publish(telemetry).devices) == 1


async def test_only_what_has_changed_since_it_was_published_asks_for_another_reading(tmp_path: Path) -> None:
    tree = open_tree(tmp_path)
    telemetry = HardwareReader(tree)
    await telemetry.read_to_publish()
    assert not await telemetry.has_changed()
    tree.write(tree.sys(f"{BOUND}/{ADDRESS}/current_compute_partition"), "CPX")
    assert (await telemetry.read()).gpus[1].mode == Mode("cpx", "nps1")  # as for a claim
    assert await telemetry.has_changed()
    await telemetry.read_to_publish()
    assert not await telemetry.has_changed()


async def test_a_gpu_whose_mode_is_changing_is_as_it_was_until_the_change_has_ended(tmp_path: Path) -> None:
    tree = open_tree(tmp_path)
    telemetry = HardwareReader(tree)
    before = await telemetry.read_to_publish()
    shutil.rmtree(tree.sys("class/kfd/kfd/topology/nodes/3"))
    during = await telemetry.read_to_publish({ADDRESS})
    assert (during.find(ADDRESS), during.lost) == (before.find(ADDRESS), ())
    assert await telemetry.has_changed()
    assert [one.gpu.address for one in (await telemetry.read_to_publish()).lost] == [ADDRESS]


def stop_at_first_node(tree: Tree, change: Callable[[], None]) -> Callable[[], None]:
    """Who reads the first GPU's node of KFD waits there, once, until what is returned has made the change."""
    file = Path(tree.sys(f"{NODES}/2/properties"))
    text = file.read_text()
    file.unlink()
    os.mkfifo(file)

    def go_on() -> None:
        with file.open("w") as pipe:  # once somebody reads
            file.unlink()
            file.write_text(text)
            change()
            pipe.write(text)

    return go_on


async def test_a_gpu_whose_change_ends_while_the_machine_is_read_is_not_lost(tmp_path: Path) -> None:
    tree = open_tree(tmp_path)
    telemetry = HardwareReader(tree)
    before = await telemetry.read_to_publish()
    changing = {ADDRESS}
    shutil.rmtree(tree.sys(f"{NODES}/3"))
    go_on = stop_at_first_node(tree, changing.clear)
    during, _ = await asyncio.gather(telemetry.read_to_publish(changing), asyncio.to_thread(go_on))
    assert (during.find(ADDRESS), during.lost) == (before.find(ADDRESS), ())
    assert await telemetry.has_changed()


async def test_a_gpu_is_not_lost_because_kfd_numbers_its_nodes_anew_while_they_are_read(tmp_path: Path) -> None:
    tree = open_tree(tmp_path)
    telemetry = HardwareReader(tree)
    before = await telemetry.read()
    first = tree.sys(f"{BOUND}/{before.gpus[0].address}/current_compute_partition")
    go_on = stop_at_first_node(tree, lambda: tree.write(first, "CPX"))
    after, _ = await asyncio.gather(telemetry.read(), asyncio.to_thread(go_on))
    assert [(len(gpu.partitions), gpu.address) for gpu in after.gpus] == [(8, before.gpus[0].address), (1, ADDRESS)]
    assert after.lost == ()


def test_a_file_that_says_n_a_costs_what_it_would_tell_and_no_other_gpu(tmp_path: Path) -> None:
    tree = open_tree(tmp_path)
    whole = publish(HardwareReader(tree)).devices[0]
    files = [one for one in (tmp_path / "tree/sys").rglob("*") if one.is_file() and not one.is_symlink()]
    told = 0
    for file in files:
        before = file.read_text()
        file.write_text("N/A\n")
        found = publish(HardwareReader(tree))
        assert whole in found.devices or ADDRESS not in str(file), file
        assert len(found.devices) + len(found.unreadable) == 2, file
        told += len(found.unreadable)
        file.write_text(before)
    assert told == 2  # of each GPU its node of KFD


def rewrite(tree: Tree, node: int, text: str) -> None:
    """Change a line of the properties of one of KFD's nodes; the first GPU's are 2 to 9 in CPX."""
    file = Path(tree.sys(f"{NODES}/{node}/properties"))
    name, lines = text.split(maxsplit=1)[0], file.read_text().splitlines()
    file.write_text("".join(f"{text}\n" if line.startswith(f"{name} ") else f"{line}\n" for line in lines))


def write_mode(tree: Tree, mode: str) -> None:
    """The file says so; nothing else changes."""
    Path(tree.sys(f"{BOUND}/{ADDRESS}/current_compute_partition")).write_text(f"{mode}\n")


@pytest.mark.parametrize(
    ("scenario", "mode", "told"),
    [
        (
            "mi300x-8-cpx",
            "SPX",
            "its mode spx_nps1 has partitions: 1 (XCCs of each: 8), and KFD shows 8 (XCCs of each: 1)",
        ),
        ("mi300x-2", "CPX", "its mode cpx_nps1 has partitions: 8 (XCCs of each: 1), and KFD shows 1 (XCCs of each: 8)"),
        ("mi308x-8", "DPX", "its mode dpx_nps1 has partitions: 2 (XCCs of each: 2), and KFD shows 1 (XCCs of each: 4)"),
    ],
)
def test_a_gpu_whose_mode_and_partitions_contradict_each_other_is_unreadable(
    scenario: str, mode: str, told: str, tmp_path: Path
) -> None:
    tree = open_tree(tmp_path, scenario)
    write_mode(tree, mode)
    found = publish(HardwareReader(tree))
    assert ADDRESS not in {one.attributes["pciAddr"] for one in found.devices}
    (unreadable,) = found.unreadable
    assert unreadable.startswith(f"GPU {ADDRESS} is bound to amdgpu and cannot be used: {told}; ")


def test_a_gpu_some_of_whose_partitions_kfd_does_not_show_has_the_others(tmp_path: Path) -> None:
    tree = open_tree(tmp_path, "mi300x-8-cpx")
    shutil.rmtree(tree.sys(f"{NODES}/5"))
    found = publish(HardwareReader(tree))
    assert (len(found.devices), found.unreadable) == (63, ())


def test_a_gpu_some_of_whose_partitions_kfd_does_not_show_is_divided_as_any_other(tmp_path: Path) -> None:
    def choose() -> dict[str, tuple[object, object]]:
        devices = build_inventory(HardwareReader(tree).read_here(), Partitioning.COMPUTE).devices
        return {one.name: (one.capacity["computeUnits"], one.consumes_counters[0].counters) for one in devices}

    tree = open_tree(tmp_path, "mi300x-8-cpx")
    before = choose()
    shutil.rmtree(tree.sys(f"{NODES}/5"))
    del before["gpu-1-128-cpx-nps1-3"]
    assert choose() == before


def test_partitions_of_a_gpu_without_memory_of_its_own_have_their_parts_of_what_kfd_gives_it(tmp_path: Path) -> None:
    reading = HardwareReader(open_tree(tmp_path, "mi300a-4")).read_here()
    found = build_inventory(reading, Partitioning.COMPUTE).devices
    assert len(found) == 4 * (1 + 3 + 6)
    memory = {(one.attributes["computePartition"], one.capacity["memory"].value) for one in found}
    whole = reading.gpus[0].partitions[0].memory
    assert memory == {("spx", whole), ("tpx", whole // 3), ("cpx", whole // 6)}


def test_a_gpu_whose_mode_cannot_change_has_no_devices_of_other_modes(tmp_path: Path) -> None:
    tree = open_tree(tmp_path)
    os.unlink(tree.sys(f"{BOUND}/{ADDRESS}/available_compute_partition"))  # as in a guest, which may not write either
    found = build_inventory(HardwareReader(tree).read_here(), Partitioning.COMPUTE)
    (whole,) = (one for one in found.devices if one.attributes["pciAddr"] == ADDRESS)
    assert whole.attributes["computePartition"] == "spx"
    assert len(found.devices) == 1 + 15
    assert all(one.counters for one in (*found.counter_sets, *whole.consumes_counters))  # the API takes no empty ones


def test_partitions_are_there_whatever_the_kernel_calls_their_platform_devices(tmp_path: Path) -> None:
    tree = open_tree(tmp_path, "mi300x-8-cpx")
    before = publish(HardwareReader(tree))
    for one in Path(tree.sys("devices/platform")).glob("amdgpu_xcp_*"):
        one.rename(one.with_name(one.name.replace("xcp_", "xcp.")))  # as older kernels have it
    assert publish(HardwareReader(tree)) == before


@pytest.mark.parametrize(
    ("scenario", "node", "render", "told"),
    [
        ("mi300x-2", 3, 128, "its render node is renderD128, which is the one of GPU 0000:05:00.0"),
        ("mi300x-8-cpx", 12, 139, "renderD139 is its render node, and another one of GPU 0000:27:00.0"),
    ],
)
def test_a_gpu_with_a_render_node_that_is_anothers_is_unreadable_and_costs_no_other_gpu(
    scenario: str, node: int, render: int, told: str, tmp_path: Path
) -> None:
    tree = open_tree(tmp_path, scenario)
    before = publish(HardwareReader(tree)).devices
    rewrite(tree, node, f"drm_render_minor {render}")
    found = publish(HardwareReader(tree))
    assert [one.name for one in found.devices] == [one.name for one in before if one.attributes["pciAddr"] != ADDRESS]
    (unreadable,) = found.unreadable
    assert told in unreadable


def test_nodes_that_the_kernel_hides_from_a_container_are_told_with_what_to_do(tmp_path: Path) -> None:
    tree = open_tree(tmp_path)
    for node in (2, 3):
        file = Path(tree.sys(f"{NODES}/{node}/properties"))
        file.unlink()
        file.mkdir()  # read by nobody, root included
    found = publish(HardwareReader(tree)).unreadable
    assert len(found) == 2
    assert all("may not read 2 of KFD's nodes" in one and "backends.amd.privileged" in one for one in found)


@pytest.mark.parametrize("text", ["UNKNOWN\n", ""])
def test_a_gpu_that_does_not_tell_its_mode_any_more_stays_what_it_was_and_is_lost_until_it_does(
    text: str, tmp_path: Path
) -> None:
    tree = open_tree(tmp_path)
    telemetry = HardwareReader(tree)
    before = publish(telemetry).devices
    file = Path(tree.sys(f"{BOUND}/{ADDRESS}/current_memory_partition"))
    file.write_text(text)
    assert publish(telemetry).devices == before
    assert [one.why for one in telemetry.last.lost] == ["the driver no longer reports its partition mode"]
    assert publish(HardwareReader(tree)).devices[1].attributes.get("partitionProfile") is None
    file.write_text("NPS1\n")
    publish(telemetry)
    assert telemetry.last.lost == ()
