"""Passthrough where nvidia-persistenced keeps the GPU: NVML, as in a container, neither tells of it nor ends it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from persistenced import Daemon, run_persistenced
from pydra_nvidia.host.driver_root import DriverMissing, DriverRoot
from pydra_nvidia.host.persistenced import Persistenced, PersistenceFailed
from pydra_nvidia.prior_state import PriorState
from pydra_nvidia.simulation.machine_state import Process
from pydra_nvidia.steps import BindVfio
from pydra_pci import DeviceBusy

PID = 4711


def no_root() -> DriverRoot:
    raise DriverMissing("no driver")


def set_gpus(node: Any, *, persistence: bool) -> None:
    with node.machine.change() as view:
        for gpu in view.state.gpus.values():
            gpu.persistence = persistence


@pytest.fixture
def daemon(node: Any) -> Iterator[Daemon]:
    """It has the nodes of both GPUs open, which only /proc tells."""
    set_gpus(node, persistence=False)
    minors = {node.GPU: 0, node.OTHER: 1}
    node.run(PID, "nvidia-persiste")
    folder = node.root / f"proc/{PID}/fd"

    def have_open(address: str, on: bool) -> None:
        link = folder / str(10 + minors[address])
        link.symlink_to(f"/dev/nvidia{minors[address]}") if on else link.unlink()

    with run_persistenced(node.root / "host", *minors, changed=have_open) as daemon:
        for address in minors:
            have_open(address, on=True)
        yield daemon


def remember(node: Any, step: BindVfio) -> BindVfio:
    """The step as the claim's plan has it, made from a plan that knows only what NVML reported."""
    before = PriorState(node.session, Persistenced(node.tree, no_root))
    (found,) = before.remember([step], ())
    assert isinstance(found, BindVfio)
    return found


async def test_the_daemon_lets_the_gpu_go_and_keeps_it_again_afterwards(node: Any, daemon: Daemon) -> None:
    plain = BindVfio(address=node.GPU, before="nvidia", target="vfio-pci")
    step = remember(node, plain)
    assert step.persistence
    await node.applier(deadline=30).apply(step, None, node.entry(step))
    assert node.driver() == "vfio-pci"
    assert daemon.kept == {node.GPU: False, node.OTHER: True}
    await node.applier().undo(step, None, node.entry(step))
    assert node.driver() == "nvidia"
    assert daemon.kept == {node.GPU: True, node.OTHER: True}
    assert not node.gpu().persistence  # the driver's own mode is not what it had


async def test_a_bind_that_fails_leaves_the_gpu_with_the_daemon(node: Any, daemon: Daemon) -> None:
    with node.machine.change() as view:
        next(iter(view.state.gpus.values())).processes.append(Process(pid=9, name="python3"))
    step = remember(node, node.step())
    with pytest.raises(DeviceBusy, match=r"by python3|by a process"):
        await node.applier().apply(step, None, node.entry(step))
    assert daemon.kept[node.GPU]
    assert node.driver() == "nvidia"


async def test_a_daemon_that_does_not_obey_is_named_before_anything_is_touched(node: Any, daemon: Daemon) -> None:
    daemon.status = 7
    before = node.picture()
    with pytest.raises(PersistenceFailed, match="obeys root only"):
        await node.applier().apply(node.step(), None, node.entry(node.step()))
    assert node.driver() == "nvidia"
    assert node.picture()["driver"] == before["driver"]
    assert node.tree.writes == []


async def test_a_gpu_comes_back_although_the_daemon_hangs(
    node: Any, daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    step = remember(node, node.step())
    await node.applier(deadline=30).apply(step, None, node.entry(step))
    daemon.status = 3
    await node.applier().undo(step, None, node.entry(step))
    assert node.driver() == "nvidia"
    assert "the persistence mode of GPU 0000:53:00.0 stays off: nvidia-persistenced at" in caplog.text


async def test_one_whose_socket_is_not_seen_here_is_named_with_what_to_do(node: Any) -> None:
    set_gpus(node, persistence=False)
    node.run(PID, "nvidia-persiste", "/dev/nvidia0")
    with pytest.raises(DeviceBusy, match=r"nvidia-persiste \(pid 4711\).*PYDRA_HOST_ROOT: mount the host's / there"):
        await node.applier().apply(node.step(), None, node.entry(node.step()))


async def test_where_the_driver_itself_keeps_the_gpu_nvml_changes_the_mode(node: Any, daemon: Daemon) -> None:
    del daemon.kept[node.GPU]  # it was bound to another driver when the daemon began
    (node.root / f"proc/{PID}/fd/10").unlink()
    set_gpus(node, persistence=True)
    await node.applier(deadline=30).apply(node.step(), None, node.entry(node.step()))
    assert node.driver() == "vfio-pci"
    await node.applier().undo(node.step(), None, node.entry(node.step()))
    assert node.gpu().persistence
