"""The MIG mode on simulated hardware: changed, kept, left, and refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pydra import LeftBehind, StepStage
from pydra_nvidia.mig.apply_partitions import GpuBusy, MigModeOffApplier, MigModeOnApplier, PlaceTaken
from pydra_nvidia.nvml.errors import NvmlError
from pydra_nvidia.nvml.mig_control import ModePending
from pydra_nvidia.nvml.session import NvmlSession
from pydra_nvidia.steps import BindVfio, MigModeOff, MigModeOn
from pydra_pci import Roots, Tree
from step_agent import build_claim

if TYPE_CHECKING:
    from conftest import Node

MakeNode = Callable[..., "Node"]

A100, H100 = {"model": "a100-40gb", "mig": True}, {"model": "h100-80gb"}


async def test_a_mode_that_cannot_be_changed_now_is_as_it_was(node: MakeNode) -> None:
    one = node(H100)
    one.inject.start_process(0, pid=12, name="/usr/bin/dcgm-exporter --port 1")
    with pytest.raises(GpuBusy, match=r"dcgm, nvsm .*NVML names dcgm-exporter \(pid 12\)"):
        await one.prepare(MigModeOn(gpu=one.uuids[0]), one.create("1g", 0))
    state = one.simulation.machine.read().state.gpus[one.uuids[0]]
    assert (state.mig, state.mig_pending) == (False, False)
    assert one.agent.records == {}


async def test_a_mode_that_needs_a_reset_is_not_left_pending(node: MakeNode) -> None:
    one = node({"model": "a100-40gb"})
    with pytest.raises((NvmlError, ModePending), match="reset"):
        await one.prepare(MigModeOn(gpu=one.uuids[0]))
    state = one.simulation.machine.read().state.gpus[one.uuids[0]]
    assert (state.mig, state.mig_pending) == (False, False)


@pytest.mark.parametrize("code", ["UNKNOWN", "NO_PERMISSION"])
async def test_a_mode_that_cannot_be_restored_stays_recorded_until_it_is(node: MakeNode, code: str) -> None:
    one = node(H100)
    entry = build_claim("one", MigModeOn(gpu=one.uuids[0]), one.create("1g", 0))
    one.fault(
        {"op": "nvmlDeviceGetMigMode", "do": "raise", "code": "UNKNOWN", "after": 1, "count": 1},
        {"op": "nvmlDeviceSetMigMode", "do": "raise", "code": code, "after": 1},
    )
    with pytest.raises(LeftBehind, match=f"restoring the MIG mode failed: .*NVML_ERROR_{code}"):
        await one.agent.carry_out(entry)
    assert one.mode()
    assert [step.stage for step in one.agent.records["one"].claim.steps] == [StepStage.BEGUN, StepStage.PLANNED]
    one.fault()
    await one.agent.undo("one")
    assert not one.mode()


async def test_a_gpu_that_needs_a_reset_for_it_stays_in_mig_mode(node: MakeNode) -> None:
    one = node(A100)
    await one.prepare(MigModeOn(gpu=one.uuids[0]), one.create("1g", 0))
    await one.agent.undo("one")
    state = one.simulation.machine.read().state.gpus[one.uuids[0]]
    assert (state.mig, state.mig_pending, state.instances) == (True, True, [])


async def test_that_others_have_the_gpu_open_keeps_no_claim_from_leaving(node: MakeNode) -> None:
    one = node(H100)
    await one.prepare(MigModeOn(gpu=one.uuids[0]), one.create("1g", 0))
    one.inject.start_process(0, pid=12, name="dcgm")
    await one.agent.undo("one")
    assert one.agent.records == {}
    state = one.simulation.machine.read().state.gpus[one.uuids[0]]
    assert (state.mig, state.mig_pending, state.instances) == (True, True, [])
    one.inject.end_process(0, 12)
    await one.prepare(MigModeOff(gpu=one.uuids[0]), uid="whole")
    assert not one.mode()


async def test_a_gpu_that_others_have_open_for_a_moment_leaves_mig_mode_with_its_last_claim(node: MakeNode) -> None:
    one = node(H100, patience=30.0)
    await one.prepare(MigModeOn(gpu=one.uuids[0]), one.create("1g", 0))
    one.fault({"op": "nvmlDeviceSetMigMode", "do": "raise", "code": "IN_USE", "count": 1})
    await one.agent.undo("one")
    assert not one.mode()


async def test_a_whole_gpu_leaves_mig_mode_once_it_is_empty(node: MakeNode) -> None:
    one = node({**H100, "mig": True, "instances": [{"profile": "1g.10gb", "start": 6}]})
    off = MigModeOff(gpu=one.uuids[0])
    with pytest.raises(PlaceTaken, match=r"partitioned: 1g\.10gb \(profile 19\) at memory slice 6"):
        await one.prepare(off)
    one.inject.destroy_mig(0, 6)
    await one.prepare(off)
    assert not one.mode()
    await one.agent.undo("one")
    assert not one.mode()


async def test_a_gpu_that_its_claim_has_bound_for_passthrough_has_no_mode_to_leave(node: MakeNode) -> None:
    one = node(H100)
    off = MigModeOff(gpu=one.uuids[0])
    bind = BindVfio(address="0000:0f:00.0", before="nvidia", target="vfio-pci")
    with one.simulation.machine.change() as view:
        view.state.gpus[off.gpu].driver = "vfio-pci"
    await one.agent.backend.apply(off, None, build_claim("one", off, bind))
    with pytest.raises(NvmlError, match="NOT_FOUND"):
        await one.agent.backend.apply(off, None, build_claim("one", off))
    with one.simulation.machine.change() as view:
        view.state.gpus[off.gpu].driver = "nvidia"
    one.session.close()
    one.fault({"op": "nvmlDeviceGetHandleByUUID", "do": "raise", "code": "NOT_FOUND"})
    with pytest.raises(NvmlError, match="NOT_FOUND"):
        await one.agent.backend.apply(off, None, build_claim("one", off, bind))


async def test_the_mode_stays_while_another_claim_has_anything_on_the_gpu(node: MakeNode) -> None:
    one = node(H100, {"model": "h100-80gb", "minors": [1]})
    on = MigModeOn(gpu=one.uuids[0])
    await one.prepare(on, one.create("1g", 0), uid="first")
    await one.prepare(on, one.create("1g", 1), uid="second")
    await one.agent.undo("first")
    assert one.mode()
    assert one.places() == [(19, 1)]


class LaterGpu:
    """NVML of a virtual machine's GPU: every change of the MIG mode succeeds, and stays pending."""

    class NVMLError(Exception):
        value = 3

    def __init__(self, current: int) -> None:
        self.mode = [current, current]

    def nvmlInitWithFlags(self, _flags: int) -> None:  # noqa: N802 - the vendor's names
        pass

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetMigMode(self, _gpu: str) -> list[int]:  # noqa: N802
        return list(self.mode)

    def nvmlDeviceSetMigMode(self, _gpu: str, mode: int) -> int:  # noqa: N802
        self.mode[1] = mode
        return 0

    def nvmlDeviceGetArchitecture(self, _gpu: str) -> int:  # noqa: N802
        return 9

    def nvmlDeviceGetPciInfo(self, _gpu: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId="00000000:53:00.0")


@pytest.mark.parametrize("current", [0, 1], ids=["on", "off"])
async def test_a_mode_that_only_becomes_pending_is_reported_and_restored(tmp_path: Path, current: int) -> None:
    gpu = LaterGpu(current)
    session = NvmlSession(lambda: cast("Any", gpu))
    claim = build_claim("one")
    tree = Tree(Roots(host=str(tmp_path)))
    on, off = MigModeOnApplier(session, tree), MigModeOffApplier(session, tree)
    if current:
        changing = off.apply(MigModeOff(gpu="GPU-1"), None, claim)
    else:
        changing = on.apply(MigModeOn(gpu="GPU-1"), None, claim)
    with pytest.raises(ModePending, match="with a reset only"):
        await changing
    assert gpu.mode == [current, current]
    await on.undo(MigModeOn(gpu="GPU-1"), None, claim)
    assert gpu.mode == [current, current], "the claim can leave all the same"
    session.close()
