"""What NVIDIA has on a simulated machine: a checkpoint, whose functions go back, and a device plugin."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from pydra_nvidia.composition import open_backend
from pydra_nvidia.machine_access import find_machine
from pydra_nvidia.simulation.simulation import Simulation, open_simulation
from pydra_nvidia.takeover.takeover import FabricUnknown, read_left
from small_agent import SmallAgent

DATA = Path(__file__).parent / "data" / "vendor-checkpoints"
ADDRESS = "0000:65:00.0"


def make_machine(path: Path, driver: str) -> tuple[Simulation, dict[str, str]]:
    scenario = path / "scenario.json"
    group = {"model": "h100-80gb", "addresses": [ADDRESS], "driver": driver}
    scenario.write_text(json.dumps({"host": {"onlyGpus": True}, "gpus": [group], "settings": {"vfio": True}}))
    environ = {"PYDRA_NVIDIA_SCENARIO": str(scenario), "PYDRA_NVIDIA_STATE": str(path / "machine")}
    return open_simulation(str(scenario), environ["PYDRA_NVIDIA_STATE"]), environ


def leave_checkpoint(path: Path) -> Path:
    """As a version leaves it that kept no boot id: believed as it is."""
    document = json.loads((DATA / "vfio.json").read_bytes())
    del document["v2"]
    directory = path / "gpu.nvidia.com"
    directory.mkdir()
    (directory / "checkpoint.json").write_text(json.dumps(document))
    return directory


@pytest.mark.parametrize("overridden", [True, False], ids=["by that driver", "before it came"])
async def test_a_function_goes_back_to_the_driver_only_if_that_driver_bound_it(
    tmp_path: Path, overridden: bool
) -> None:
    machine, environ = make_machine(tmp_path, "vfio-pci")
    tree = machine.tree
    if overridden:
        tree.write(tree.sys(f"bus/pci/devices/{ADDRESS}/driver_override"), "vfio-pci")
    directory = leave_checkpoint(tmp_path)
    async with open_backend(find_machine(environ)) as backend:
        (taken,) = (await backend.inherit(str(directory))).claims
        agent = SmallAgent(backend)
        agent.note(replace(taken.claim, namespace="default", name="guest"), completed=True)
        await agent.unprepare(taken.claim.uid)
    (gpu,) = machine.machine.read().state.gpus.values()
    assert gpu.driver == ("nvidia" if overridden else "vfio-pci")


async def test_claims_are_taken_over_where_nobody_can_tell_which_boot_this_is(tmp_path: Path) -> None:
    tree = make_machine(tmp_path, "vfio-pci")[0].tree
    os.unlink(tree.proc("sys/kernel/random/boot_id"))
    (tmp_path / "checkpoint.json").write_bytes((DATA / "vfio.json").read_bytes())
    checkpoint = await read_left(str(tmp_path), tree, switch="resources.gpus")
    assert checkpoint is not None
    assert [claim.completed for claim in checkpoint.claims] == [True]


async def test_a_partition_of_fabric_manager_is_the_claims_that_nvidias_driver_activated_it_for(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.json"
    gpus = [{"model": "h100-80gb", "count": 2}]
    settings = {"fabric_partitions": True}
    scenario.write_text(json.dumps({"gpus": gpus, "driver": {"fabricMode": 1}, "settings": settings}))
    environ = {"PYDRA_NVIDIA_SCENARIO": str(scenario), "PYDRA_NVIDIA_STATE": str(tmp_path / "machine")}
    machine = open_simulation(str(scenario), environ["PYDRA_NVIDIA_STATE"])
    with machine.machine.change() as view:
        view.state.fabric = [1]  # of the first GPU
        uuid = next(one.uuid for one in view.boards.values() if one.module == 1)
    directory = tmp_path / "gpu.nvidia.com"
    directory.mkdir()
    document = json.loads((DATA / "gpu.json").read_bytes())
    del document["v2"]
    text = json.dumps(document).replace("GPU-2fa81118-5a5f-aa66-7660-471eed407181", uuid)
    (directory / "checkpoint.json").write_text(text)
    async with open_backend(find_machine(environ)) as backend:
        machine.inject.restart_fabric_manager()
        with pytest.raises(FabricUnknown, match="fmpm --set-activated-list"):
            await backend.inherit(str(directory))
        with machine.machine.change() as view:
            view.state.fabric, view.state.fabric_phase = [1], "resumed"
        (taken,) = (await backend.inherit(str(directory))).claims
        assert [one.step.partition for one in taken.claim.steps] == [1]
        agent = SmallAgent(backend)
        agent.note(replace(taken.claim, namespace="default", name="train"), completed=True)
        await agent.unprepare(taken.claim.uid)
    assert machine.machine.read().state.fabric == []


@pytest.fixture
def short_path() -> Iterator[Path]:
    """For sockets, whose paths may not be long."""
    with tempfile.TemporaryDirectory(prefix="pydra-") as path:
        yield Path(path)


@pytest.mark.parametrize(
    ("name", "listens", "reported"),
    [("nvidia-gpu.sock", True, True), ("nvidia-gpu.sock", False, False), ("kubelet.sock", True, False)],
    ids=["serves", "has gone", "the kubelet's own"],
)
async def test_a_device_plugin_that_gives_out_the_same_gpus_is_reported(
    short_path: Path, name: str, listens: bool, reported: bool, caplog: pytest.LogCaptureFixture
) -> None:
    machine, environ = make_machine(short_path, "nvidia")
    place = machine.tree.here("/kubelet/device-plugins")
    os.makedirs(place)
    with socket.socket(socket.AF_UNIX) as plugin:
        plugin.bind(f"{place}/{name}")
        if listens:
            plugin.listen()
        async with open_backend(find_machine(environ)) as backend:
            await backend.inherit("/kubelet/plugins/gpu.nvidia.com")
    assert ("NVIDIA's device plugin serves on this node too" in caplog.text) is reported
