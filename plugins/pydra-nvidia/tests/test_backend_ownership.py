"""What the backend undoes is what it made itself, in this boot: nothing of the admin's, nothing of another boot's."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pydra import AllocatedDevice, Claim
from pydra_nvidia.composition import open_backend
from pydra_nvidia.journal import Journal
from pydra_nvidia.simulation.install import Simulation, open_simulation
from pydra_nvidia.simulation.state import GpuState, Process
from pydra_nvidia.steps import BindVfio, Entry, MigModeOff, SetTimeSlice
from pydra_nvidia.vfio.binding import bind_function

STARTED = Path(__file__).parent / "data" / "vendor-checkpoints" / "started.json"
PART = "gpu-0-mig-1g10gb-19-0"


def claim(uid: str, *devices: str) -> Claim:
    allocated = (AllocatedDevice(request=f"r{n}", pool="node", device=one) for n, one in enumerate(devices))
    return Claim(uid=uid, namespace="default", name=f"claim-{uid}", devices=tuple(allocated))


class Node:
    """A simulated HGX H100 in `path`, on which backends come and go."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open()

    def open(self) -> Simulation:
        self.simulation = open_simulation("hgx-h100", str(self.path))
        return self.simulation

    def backend(self, **settings: str) -> Any:
        named = {f"PYDRA_NVIDIA_{name.upper()}": value for name, value in settings.items()}
        own = {"PYDRA_NVIDIA_SCENARIO": "hgx-h100", "PYDRA_NVIDIA_STATE": str(self.path)}
        return open_backend({**own, "PYDRA_NVIDIA_POLL_PERIOD": "0.02", **named})

    def journal(self) -> Journal:
        return Journal(str(self.path / "run" / "claims"))

    def gpu(self) -> GpuState:
        view = self.simulation.machine.read()
        return next(view.state.gpus[uuid] for uuid, board in view.boards.items() if board.minor == 0)

    def first_driver(self) -> str:
        """The driver of the function that is gpu-vfio-0."""
        view = self.simulation.machine.read()
        return next(view.state.gpus[uuid].driver for uuid, one in view.boards.items() if one.address == self.address())

    def address(self) -> str:
        return min(board.address for board in self.simulation.machine.read().boards.values())

    def checkpoint(self, device: str) -> str:
        """The vendor's plugin directory, with a claim that it was preparing."""
        directory = self.path / "gpu.nvidia.com"
        directory.mkdir()
        text = STARTED.read_text().replace('"gpu-0"', f'"{device}"')
        boot = self.simulation.tree.read(self.simulation.tree.proc("sys/kernel/random/boot_id")) or ""
        (directory / "checkpoint.json").write_text(text.replace("3a8b7c1e-5f2d-4e6a-9b0c-1d2e3f4a5b6c", boot))
        return str(directory)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - another task, of the backend's
            await asyncio.sleep(0.01)


async def test_what_a_claim_of_another_boot_had_is_not_taken_from_the_admin(node: Node) -> None:
    passed, part = claim("v", "gpu-vfio-0"), claim("p", "gpu-1-mig-1g10gb-19-0")
    async with node.backend(vfio="true", dynamic_mig="true") as backend:
        await backend.discover()
        prepared = [(one, await backend.prepare(one)) for one in (passed, part)]
    node.simulation.inject.reboot()
    shutil.rmtree(node.path / "run", ignore_errors=True)
    simulation = node.open()
    simulation.inject.set_mig_mode(1, True, force=True)
    before = simulation.inject.create_mig(1, "1g.10gb", 0)
    bind_function(simulation.tree, node.address(), "vfio-pci", "nvidia")
    async with node.backend(vfio="true") as backend:
        await backend.discover()
        for one, devices in prepared:
            await backend.unprepare(one, devices)
    assert node.first_driver() == "vfio-pci"
    view = simulation.machine.read()
    parts = [one for gpu in view.state.gpus.values() for one in gpu.instances]
    assert [compute.uuid for one in parts for compute in one.compute] == [before]


@pytest.mark.parametrize("dynamic", ["false", "true"])
async def test_taking_over_leaves_the_admins_partition(node: Node, dynamic: str) -> None:
    node.simulation.inject.set_mig_mode(0, True, force=True)
    node.simulation.inject.create_mig(0, "1g.10gb", 0)
    directory = node.checkpoint(PART)
    async with node.backend(dynamic_mig=dynamic) as backend:
        await backend.inherit(directory)
    assert node.gpu().mig
    assert [one.start for one in node.gpu().instances] == [0]


async def test_taking_over_leaves_a_function_that_the_admin_bound(node: Node) -> None:
    tree = node.simulation.tree
    bind_function(tree, node.address(), "vfio-pci", "nvidia")
    tree.write(tree.sys(f"bus/pci/devices/{node.address()}/driver_override"), "\n")
    directory = node.checkpoint("gpu-vfio-0")
    async with node.backend(vfio="true") as backend:
        await backend.inherit(directory)
    assert node.first_driver() == "vfio-pci"


async def test_what_is_taken_over_is_of_this_boot(node: Node) -> None:
    directory = node.checkpoint("gpu-0")
    view = node.simulation.machine.read()
    uuid = next(uuid for uuid, board in view.boards.items() if board.minor == 0)
    boot = node.simulation.tree.read(node.simulation.tree.proc("sys/kernel/random/boot_id")) or ""
    text = STARTED.with_name("gpu.json").read_text().replace("GPU-2fa81118-5a5f-aa66-7660-471eed407181", uuid)
    (Path(directory) / "checkpoint.json").write_text(text.replace("3a8b7c1e-5f2d-4e6a-9b0c-1d2e3f4a5b6c", boot))
    async with node.backend() as backend:
        (taken,) = (await backend.inherit(directory)).claims
    assert boot
    assert [device.state["boot"] for device in taken.prepared] == [boot]
    (entry,) = node.journal().entries().values()
    assert entry.boot == boot


async def test_a_vendors_claim_that_cannot_be_undone_yet_keeps_nobody_waiting(node: Node) -> None:
    node.simulation.inject.set_mig_mode(0, True, force=True)
    node.simulation.inject.create_mig(0, "1g.10gb", 0)
    with node.simulation.machine.change() as view:
        uuid = next(uuid for uuid, board in view.boards.items() if board.minor == 0)
        view.state.gpus[uuid].instances[0].compute.clear()
        view.state.gpus[uuid].processes.append(Process(pid=7, gi=view.state.gpus[uuid].instances[0].id))
    directory = node.checkpoint(PART)
    async with node.backend(dynamic_mig="true") as backend:
        inherited = await backend.inherit(directory)
        assert [Path(file).name for file in inherited.files] == ["checkpoint.json"]
        (left,) = node.journal().entries().values()
        assert left.ownerless
        assert [one.start for one in node.gpu().instances] == [0]
        assert (await backend.discover()).devices
        with node.simulation.machine.change() as view:
            view.state.gpus[uuid].processes.clear()
        await until(lambda: not node.journal().entries())
        assert node.gpu().instances == []


async def test_nothing_is_prepared_while_what_another_claim_has_cannot_be_read(node: Node) -> None:
    async with node.backend() as backend:
        await backend.discover()
        await backend.prepare(claim("one", "gpu-0"))
        file = node.path / "run" / "claims" / "one.json"
        text = file.read_text()
        file.write_text("{torn")
        with pytest.raises(Exception, match=r"nothing is decided.*one\.json"):
            await backend.prepare(claim("two", "gpu-0"))
        assert (await backend.discover()).devices, "publishing goes on"
        file.write_text(text)
        with pytest.raises(Exception, match="gpu-0"):
            await backend.prepare(claim("two", "gpu-0"))


async def test_other_claims_are_decided_while_one_is_undone(node: Node) -> None:
    async with node.backend() as backend:
        await backend.discover()
        await backend.prepare(claim("one", "gpu-0"))
        held, go_on = asyncio.Event(), asyncio.Event()
        undo = backend._slicer.undo

        async def slow(entry: Entry) -> None:
            held.set()
            await go_on.wait()
            await undo(entry)

        backend._slicer.undo = slow
        changed = asyncio.create_task(backend.prepare(claim("one", "gpu-1")))
        await held.wait()
        async with asyncio.timeout(20):
            await backend.prepare(claim("two", "gpu-2"))
        go_on.set()
        await changed
        assert {uid: entry.holds[0].device for uid, entry in node.journal().entries().items()} == {
            "one": "gpu-1",
            "two": "gpu-2",
        }


async def test_what_was_before_is_written_down_with_the_steps(node: Node) -> None:
    tree = node.simulation.tree
    with node.simulation.machine.change() as view:
        for gpu in view.state.gpus.values():
            gpu.compute_mode = 2
    tree.write(tree.sys(f"bus/pci/devices/{node.address()}/driver_override"), "nvidia")
    async with node.backend(vfio="true") as backend:
        await backend.discover()
        passed = claim("v", "gpu-vfio-0")
        prepared = await backend.prepare(passed)
        entry = node.journal().read("v")
        assert entry is not None
        mode, step = entry.steps
        assert isinstance(mode, MigModeOff)
        assert isinstance(step, BindVfio)
        assert step.override == "nvidia"
        assert await backend.prepare(passed) == prepared
        again = node.journal().read("v")
        assert again is not None
        assert again.steps == (step,), "a GPU that is bound has no mode to leave"
        await backend.unprepare(passed, prepared)
        assert tree.read(tree.sys(f"bus/pci/devices/{node.address()}/driver_override")) == "nvidia"
        uuid = next(u for u, board in node.simulation.machine.read().boards.items() if board.minor == 1)
        planned = Entry(uid="t", namespace="d", name="t", steps=(SetTimeSlice(gpu=uuid, interval=1),))
        (remembered,) = backend._before.remember(planned, ()).steps
        assert remembered == SetTimeSlice(gpu=uuid, interval=1, mode=2)
        first = Entry(uid="f", namespace="d", name="f", steps=(SetTimeSlice(gpu=uuid, interval=1, mode=3),))
        (shared,) = backend._before.remember(planned, [first]).steps
        assert shared == first.steps[0], "what the first of two claims found"
