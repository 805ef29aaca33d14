"""The backend as pydra calls it, over the files of a simulated machine."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pydra_tpu
from pydra import HealthStatus, PydraError
from pydra.testing import check_backend
from pydra_tpu import Settings

if TYPE_CHECKING:
    from pydra_tpu.backend import TpuBackend


@asynccontextmanager
async def machine(root: Path, **settings: object) -> AsyncIterator[TpuBackend]:
    given = {"scenario": "v5e-8", "state": str(root), "poll_period": 0.01, **settings}
    async with pydra_tpu.connect(Settings(**given)) as backend:  # type: ignore[arg-type]
        yield backend


@pytest.mark.parametrize("scenario", ["v4-8", "v5e-8+node-gone+link-down+throttled"])
def test_it_keeps_the_contract(scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYDRA_TPU_SCENARIO", scenario)
    monkeypatch.setenv("PYDRA_TPU_STATE", str(tmp_path))
    report = check_backend("tpu")
    assert report.ok, report.text


async def test_the_chips_are_found_in_sysfs_each_with_its_numa_node(tmp_path: Path) -> None:
    async with machine(tmp_path) as backend:
        devices = {one.name: one for one in (await backend.discover()).devices}
    numa = "resource.kubernetes.io/numaNode"
    assert [devices[f"chip-{index}"].attributes[numa] for index in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert devices["2x2-4"].attributes[numa] == 1
    assert numa not in devices["2x4-0"].attributes
    assert devices["chip-2"].attributes["resource.kubernetes.io/pciBusID"] == "0000:00:06.0"
    assert devices["2x4-0"].attributes["topology"] == "2x4"
    assert {one.health.status for one in devices.values()} == {HealthStatus.HEALTHY}


async def test_a_device_node_that_goes_is_noticed_and_so_is_its_return(tmp_path: Path) -> None:
    async with machine(tmp_path) as backend:
        await backend.discover()
        node = tmp_path / "tree" / "dev" / "vfio" / "3"
        target = node.readlink()
        for change in (node.unlink, lambda: node.symlink_to(target)):
            waiting = asyncio.create_task(backend.wait_changed())
            change()
            await asyncio.wait_for(waiting, 30)
            chip = next(one for one in (await backend.discover()).devices if one.name == "chip-3")
            assert (chip.health.status is HealthStatus.HEALTHY) is node.exists()


async def test_functions_of_google_that_are_not_tpus_are_ignored_and_unknown_ones_are_told(tmp_path: Path) -> None:
    async with machine(tmp_path) as backend:
        functions = tmp_path / "tree" / "sys" / "bus" / "pci" / "devices"
        for address, device in (("0000:00:01.0", "0x0042"), ("0000:00:02.0", "0x0999")):
            (functions / address).mkdir()
            (functions / address / "vendor").write_text("0x1ae0\n")
            (functions / address / "device").write_text(f"{device}\n")
        inventory = await backend.discover()
    assert len(inventory.devices) == 15
    assert [text.partition(";")[0] for text in inventory.unreadable] == [
        "PCI function 0000:00:02.0 of Google has the unknown device id 0x0999"
    ]


async def test_a_machine_without_pci_has_no_devices(tmp_path: Path) -> None:
    async with machine(tmp_path) as backend:
        shutil.rmtree(tmp_path / "tree" / "sys" / "bus" / "pci")
        (tmp_path / "tree" / "sys" / "bus" / "usb").mkdir()
        inventory = await backend.discover()
    assert (inventory.devices, inventory.unreadable) == ((), ())


async def test_a_sys_that_is_empty_is_reported(tmp_path: Path) -> None:
    async with machine(tmp_path) as backend:
        shutil.rmtree(tmp_path / "tree" / "sys")
        inventory = await backend.discover()
    assert inventory.devices == ()
    assert "bus/pci/devices: No such file or directory; PYDRA_TPU_SYS_ROOT must be where" in inventory.unreadable[0]


async def test_a_scenario_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(PydraError, match=r"no scenario v9; bundled are: .*v5e-8"):
        async with machine(tmp_path, scenario="v9"):
            pass
