"""Binding a function for passthrough and giving it back, over a simulated machine whose kernel answers the writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pydra import ClaimError, LeftBehind
from pydra_nvidia.nvml.errors import NvmlError
from pydra_nvidia.nvml.maintenance_gate import Gate
from pydra_nvidia.nvml.session import NvmlSession
from pydra_pci import DeviceBusy

"""Override, unbind, bind."""


async def apply(node: Any, step: Any = None, **options: Any) -> None:
    step = step or node.step()
    await node.applier(**options).apply(step, None, node.entry(step))


async def undo(node: Any, step: Any = None, **options: Any) -> None:
    step = step or node.step()
    await node.applier(**options).undo(step, None, node.entry(step))


async def begun_waiting(node: Any) -> None:
    async with asyncio.timeout(20):
        while node.gpu().persistence:  # noqa: ASYNC110 - what it waits for is in a file
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("iommufd", [True, False])
async def test_a_gpu_goes_to_passthrough_and_comes_back_as_it_was(make_node: Callable[..., Any], iommufd: bool) -> None:
    node = make_node(iommufd=iommufd)
    before = node.picture()
    await apply(node)
    assert (node.driver(), node.override(), node.gpu().driver) == ("vfio-pci", "vfio-pci", "vfio-pci")
    assert len(node.machine.read().attached()) == 1
    await undo(node)
    assert node.picture() == before
    assert node.gpu().persistence


async def test_nvml_sees_the_gpu_go_and_come_although_a_session_was_open(node: Any) -> None:
    count = lambda nvml: nvml.call("nvmlDeviceGetCount")  # noqa: E731
    assert await node.session.run(count) == 2
    await apply(node)
    assert await node.session.run(count) == 1
    await undo(node)
    assert await node.session.run(count) == 2


@pytest.mark.parametrize("seen_by", ["proc", "nvml"])
async def test_a_gpu_in_use_is_waited_for_and_its_users_are_named(node: Any, seen_by: str) -> None:
    before = node.picture()
    if seen_by == "proc":
        node.run(4711, "python3", "/dev/nvidiactl", "/dev/nvidia0")
        words = r"GPU 0000:53:00.0 is still in use after 0.05 s, by python3 \(pid 4711\).*VFIO_IDLE_DEADLINE"
    else:
        node.inject.start_process(0, pid=815)
        words = r"by a process \(pid 815\)"
    with pytest.raises(DeviceBusy, match=words):
        await apply(node)
    assert (node.picture(), node.tree.writes) == (before, [])


async def test_a_gpu_that_becomes_idle_in_time_is_bound(node: Any) -> None:
    node.run(4711, "python3", "/dev/nvidia0")
    applying = asyncio.create_task(apply(node, deadline=30))
    await begun_waiting(node)
    node.stop(4711)
    await applying
    assert node.driver() == "vfio-pci"


async def test_what_this_process_has_open_itself_is_closed_first(node: Any) -> None:
    (node.root / "proc/self").symlink_to("99")
    node.run(99, "pydra", "/dev/nvidia0")
    before = node.picture()
    with pytest.raises(DeviceBusy, match=r"by pydra \(pid 99\)"):  # closing the session was not enough
        await apply(node)
    assert node.picture() == before
    node.stop(99)
    await apply(node)
    assert node.driver() == "vfio-pci"


async def test_a_cancelled_wait_leaves_everything_as_it_was(node: Any) -> None:
    node.run(4711, "python3", "/dev/nvidia0")
    before = node.picture()
    applying = asyncio.create_task(apply(node, deadline=30))
    await begun_waiting(node)
    applying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await applying
    assert node.picture() == before


async def test_a_gpu_that_was_partitioned_since_the_plan_is_left_alone(node: Any) -> None:
    with node.machine.change() as view:
        gpu = next(view.state.gpus[uuid] for uuid, board in view.boards.items() if board.address == node.GPU)
        gpu.mig = gpu.mig_pending = True
    before = node.picture()
    with pytest.raises(ClaimError, match="in MIG mode"):
        await apply(node)
    assert (node.picture(), node.tree.writes) == (before, [])


async def test_a_gpu_that_is_lost_is_left_alone(node: Any) -> None:
    node.inject.lose(0)
    with pytest.raises(NvmlError, match="GPU_IS_LOST"):
        await apply(node)
    assert node.tree.writes == []


async def test_without_nvml_the_kernel_tells_which_node_to_watch(node: Any) -> None:
    with node.machine.change() as view:
        view.state.driver = "unloaded"
    node.put(f"proc/driver/nvidia/gpus/{node.GPU}/information", "Model: \t\t H100\nDevice Minor: \t 0\n")
    node.run(4711, "python3", "/dev/nvidia0")
    with pytest.raises(DeviceBusy, match="pid 4711"):
        await apply(node)
    node.stop(4711)
    await apply(node)
    assert node.driver() == "vfio-pci"


async def test_maintenance_that_begins_while_a_gpu_is_waited_for_leaves_its_persistence_mode_to_later(
    node: Any, tmp_path: Path
) -> None:
    gate = Gate(str(tmp_path / "run"))
    node.session = NvmlSession(node.load, gate)
    node.inject.start_process(0, pid=815)
    applies = asyncio.ensure_future(apply(node, deadline=30))
    await begun_waiting(node)
    gate.ask(600)
    node.session.close()
    with pytest.raises(LeftBehind, match="maintenance"):
        await applies
    gate.withdraw()
    await undo(node)
    assert node.gpu().persistence
    node.session.close()


async def test_a_persistence_mode_that_nvml_does_not_restore_is_told_with_what_to_do(
    node: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await apply(node)
    with (node.path / "scenario.yaml").open("a") as file:
        file.write('faults: [{op: "nvmlDeviceGetHandleByPciBusId*", do: raise, code: NOT_FOUND}]\n')
    await undo(node)
    assert not node.gpu().persistence
    assert f"the persistence mode of GPU {node.GPU} stays off: nvmlDeviceGetHandleByPciBusId for" in caplog.text
    assert f"NOT_FOUND (6); switch it on again: nvidia-smi -i {node.GPU} -pm 1" in caplog.text


async def test_a_persistence_mode_that_a_killed_process_had_taken_is_given_back(node: Any) -> None:
    with node.machine.change() as view:
        for gpu in view.state.gpus.values():
            gpu.persistence = False
    await undo(node)
    assert (node.gpu().persistence, node.tree.writes) == (True, [])
