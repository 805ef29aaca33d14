"""Discovery while the machine changes: what is published is of one moment, and each change after it is noticed."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from pydra import AllocatedDevice, Claim, DeviceStatus, Inventory, TaintEffect, TerminalError, UnknownDevice
from pydra_nvidia import examine
from pydra_nvidia.composition import open_backend
from pydra_nvidia.machine_access import find_machine
from pydra_nvidia.settings import Settings
from pydra_nvidia.simulation.simulation import open_simulation
from small_agent import SmallAgent

ADDRESS = "resource.kubernetes.io/pciBusID"


def claim_of(uid: str, device: str) -> Claim:
    allocated = AllocatedDevice(request="gpu", pool="node", device=device)
    return Claim(uid=uid, namespace="default", name=uid, devices=(allocated,))


def wait_locked(lock: threading.Lock) -> None:
    deadline = time.monotonic() + 20
    while not lock.locked():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(0.05)  # the reading goes on to where it waits for NVML


async def test_a_gpu_that_leaves_while_the_machine_is_read_is_not_called_lost(tmp_path: Path) -> None:
    variables = {"PYDRA_NVIDIA_SCENARIO": "hgx-h100", "PYDRA_NVIDIA_STATE": str(tmp_path)}
    simulation = open_simulation("hgx-h100", str(tmp_path))
    async with open_backend(find_machine({**variables, "PYDRA_NVIDIA_POLL_PERIOD": "0.02"})) as backend:
        before = await backend.discover()
        reached, go_on = threading.Event(), threading.Event()

        def hold(_nvml: object) -> None:
            reached.set()
            assert go_on.wait(20)

        held = asyncio.create_task(backend._session.run(hold))
        await asyncio.to_thread(reached.wait, 20)
        discovering = asyncio.create_task(backend.discover())
        await asyncio.to_thread(wait_locked, backend._hardware._lock)
        simulation.inject.unplug(3)
        go_on.set()
        await held
        found = await discovering
        assert {one.name for one in before.devices} - {one.name for one in found.devices} == {
            one.name for one in before.devices if one.name.startswith("gpu-3")
        }
        assert not [one.name for one in found.devices if one.taints]
        simulation.inject.plug(3)
        await asyncio.wait_for(backend.wait_changed(), 20)
        assert await backend.discover() == before


async def test_a_gpu_that_leaves_the_bus_gives_its_name_for_guests_to_no_other(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("settings: {vfio: true}\ngpus: [{model: t4, count: 4}]\n")
    simulation = open_simulation(str(scenario), str(tmp_path))
    variables = {"PYDRA_NVIDIA_SCENARIO": str(scenario), "PYDRA_NVIDIA_STATE": str(tmp_path)}

    def for_guests(found: Inventory) -> dict[str, object]:
        return {one.name: one.attributes[ADDRESS] for one in found.devices if "vfio" in one.name}

    async with open_backend(find_machine(variables)) as backend:
        before = for_guests(await backend.discover())
        agent = SmallAgent(backend)
        await agent.prepare(claim_of("guest", "gpu-vfio-2"))
        simulation.inject.unplug(1)
        remaining = {name: address for name, address in before.items() if name != "gpu-vfio-1"}
        for _ in range(2):
            assert for_guests(await backend.discover()) == remaining
        with pytest.raises(UnknownDevice, match="gpu-vfio-1"):
            await agent.prepare(claim_of("gone", "gpu-vfio-1"))
        (other,) = await agent.prepare(claim_of("other", "gpu-vfio-3"))
        assert other.status == DeviceStatus(data={"pciBusID": before["gpu-vfio-3"]})
        simulation.inject.plug(1)
        assert for_guests(await backend.discover()) == before


async def test_it_is_told_that_the_module_which_cuda_needs_is_not_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    variables = {"PYDRA_NVIDIA_SCENARIO": "t4", "PYDRA_NVIDIA_STATE": str(tmp_path)}
    roots = open_simulation("t4", str(tmp_path)).settings
    node = Settings(**{name: roots[name] for name in ("host_root", "sys_root", "proc_root")})
    devices = Path(node.proc_root) / "devices"
    loaded = devices.read_text()
    async with open_backend(find_machine({**variables, "PYDRA_NVIDIA_POLL_PERIOD": "0.02"})) as backend:
        before = await backend.discover()
        assert list(examine(node, ())) == []
        for times in (1, 2):
            assert not [taint for one in (await backend.discover()).devices for taint in one.taints]
            devices.write_text("".join(line for line in loaded.splitlines(True) if "nvidia-uvm" not in line))
            await asyncio.wait_for(backend.wait_changed(), 20)
            for _ in range(2):
                found = await backend.discover()
                assert {(taint.key, taint.effect) for one in found.devices for taint in one.taints} == {
                    ("gpu.nvidia.com/uvm-not-loaded", TaintEffect.NONE)
                }
            logged = [text for text in caplog.messages if "nvidia_uvm is not loaded" in text]
            assert logged == [*examine(node, ())] * times, "once, and again when it was loaded meanwhile"
            devices.write_text(loaded)
        devices.write_text("".join(line for line in loaded.splitlines(True) if "nvidia-uvm" not in line))
        await backend.discover()
        for function in (Path(node.sys_root) / "bus/pci/drivers/nvidia").glob("0000:*"):
            function.unlink()
            (Path(node.sys_root) / "bus/pci/devices" / function.name / "driver").unlink()
        assert list(examine(node, ())) == [], "all GPUs are passed through"
        devices.write_text(loaded)
        await asyncio.wait_for(backend.wait_changed(), 20)
    assert not [one.name for one in before.devices if one.taints]


@pytest.mark.parametrize(
    "raised", [TerminalError("of the block"), asyncio.CancelledError()], ids=["error", "cancelled"]
)
async def test_what_is_raised_while_a_backend_is_open_leaves_it_as_it_is(tmp_path: Path, raised: BaseException) -> None:
    variables = {"PYDRA_NVIDIA_SCENARIO": "hgx-h100", "PYDRA_NVIDIA_STATE": str(tmp_path)}
    with pytest.raises(type(raised)) as caught:
        async with open_backend(find_machine(variables)):
            raise raised
    assert caught.value is raised
