"""GPUs for guests: taken from amdgpu when nobody uses them, and given back."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

import pydra_amd
from amd_claims import Claims, held_by, names
from amd_values import GIB, MIB, allocated_device
from pydra import AllocatedDevice, ClaimError, Device, DeviceInUse, InvalidConfig, TerminalError
from pydra_amd import Settings
from pydra_amd.claim_config import GpuConfig, Iommu, VfioDeviceConfig
from pydra_amd.settings import Partitioning

if TYPE_CHECKING:
    from pydra_amd.backend import AmdBackend

GUEST, WHOLE, OTHER = "gpu-vfio-0", "gpu-1-128", "gpu-9-136"
ADDRESS = "0000:05:00.0"


class Node(Claims):
    """A simulated machine with the backend, and the claims that it holds."""

    def __init__(self, root: Path, backend: AmdBackend) -> None:
        super().__init__(backend)
        self.root = root / "tree"

    async def open(self, *devices: str | AllocatedDevice, uid: str = "uid-1") -> list[str]:
        """The nodes by which a container opens the first device."""
        return names(await self.prepare(*devices, uid=uid))[0]

    async def devices(self) -> dict[str, Device]:
        return {one.name: one for one in (await self.backend.discover()).devices}

    def driver(self) -> str:
        link = self.root / "sys/bus/pci/devices" / ADDRESS / "driver"
        return link.readlink().name if link.is_symlink() else ""

    def use(self, pid: int, node: str) -> None:
        folder = self.root / "proc" / str(pid)
        (folder / "fd").mkdir(parents=True)
        (folder / "fd" / "3").symlink_to(node)
        (folder / "comm").write_text("python3\n")


@asynccontextmanager
async def machine(root: Path, **settings: object) -> AsyncIterator[Node]:
    given = {"scenario": "mi300x-2", "state": str(root), "vfio": True, "vfio_idle_deadline": 0.01, **settings}
    async with pydra_amd.connect(Settings(**given)) as backend:  # type: ignore[arg-type]
        node = Node(root, backend)
        with held_by(node):
            yield node


async def test_a_gpu_is_bound_for_a_guest_and_given_back_when_the_claim_ends(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        before = await node.devices()
        assert before[GUEST].attributes == {
            "type": "vfio",
            "pciAddr": ADDRESS,
            "deviceID": "0x74a1",
            "vendorID": "0x1002",
            "productName": "AMD_Instinct_MI300X",
            "iommuGroup": "17",
            "isVF": False,
            "numaNode": 0,
            "resource.kubernetes.io/pciBusID": ADDRESS,
            "resource.kubernetes.io/pcieRoot": "pci0000:00",
            "resource.kubernetes.io/numaNode": 0,
        }
        sizes = {name: one.value for name, one in before[GUEST].capacity.items()}
        assert sizes == {"memory": 192 * GIB, "computeUnits": 304, "simdUnits": 1216}
        assert before[GUEST].consumes_counters == before[WHOLE].consumes_counters != ()
        assert await node.open(GUEST) == ["/dev/vfio/17", "/dev/vfio/vfio"]
        assert node.driver() == "vfio-pci"
        assert {*await node.devices()} == {OTHER, GUEST, "gpu-vfio-1"}
        await node.end()
        assert node.driver() == "amdgpu"
        assert await node.devices() == before


async def test_an_override_of_the_admin_is_there_again_when_the_claim_ends(tmp_path: Path) -> None:
    override = tmp_path / "tree/sys/bus/pci/devices" / ADDRESS / "driver_override"
    async with machine(tmp_path) as node:
        override.write_text("amdgpu\n")
        await node.prepare(GUEST)
        assert override.read_text().strip() == "vfio-pci"
        await node.end()
        assert (node.driver(), override.read_text().strip()) == ("amdgpu", "amdgpu")


async def test_a_gpu_that_is_given_back_has_the_mode_again_that_the_admin_set(tmp_path: Path) -> None:
    async with machine(tmp_path, partitioning=Partitioning.COMPUTE, vfio=False) as node:
        await node.prepare(f"{WHOLE}-cpx-nps1-0")
    async with machine(tmp_path) as node:
        before = await node.devices()
        assert len(before) == 8 + 1 + 2
        await node.prepare(GUEST)
        await node.end()
        assert await node.devices() == before


async def test_a_guest_and_a_container_never_have_one_gpu(tmp_path: Path) -> None:
    async with machine(tmp_path, partitioning=Partitioning.COMPUTE) as node:
        devices = await node.devices()
        sets = {one.counter_set for one in devices[GUEST].consumes_counters}
        taken = {**devices[GUEST].consumes_counters[0].counters}
        for name, one in devices.items():
            if name.startswith(WHOLE):
                (drawn,) = one.consumes_counters
                assert {drawn.counter_set} == sets
                assert any(taken[counter] == 24 and int(amount) for counter, amount in drawn.counters.items())
        await node.prepare(f"{WHOLE}-cpx-nps1-0")
        with pytest.raises(DeviceInUse):
            await node.plan(GUEST, uid="uid-2")
        await node.end()
        await node.prepare(GUEST)
        with pytest.raises(DeviceInUse):
            await node.plan(GUEST, uid="uid-2")
        with pytest.raises(TerminalError, match="either passed through or used by containers"):
            await node.plan("gpu-vfio-1", OTHER, uid="uid-2")


async def test_a_gpu_that_leaves_the_bus_takes_no_name_from_another(tmp_path: Path) -> None:
    async with machine(tmp_path, scenario="mi300x-8") as node:
        before = await node.devices()
        await node.prepare("gpu-vfio-3")
        entry = node.root / "sys/bus/pci/devices" / str(before["gpu-vfio-1"].attributes["pciAddr"])
        bound = node.root / "sys/bus/pci/drivers/amdgpu" / entry.name
        places = {path: path.readlink() for path in (entry, bound)}
        for path in places:
            path.unlink()
        for _ in range(2):
            after = {name: one.attributes for name, one in (await node.devices()).items() if "vfio" in name}
            assert after == {name: before[name].attributes for name in after}
            assert len(after) == 7
        await node.prepare("gpu-vfio-2", uid="uid-2")
        for path, place in places.items():
            path.symlink_to(place)
        assert (await node.devices())["gpu-vfio-1"] == before["gpu-vfio-1"]


async def test_functions_of_one_iommu_group_are_never_given_to_two_claims(tmp_path: Path) -> None:
    functions = tmp_path / "tree/sys/bus/pci/devices"
    async with machine(tmp_path) as node:
        group = functions / "0000:27:00.0/iommu_group"
        group.unlink()
        group.symlink_to(os.readlink(functions / ADDRESS / "iommu_group"))
        await node.prepare(GUEST)
        with pytest.raises(ClaimError, match=r"gpu-vfio-1 .* IOMMU group 17, of which claim default/claim-uid-1 has"):
            await node.plan("gpu-vfio-1", uid="uid-2")
        node.held["uid-1"] = replace(node.held["uid-1"], left_over=True)
        with pytest.raises(ClaimError, match=r"of which claim default/claim-uid-1, which has ended, .* `pydra doctor`"):
            await node.plan("gpu-vfio-1", uid="uid-2")
        await node.end()
        await node.prepare(GUEST, "gpu-vfio-1")
        assert (await node.plan(allocated_device(GUEST, admin_access=True), uid="uid-2")).steps == ()


async def test_a_gpu_is_not_taken_from_a_process_that_uses_it(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        node.use(4242, "/dev/dri/renderD128")
        claim = await node.plan(GUEST)
        with pytest.raises(
            ClaimError, match=r"still in use after 0.01 s, by python3 \(pid 4242\); .*VFIO_IDLE_DEADLINE"
        ):
            await node.carry_out(claim)
        assert node.driver() == "amdgpu"
        (node.root / "proc/4242/fd/3").unlink()
        number = (node.root / "sys/class/kfd/kfd/topology/nodes/2/gpu_id").read_text().strip()
        computes = node.root / f"sys/class/kfd/kfd/proc/{os.getpid()}"
        computes.mkdir(parents=True)
        (computes / f"vram_{number}").write_text("0\n")
        with pytest.raises(ClaimError, match=rf"still in use .* \(pid {os.getpid()}\)"):
            await node.carry_out(claim)
        (computes / f"vram_{number}").unlink()
        assert await node.carry_out(claim)


async def test_a_gpu_whose_users_nobody_can_tell_is_not_taken(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        node.use(4242, "/dev/dri/renderD128")
        claim = await node.plan(GUEST)
        shutil.rmtree(node.root / "sys/class/kfd/kfd/topology/nodes/2")
        with pytest.raises(ClaimError, match="bound to amdgpu, which does not show it any more: its users"):
            await node.carry_out(claim)
        assert node.driver() == "amdgpu"


async def test_virtual_functions_are_offered_beside_gpus_that_another_driver_has(tmp_path: Path) -> None:
    async with machine(tmp_path, scenario="mi300x-2-sriov") as node:
        devices = await node.devices()
        assert {*devices} == {"gpu-vfio-2", "gpu-vfio-3"}
        assert {one.attributes["isVF"] for one in devices.values()} == {True}
        assert {one.attributes["productName"] for one in devices.values()} == {"AMD_Instinct_MI300X_VF"}
        (memory,) = {one.capacity["memory"].value for one in devices.values()}
        assert 191 * GIB < int(memory) <= 196288 * MIB, "each GPU has one of them, in which a guest sees this much"
        assert devices["gpu-vfio-2"].consumes_counters == ()
        assert await node.open("gpu-vfio-2") == ["/dev/vfio/117", "/dev/vfio/vfio"]
        await node.end()
        assert await node.devices() == devices


async def test_virtual_functions_of_one_gpu_have_equal_parts_of_it(tmp_path: Path) -> None:
    async with machine(tmp_path, scenario="mi300x-2-sriov") as node:
        first, second = (f"sys/bus/pci/devices/0000:{bus}:02.0" for bus in ("05", "27"))
        (node.root / second / "physfn").unlink()
        (node.root / second / "physfn").symlink_to((node.root / first / "physfn").resolve())
        for one in (await node.devices()).values():
            sizes = {name: int(capacity.value) for name, capacity in one.capacity.items()}
            assert (sizes["computeUnits"], sizes["simdUnits"]) == (152, 608)
            assert 95 * GIB < sizes["memory"] < 96 * GIB


async def test_the_interface_to_the_iommu_is_the_claims_choice(tmp_path: Path) -> None:
    def guest(policy: str) -> object:
        config = VfioDeviceConfig(iommu=Iommu(backend_policy=policy))  # type: ignore[arg-type]
        return allocated_device(GUEST, configs=(config,), explicit=(True,))

    async with machine(tmp_path) as node:
        assert await node.open(guest("PreferIommuFD")) == ["/dev/vfio/devices/vfio0", "/dev/vfio/vfio", "/dev/iommu"]
        await node.end()
        (node.root / "dev/iommu").unlink()
        assert (await node.open(guest("PreferIommuFD")))[0] == "/dev/vfio/17"
        await node.end()
        with pytest.raises(
            ClaimError, match=r"requires iommufd, and this node has no /dev/iommu; ask for PreferIommuFD"
        ):
            await node.plan(guest("RequireIommuFD"))
        with pytest.raises(InvalidConfig, match="found a GpuConfig, and gpu-vfio-0 takes a VfioDeviceConfig"):
            await node.plan(allocated_device(GUEST, configs=(GpuConfig(),), explicit=(True,)))


async def test_without_an_iommu_no_gpu_is_offered_to_guests(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        for link in (node.root / "sys/devices").glob("*/*/iommu_group"):
            link.unlink()
        assert {*await node.devices()} == {WHOLE, OTHER}
