"""Memory modes of a simulated machine: all GPUs change together, between claims and never below one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

import pydra_amd
from amd_claims import Claims, held_by, names
from amd_values import allocated_device, claim_of
from pydra import ClaimError, LeftBehind, TaintEffect
from pydra_amd import Settings
from pydra_amd.host.driver_reload import DriverModule
from pydra_amd.settings import Partitioning
from pydra_pci import Roots, Tree

if TYPE_CHECKING:
    from pydra_amd.backend import AmdBackend

CPX4, QPX4, CPX1 = "gpu-1-128-cpx-nps4-0", "gpu-9-136-qpx-nps4-2", "gpu-9-136-cpx-nps1-0"
CONFLICT = "gpu.amd.com/memory-partition-conflict"
BOUND = Path("tree/sys/bus/pci/drivers/amdgpu")


class Node(Claims):
    """A simulated machine with the backend, and the claims that it holds."""

    def __init__(self, root: Path, backend: AmdBackend) -> None:
        super().__init__(backend)
        self.root = root

    def fault(self, what: str, *faults: str) -> None:
        file = self.root / "faults" / what
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(faults))

    def modes(self) -> list[str]:
        files = ("current_compute_partition", "current_memory_partition")
        return [
            "_".join((gpu / file).read_text().strip() for file in files)
            for gpu in sorted((self.root / BOUND).iterdir())
        ]

    async def tainted(self) -> set[str]:
        """The modes of the devices that have the taint."""
        return {
            str(one.attributes["partitionProfile"])
            for one in (await self.backend.discover()).devices
            if any((taint.key, taint.effect) == (CONFLICT, TaintEffect.NO_EXECUTE) for taint in one.taints)
        }


@asynccontextmanager
async def machine(root: Path) -> AsyncIterator[Node]:
    settings = Settings(scenario="mi300x-2", state=str(root), partitioning=Partitioning.MEMORY)
    async with pydra_amd.connect(settings) as backend:
        node = Node(root, backend)
        with held_by(node):
            yield node


async def test_all_gpus_change_for_the_first_claim_of_a_memory_mode_and_back_after_the_last(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        assert len((await node.backend.discover()).devices) == 2 * (1 + 2 + 2 + 4 + 4 + 8 + 8)
        assert names(await node.prepare(CPX4)) == [["/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD128"]]
        assert node.modes() == ["CPX_NPS4", "QPX_NPS4"]
        assert names(await node.prepare(QPX4, uid="uid-2"))[0][2] == "/dev/dri/renderD138"
        await node.end()
        assert node.modes() == ["CPX_NPS4", "QPX_NPS4"]
        await node.end("uid-2")
        assert node.modes() == ["SPX_NPS1", "SPX_NPS1"]
        await node.prepare(CPX1)
        assert node.modes() == ["SPX_NPS1", "CPX_NPS1"]


async def test_devices_of_other_memory_modes_are_tainted_as_long_as_a_claim_keeps_one(tmp_path: Path) -> None:
    nps1 = {"spx_nps1", "dpx_nps1", "qpx_nps1", "cpx_nps1"}
    nps4 = {"dpx_nps2", "qpx_nps4", "cpx_nps4"}
    async with machine(tmp_path) as node:
        assert await node.tainted() == set()
        for device, others in ((CPX4, nps1 | {"dpx_nps2"}), ("gpu-1-128", nps4)):
            waiting = asyncio.create_task(node.backend.wait_changed())
            await node.prepare(device)
            await asyncio.wait_for(waiting, 30)
            assert await node.tainted() == others
            waiting = asyncio.create_task(node.backend.wait_changed())
            await node.end()
            await asyncio.wait_for(waiting, 30)
            assert await node.tainted() == set()


async def test_a_memory_mode_does_not_change_below_a_claim(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        await node.prepare(allocated_device("gpu-9-136", admin_access=True), uid="looks")
        told = r"amdgpu is reloaded for all GPUs .* claims have some of them: default/claim-looks; it can change when"
        with pytest.raises(ClaimError, match=told) as caught:
            await node.plan(CPX4)
        assert caught.value.reason == "ModeConflict"
        await node.end("looks")
        await node.prepare(CPX4)
        with pytest.raises(ClaimError, match=r"are in nps4 as long as claims need it, such as default/claim-uid-1"):
            await node.plan(CPX1, uid="uid-2")
        await node.end()
        with pytest.raises(ClaimError, match=r"claim asks for several: gpu-9-136-cpx-nps1-0 \(nps1\), gpu-1-128-cpx"):
            await node.plan(CPX4, CPX1)
        assert node.modes() == ["SPX_NPS1", "SPX_NPS1"]


async def test_the_driver_is_not_loaded_anew_below_a_claim_that_only_looks(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        await node.prepare(CPX4)
        await node.prepare(allocated_device(CPX4, admin_access=True), uid="looks")
        await node.end()
        assert node.modes() == ["CPX_NPS4", "QPX_NPS4"]
        await node.end("looks")
        assert node.modes() == ["SPX_NPS1", "SPX_NPS1"]
        await node.prepare(CPX4)
        await node.plan(allocated_device(CPX4, admin_access=True), uid="looks")
        await node.end()
        with pytest.raises(ClaimError, match=r"does not exist: GPU .* is in the mode spx_nps1"):
            await node.carry_out(node.held["looks"].claim)


async def test_a_claim_whose_plan_cannot_be_read_keeps_the_memory_mode(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        node.hold(replace(claim_of("gpu-9-136", uid="lost"), namespace="", name=""))
        with pytest.raises(ClaimError, match=r"reloaded for all GPUs of this node, and claims have .*: with uid lost"):
            await node.plan(CPX4)


FAULTS = {
    ("0000:05:00.0", "EPERM"): "writing NPS4 to .* failed: Operation not permitted; the driver answers that while",
    ("driver", "EPERM"): "^modprobe -r amdgpu failed with 1: modprobe: ERROR: Operation not permitted",
    ("driver", "EBUSY"): "cannot change from nps1 to nps4: modprobe -r .* in use.; end what uses",
    ("driver", "- EIO"): "modprobe amdgpu failed with 1: modprobe: ERROR: Input/output error",
    ("driver", "- keep"): "is in the mode spx_nps1 after amdgpu was reloaded for the memory mode nps4",
}


@pytest.mark.parametrize(("what", "fault"), FAULTS)
async def test_a_reload_that_fails_is_the_claims_error_and_the_gpus_are_as_before(
    what: str, fault: str, tmp_path: Path
) -> None:
    async with machine(tmp_path) as node:
        claim = await node.plan(CPX4)
        node.fault(what, *fault.split())
        with pytest.raises(ClaimError, match=FAULTS[what, fault]):
            await node.carry_out(claim)
        assert node.modes() == ["SPX_NPS1", "SPX_NPS1"]
        assert node.held == {}


async def test_the_driver_is_not_asked_while_a_process_uses_any_gpu(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        claim = await node.plan(CPX4)
        process = tmp_path / "tree/sys/class/kfd/kfd/proc" / str(os.getpid())
        process.mkdir(parents=True)
        with pytest.raises(ClaimError, match=rf"these processes have /dev/kfd open: {os.getpid()}") as caught:
            await node.carry_out(claim)
        assert caught.value.reason == "GpuBusy"
        process.rmdir()
        (tmp_path / "tree/sys/module/amdgpu/refcnt").write_text("1")
        with pytest.raises(ClaimError, match="a GPU of this node is in use"):
            await node.carry_out(claim)
        assert (tmp_path / "tree/memory.json").read_text().split() == ['["nps1","nps1"]']


async def test_a_machine_without_driver_gets_it_back_when_the_claim_ends_that_took_it(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        claim = await node.plan(CPX4)
        node.fault("driver", "-", "EIO", "EIO")
        with pytest.raises(LeftBehind, match="modprobe amdgpu failed") as caught:
            await node.carry_out(claim)
        assert "modprobe amdgpu failed" in caught.value.__notes__[0]
        assert (await node.backend.discover()).devices == ()
        await node.end()
        assert node.modes() == ["SPX_NPS1", "SPX_NPS1"]


@pytest.mark.parametrize("fault", ["EIO", "keep", "fall"])
async def test_a_gpu_that_does_not_take_its_mode_again_keeps_no_other_from_claims(fault: str, tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        await node.prepare("gpu-1-128-cpx-nps1-0", "gpu-9-136-cpx-nps1-0")
        node.held.clear()  # the modes are the admin's
        await node.prepare(CPX4)
        node.fault("0000:05:00.0", "-", fault)
        await node.end()
        assert (node.held, node.modes()) == ({}, ["SPX_NPS1", "CPX_NPS1"])


async def test_a_driver_that_still_loads_when_the_call_is_over_is_waited_for_to_undo_the_claim(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        claim = await node.plan(CPX4)
        node.fault("driver", "-", "slow", "EIO")
        with pytest.raises(LeftBehind, match=r"did not end within 177 s"):
            await node.carry_out(claim)
    async with machine(tmp_path) as other:
        other.held.update(node.held)
        await other.end()
        assert other.modes() == ["SPX_NPS1", "SPX_NPS1"]


async def test_the_driver_is_unloaded_and_loaded_with_the_nodes_own_modprobe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "chroot"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/told\ntest "$3" != -r || {{ echo in use >&2; exit 1; }}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    driver = DriverModule(Tree(Roots(host="/host")))
    await driver.load()
    with pytest.raises(ClaimError, match=r"chroot /host modprobe -r amdgpu ended with 1: in use; .*_RELOAD_DEADLINE"):
        await driver.unload()
    assert (tmp_path / "told").read_text() == "/host modprobe amdgpu\n/host modprobe -r amdgpu\n"
