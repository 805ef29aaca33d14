"""Discovery while the machine changes: what is published is of one moment, and each change after it is noticed."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from pydra import TaintEffect, TerminalError
from pydra_nvidia import examine
from pydra_nvidia.composition import open_backend
from pydra_nvidia.machine_access import find_machine
from pydra_nvidia.settings import Settings
from pydra_nvidia.simulation.simulation import open_simulation


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
        devices.write_text("".join(line for line in loaded.splitlines(True) if "nvidia-uvm" not in line))
        await asyncio.wait_for(backend.wait_changed(), 20)
        for _ in range(2):
            found = await backend.discover()
            assert {(taint.key, taint.effect) for one in found.devices for taint in one.taints} == {
                ("gpu.nvidia.com/uvm-not-loaded", TaintEffect.NONE)
            }
        assert [text for text in caplog.messages if "nvidia_uvm is not loaded" in text] == [*examine(node, ())], "once"
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
