"""What goes wrong while modes change: an error of that claim which says what to do, and everything is undone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pydra_amd
from amd_claims import Claims, held_by
from pydra import ClaimError
from pydra_amd import Settings
from pydra_amd.hardware_reader import read_machine
from pydra_amd.host.kfd import read_processes
from pydra_amd.settings import Partitioning
from pydra_pci import Roots, Tree

if TYPE_CHECKING:
    from pydra_amd.backend import AmdBackend

ADDRESSES = ("0000:05:00.0", "0000:27:00.0")
DEVICES = ("gpu-1-128-cpx-nps1-0", "gpu-9-136-cpx-nps1-0")
GPUS = Path("tree/sys/bus/pci/drivers/amdgpu")


class Node(Claims):
    """A simulated machine with the backend, and the claims that it holds."""

    def __init__(self, root: Path, backend: AmdBackend) -> None:
        super().__init__(backend)
        self._root = root

    def fault(self, address: str, *faults: str) -> None:
        """What goes wrong with the next changes of the GPU's mode."""
        file = self._root / "faults" / address
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(faults))

    def use(self) -> int:
        """Have this process use the driver."""
        pid = os.getpid()
        (self._root / "tree/sys/class/kfd/kfd/proc" / str(pid)).mkdir(parents=True)
        return pid

    def modes(self) -> list[str]:
        files = (self._root / GPUS / address / "current_compute_partition" for address in ADDRESSES)
        return [file.read_text().strip() for file in files]


@asynccontextmanager
async def machine(root: Path) -> AsyncIterator[Node]:
    settings = Settings(scenario="mi300x-2", state=str(root), partitioning=Partitioning.COMPUTE, amdsmi=False)
    async with pydra_amd.connect(settings) as backend:
        node = Node(root, backend)
        with held_by(node):
            yield node


FAULTS = {
    "EBUSY": "GPU 0000:27:00.0 is in use, so its mode cannot change from spx to cpx; no process is in .*; end what",
    "EPERM": "writing CPX to .* failed: Operation not permitted; the driver answers that while the GPU is reset",
    "EROFS": "writing CPX to .* failed: Read-only file system; PYDRA_AMD_SYS_ROOT must be",
    "EINVAL": "writing CPX to .* failed: Invalid argument; the driver does not allow this mode now",
    "EIO": "writing CPX to .* failed: Input/output error; the kernel's log says why, and .* needs a reset",
    "keep": "GPU 0000:27:00.0 is in the mode spx_nps1 after cpx was set; the kernel's log says why",
}


async def test_a_change_that_fails_says_what_to_do_and_takes_back_those_before_it(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        for fault, told in FAULTS.items():
            claim = await node.plan(*DEVICES)
            node.fault(ADDRESSES[1], fault)
            with pytest.raises(ClaimError, match=told):
                await node.carry_out(claim)
            assert node.modes() == ["SPX", "SPX"]
            assert node.held == {}
        assert len(await node.prepare(*DEVICES)) == 2


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("stale", r"its mode cpx_nps1 has partitions: 8 \(XCCs of each: 1\), and KFD shows 1 \(XCCs of each: 8\)"),
        ("fall", r"GPU 0000:27:00.0 went away while its mode was set to cpx \(No such device\).*delete the pod"),
    ],
)
async def test_a_gpu_that_shows_the_old_or_nothing_after_the_change_is_the_claims_error(
    fault: str, told: str, tmp_path: Path
) -> None:
    async with machine(tmp_path) as node:
        claim = await node.plan(*DEVICES)
        node.fault(ADDRESSES[1], fault)
        with pytest.raises(ClaimError, match=told):
            await node.carry_out(claim)
        assert node.modes() == ["SPX", "SPX"]
        assert all(one.left_over for one in node.held.values()), "the claim has ended"


async def test_a_gpu_in_use_is_refused_with_the_processes_that_use_the_driver(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        claim = await node.plan(*DEVICES)
        pid = node.use()
        with pytest.raises(ClaimError, match=rf"these processes have /dev/kfd open: {pid} \(`ps -p`") as caught:
            await node.carry_out(claim)
        assert caught.value.reason == "GpuBusy"


async def test_what_a_killed_process_had_begun_the_kernel_ends_and_counts_it_no_longer(tmp_path: Path) -> None:
    async with machine(tmp_path):
        pass
    processes = tmp_path / "tree/sys/class/kfd/kfd/proc"
    processes.mkdir()
    (processes / "4194305").symlink_to("/proc/4194305")  # above the highest pid there is
    (tmp_path / GPUS / ADDRESSES[0] / "current_compute_partition").write_text("CPX\n")
    async with machine(tmp_path) as node:
        found = read_machine(Tree(Roots(sys=str(tmp_path / "tree/sys"))))
        assert [len(gpu.partitions) for gpu in found.gpus] == [8, 1]
        assert read_processes(Tree(Roots(sys=str(tmp_path / "tree/sys")))) == ()
        await node.prepare(*DEVICES)


async def test_a_mode_that_cannot_be_set_back_is_told_and_set_back_by_the_next_call(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        claim = await node.plan(*DEVICES)
        node.fault(ADDRESSES[0], "-", "EIO", "EIO")
        node.fault(ADDRESSES[1], "EPERM")
        with pytest.raises(ClaimError, match="not permitted"):
            await node.carry_out(claim)
        assert node.modes() == ["CPX", "SPX"]
        with pytest.raises(ClaimError, match=r"writing SPX to .* failed: Input/output"):
            await node.end()
        await node.end()
        assert node.modes() == ["SPX", "SPX"]


async def test_a_claim_that_is_planned_while_another_ends_knows_the_mode_to_set_back(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        await node.prepare(*DEVICES)
        # The reading waits there, after it has read the mode of the first GPU.
        pipe = tmp_path / GPUS / ADDRESSES[1] / "mem_info_vram_total"
        total = pipe.read_text()
        pipe.unlink()
        os.mkfifo(pipe)
        planning = asyncio.create_task(node.plan("gpu-1-128-cpx-nps1-5", uid="uid-2"))
        writer = await asyncio.to_thread(os.open, pipe, os.O_WRONLY)
        await node.end()
        assert node.modes() == ["SPX", "SPX"]
        pipe.unlink()
        pipe.write_text(total)
        os.close(writer)
        claim = await planning
        await node.carry_out(claim)
        assert node.modes() == ["CPX", "SPX"]
        await node.end("uid-2")
        assert node.modes() == ["SPX", "SPX"]


async def test_one_gpu_that_keeps_its_mode_does_not_keep_the_others_from_changing_back(tmp_path: Path) -> None:
    async with machine(tmp_path) as node:
        await node.prepare(*DEVICES)
        node.fault(ADDRESSES[1], "EBUSY")
        with pytest.raises(ClaimError, match="cannot change from cpx to spx"):
            await node.end()
        assert node.modes() == ["SPX", "CPX"]
        await node.end()
        assert node.modes() == ["SPX", "SPX"]
