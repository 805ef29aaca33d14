"""Chips with several PCI functions, each with a device node of its own: all of them belong to the chip."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pydra_tpu
from pydra import HealthStatus
from pydra_tpu import Settings
from tpu_values import claim_of

if TYPE_CHECKING:
    from pydra_tpu.backend import TpuBackend

MACHINES = pytest.mark.parametrize(
    ("scenario", "function"), [("tpu7x-8", "0000:00:06.1"), ("tpu7x-8-slots", "0000:00:09.0")]
)
"""Machines of four chips with two functions each, in one slot or in two, and the address of chip 2's second."""
WITH_CHIP_2 = {"2x2x1-0", "1x2x1-2", "chip-2"}


@asynccontextmanager
async def machine(scenario: str, root: Path) -> AsyncIterator[TpuBackend]:
    settings = Settings(scenario=scenario, state=str(root), poll_period=0.01)
    async with pydra_tpu.connect(settings) as backend:
        yield backend


async def list_ill(backend: TpuBackend) -> Mapping[str, tuple[str, str]]:
    """By device, the reason why it is not healthy, and the text."""
    devices = (await backend.discover()).devices
    assert len(devices) == 7
    ill = [one for one in devices if one.health.status is HealthStatus.UNHEALTHY]
    return {one.name: (one.health.reason, one.health.message) for one in ill}


@MACHINES
@pytest.mark.parametrize(
    ("device", "groups"), [("2x2x1-0", "01234567"), ("1x2x1-2", "4567"), ("chip-0", "01"), ("chip-3", "67")]
)
async def test_a_claim_gets_the_nodes_of_all_functions_of_its_chips(
    scenario: str, function: str, device: str, groups: str, tmp_path: Path
) -> None:
    async with machine(scenario, tmp_path) as backend:
        assert await list_ill(backend) == {}
        [prepared] = await backend.prepare(claim_of(device))
    nodes = [node.path for node in prepared.edits.device_nodes]
    assert nodes == [*(f"/dev/vfio/{group}" for group in groups), "/dev/vfio/vfio"]


@MACHINES
async def test_a_chip_is_ill_when_one_of_its_functions_is(scenario: str, function: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    entry, node = tree / "sys/bus/pci/devices" / function, tree / "dev/vfio/5"
    async with machine(scenario, tmp_path) as backend:
        await backend.discover()
        for change, reason, text in (
            (node.unlink, "NodeGone", f"/dev/vfio/5 of chip 2 ({function}) is not there"),
            ((entry / "driver").unlink, "NoDriver", f"chip 2 ({function}) is bound to no driver"),
            (entry.unlink, "ChipGone", f"chip 2 is gone: there is no PCI function {function} any more"),
        ):
            waiting = asyncio.create_task(backend.wait_changed())
            change()
            await asyncio.wait_for(waiting, 60)
            ill = await list_ill(backend)
            assert {*ill} == WITH_CHIP_2
            assert ill["chip-2"][0] == reason
            assert ill["chip-2"][1].startswith(text)


async def test_chips_of_one_iommu_group_are_only_offered_together(tmp_path: Path) -> None:
    async with machine("v5e-8+groups-shared", tmp_path) as backend:
        inventory = await backend.discover()
        [prepared] = await backend.prepare(claim_of("1x2-2"))
    assert [one.name for one in inventory.devices] == ["2x4-0", "2x2-0", "2x2-4", *(f"1x2-{n}" for n in (0, 2, 4, 6))]
    assert [node.path for node in prepared.edits.device_nodes] == ["/dev/vfio/1", "/dev/vfio/vfio"]
    assert len(inventory.unreadable) == 4
    assert inventory.unreadable[1].startswith("chips 2, 3 are in one IOMMU group (1), which only one process can open")


async def test_functions_of_a_chip_may_be_in_one_iommu_group(tmp_path: Path) -> None:
    async with machine("tpu7x-8+groups-shared", tmp_path) as backend:
        assert await list_ill(backend) == {}
        [prepared] = await backend.prepare(claim_of("chip-2"))
    assert [node.path for node in prepared.edits.device_nodes] == ["/dev/vfio/2", "/dev/vfio/vfio"]


async def test_a_process_that_has_one_node_of_a_chip_open_uses_the_chip(tmp_path: Path) -> None:
    process = tmp_path / "tree/proc/4711"
    async with machine("tpu7x-8", tmp_path) as backend:
        (process / "fd").mkdir(parents=True)
        (process / "fd/0").symlink_to("/dev/vfio/5")
        (process / "stat").write_text(f"4711 (python) S 1 {'0 ' * 17}7 0 0\n")
        ill = await list_ill(backend)
    assert {name: reason for name, (reason, _) in ill.items()} == dict.fromkeys(WITH_CHIP_2, "InUse")


async def test_a_chip_that_lacks_a_function_from_the_start_is_ill(tmp_path: Path) -> None:
    entry = tmp_path / "tree/sys/bus/pci/devices/0000:00:06.0"
    async with machine("tpu7x-8", tmp_path) as backend:
        shutil.rmtree(entry.resolve())
        entry.unlink()
        ill = await list_ill(backend)
    assert {*ill} == WITH_CHIP_2
    text = "chip 2 (0000:00:06.1) has 1 PCI functions, but other chips of this machine have 2"
    assert ill["chip-2"] == ("ChipGone", text)


async def test_chips_of_which_the_kernel_shows_one_function_each_are_chips(tmp_path: Path) -> None:
    async with machine("tpu7x-8", tmp_path) as backend:
        for slot in range(4, 8):
            entry = tmp_path / f"tree/sys/bus/pci/devices/0000:00:{slot:02x}.1"
            shutil.rmtree(entry.resolve())
            entry.unlink()
        assert await list_ill(backend) == {}
