"""The tree follows the machine: what an operator, the kernel, another process or fate does is there to be read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pydra import AllocatedDevice
from pydra_nvidia.cdi.edits import DeviceEdits
from pydra_nvidia.claim_targets import find_targets
from pydra_nvidia.hardware_types import Reading
from pydra_nvidia.host.device_nodes import CapabilityMissing, find_partition_nodes
from pydra_nvidia.host.kernel_driver import list_instances
from pydra_nvidia.host.pci import find_gpus
from pydra_nvidia.settings import parse_settings
from pydra_nvidia.simulation.inject import Injector
from pydra_nvidia.simulation.machine_store import Machine
from pydra_nvidia.simulation.scenario_file import ScenarioFile
from pydra_nvidia.simulation.tree.sync import TreeSync, build_tree
from pydra_pci import bind_function, give_back, read_function, read_vfio_host

TWO = "gpus:\n- {model: h100-80gb, count: 2, minors: [1, 0]}\n"


class Site:
    """A machine with a tree. `address` is that of the first GPU, `minor` its minor number."""

    def __init__(self, folder: Path, scenario: Path) -> None:
        self.folder = folder
        self.scenario = scenario
        self.sync = self.another()
        self.tree = self.sync.tree
        self.root = Path(self.sync.root)
        self.inject = Injector(self.sync.machine)
        self.uuid, board = next(iter(self.sync.machine.read().boards.items()))
        self.address, self.minor = board.address, board.minor

    def another(self) -> TreeSync:
        """The same, as another process has it."""
        machine = Machine(ScenarioFile(str(self.scenario)), str(self.folder / "machine"))
        return build_tree(str(self.folder / "tree"), machine)

    def dev(self) -> set[str]:
        return {
            os.path.relpath(os.path.join(folder, name), self.root / "dev")
            for folder, _, names in os.walk(self.root / "dev")
            for name in names
        }

    def bound(self) -> dict[str, str]:
        return {address: one.driver for address, one in find_gpus(self.tree).functions().items()}

    def attached(self) -> int:
        return len(self.sync.machine.read().attached())


@pytest.fixture
def site(tmp_path: Path) -> Callable[[str], Site]:
    def make(text: str = TWO) -> Site:
        scenario = tmp_path / "scenario.yaml"
        scenario.write_text(text)
        return Site(tmp_path, scenario)

    return make


def test_capabilities_come_and_go_with_instances(site: Callable[..., Site]) -> None:
    here = site()
    mig = f"proc/driver/nvidia/capabilities/gpu{here.minor}/mig"
    assert not (here.root / mig).exists()
    here.inject.set_mig_mode(here.minor, True, force=True)
    assert os.listdir(here.root / mig) == []
    here.inject.create_mig(here.minor, "1g.10gb", 0)
    here.inject.create_mig(here.minor, "2g.20gb", 2)
    assert list_instances(here.tree) == (
        (f"gpu{here.minor}", (("gi1", ("access", "ci0")), ("gi2", ("access", "ci0")))),
    )
    gi, ci = find_partition_nodes(here.tree, here.minor, 2, 0)
    assert (gi.minor, ci.minor, gi.file_mode) == (3 + 135 * here.minor + 18, 3 + 135 * here.minor + 19, 0o444)
    assert f"nvidia-caps/nvidia-cap{ci.minor}" in here.dev()
    here.inject.destroy_mig(here.minor, 2)
    with pytest.raises(CapabilityMissing):
        find_partition_nodes(here.tree, here.minor, 2, 0)
    assert f"nvidia-caps/nvidia-cap{ci.minor}" not in here.dev()
    here.inject.destroy_mig(here.minor, 0)
    assert os.listdir(here.root / mig) == []
    here.inject.set_mig_mode(here.minor, False, force=True)
    assert not (here.root / mig).exists()


def test_what_another_process_does_is_seen_and_built_on(site: Callable[..., Site]) -> None:
    here = site()
    there = Injector(here.another().machine)
    there.set_mig_mode(here.minor, True, force=True)
    there.create_mig(here.minor, "1g.10gb", 0)
    assert len(list_instances(here.tree)) == 1
    here.inject.destroy_mig(here.minor, 0)
    here.inject.create_mig(here.minor, "1g.10gb", 1)
    there.destroy_mig(here.minor, 1)
    here.inject.set_mig_mode(here.minor, False, force=True)
    assert list_instances(here.tree) == ()
    assert {name for name in here.dev() if name.startswith("nvidia-caps")} == {
        "nvidia-caps/nvidia-cap1",
        "nvidia-caps/nvidia-cap2",
        "nvidia-caps/nvidia-cap4323",
    }


def test_a_gpu_that_is_bound_for_passthrough_is_gone_from_nvml_until_it_is_given_back(
    site: Callable[..., Site],
) -> None:
    here = site()
    before = here.dev()
    bind_function(here.tree, here.address, "vfio-pci", "nvidia")
    assert here.attached() == 1
    assert here.sync.machine.read().state.gpus[here.uuid].override == "vfio-pci"
    group = read_function(here.tree, here.address).group
    assert before - here.dev() == {
        f"nvidia{here.minor}",
        *(one for one in before if one.endswith(("card1", "128"))),
    }
    assert here.dev() - before == {f"vfio/{group}", "vfio/devices/vfio0"}
    give_back(here.another().tree, here.address, "vfio-pci", "nvidia")
    assert here.attached() == 2
    assert here.dev() == before
    assert read_function(here.tree, here.address).override == ""


async def test_a_container_gets_the_nodes_of_passthrough_from_the_tree(site: Callable[..., Site]) -> None:
    here = site()
    bind_function(here.tree, here.address, "vfio-pci", "nvidia")
    reading = Reading(functions=find_gpus(here.tree).functions(), vfio=read_vfio_host(here.tree))
    device = AllocatedDevice(request="r", pool="node", device="gpu-vfio-0")
    (target,) = find_targets((device,), reading)
    (edits,) = DeviceEdits(here.tree, parse_settings({}, here.sync.settings())).build((target,), reading)
    group = read_function(here.tree, here.address).group
    assert [node.host_path for node in edits.device_nodes] == [f"{here.root}/dev/vfio/{group}"]
    assert f"vfio/{group}" in here.dev()


@pytest.mark.parametrize("driver", ["vfio-pci", "nouveau", ""])
def test_the_tree_is_made_for_a_machine_whose_gpu_has_another_driver(site: Callable[..., Site], driver: str) -> None:
    here = site()
    with here.sync.machine.change() as view:
        view.state.gpus[here.uuid].driver = driver
    fresh = build_tree(str(here.folder / "fresh"), here.sync.machine)
    for sync in (here.sync, fresh):
        functions = find_gpus(sync.tree).functions()
        assert functions[here.address].driver == driver
        assert os.path.exists(f"{sync.root}/dev/vfio/{functions[here.address].group}") == (driver == "vfio-pci")


def test_a_reboot_forgets_what_was_written_and_bound(site: Callable[..., Site]) -> None:
    here = site()
    boot = (here.root / "proc/sys/kernel/random/boot_id").read_text()
    bind_function(here.tree, here.address, "vfio-pci", "nvidia")
    numvfs = here.tree.sys(f"bus/pci/devices/{here.address}/sriov_numvfs")
    Path(numvfs).write_text("4\n")
    here.inject.reboot()
    assert here.bound()[here.address] == "nvidia"
    assert Path(numvfs).read_text() == "0\n"
    assert os.listdir(here.root / "dev/vfio") == ["vfio"]
    assert (here.root / "proc/sys/kernel/random/boot_id").read_text() != boot


def test_a_scenario_that_is_edited_is_followed_at_the_next_look(site: Callable[..., Site]) -> None:
    here = site()
    here.scenario.write_text(TWO.replace("count: 2, minors: [1, 0]", "count: 3, minors: [1, 0, 2]"))
    assert len(here.bound()) == 3
    assert "nvidia2" in here.dev()
    here.scenario.write_text(TWO)
    assert len(here.bound()) == 2
    assert "nvidia2" not in here.dev()
    assert {name for name in os.listdir(here.root / "sys/bus/pci/drivers/nvidia") if ":" in name} == set(here.bound())
