"""Makes the files of a simulated machine below the state directory, and the settings by which the backend reads them.

Files that are there already are left alone: what somebody removed stays removed.
"""

from __future__ import annotations

import os
import tempfile

from msgspec.structs import replace

from pydra import PydraError
from pydra_tpu.generations import VENDOR
from pydra_tpu.hardware import VFIO_CONTROL
from pydra_tpu.settings import Settings
from pydra_tpu.simulation.machine_types import MACHINE_TYPES, MachineType

MACHINE_UUID = "5f1c7d0e-8a52-4a0f-9d3e-2b6f0c9d1e47"


class ScenarioError(PydraError):
    """There is no such scenario, or no place for its files."""

    reason = "InvalidScenario"


def open_machine(settings: Settings) -> Settings:
    """Make the machine of `settings.scenario`; the settings to read it with. Raises ScenarioError."""
    machine = MACHINE_TYPES.get(settings.scenario)
    if machine is None:
        raise ScenarioError(f"there is no scenario {settings.scenario}; bundled are: {', '.join(MACHINE_TYPES)}")
    state = default_state() if settings.state == Settings().state else settings.state
    root = os.path.join(os.path.realpath(state), "tree")
    try:
        if not os.path.exists(root):
            build_tree(root, machine)
    except OSError as error:
        raise ScenarioError(
            f"cannot write the simulated machine to {root}: {error.strerror}; set PYDRA_TPU_STATE to a directory of "
            "your own"
        ) from error
    return replace(
        settings,
        host_root="/",
        sys_root=f"{root}/sys",
        proc_root=f"{root}/proc",
        dev_root=f"{root}/dev",
        tpu_env=f"{root}/etc/tpu/tpu-env",
        metadata_server="",
        log_directory=f"{root}/logs",
        accelerator=settings.accelerator or machine.accelerator,
        topology=settings.topology or machine.topology,
    )


def default_state() -> str:
    """Where the machine's files are when nobody says where."""
    return os.path.join(tempfile.gettempdir(), f"pydra-tpu-{os.getuid()}")


def build_tree(root: str, machine: MachineType) -> None:
    """The files of the machine: PCI functions below /sys, and device nodes, for which links to /dev/null stand.

    Built beside its place and moved there, so that nobody reads half a machine. Raises OSError.
    """
    os.makedirs(os.path.dirname(root), exist_ok=True)
    draft = tempfile.mkdtemp(prefix=".tree-", dir=os.path.dirname(root))
    for index in range(machine.chips):
        _add_chip(draft, index, machine)
    _write(f"{draft}/sys/class/dmi/id/product_uuid", MACHINE_UUID)
    os.makedirs(f"{draft}/proc")
    os.makedirs(f"{draft}/logs")
    os.chmod(draft, 0o755)  # noqa: S103 - as a machine's root is; mkdtemp makes it private
    try:
        os.rename(draft, root)
    except OSError:
        if not os.path.exists(root):  # else another process was first
            raise


def _add_chip(root: str, index: int, machine: MachineType) -> None:
    """A function of its own PCI slot, bound to vfio-pci, alone in an IOMMU group; or one with an accel node."""
    address, generation = f"0000:00:{4 + index:02x}.0", machine.generation
    place = f"sys/devices/pci0000:00/{address}"
    ids = {
        "vendor": VENDOR,
        "device": generation.device,
        "subsystem_device": generation.subsystem or generation.device,
        "numa_node": str(index * machine.numa_nodes // machine.chips),
    }
    for name, text in ids.items():
        _write(f"{root}/{place}/{name}", text)
    _link(f"{root}/sys/bus/pci/devices/{address}", f"../../../devices/pci0000:00/{address}")
    driver = "vfio-pci" if machine.generation.name not in ("v2", "v3", "v4") else "google-tpu"
    _link(f"{root}/{place}/driver", f"../../../bus/pci/drivers/{driver}")
    if driver == "vfio-pci":
        _link(f"{root}/{place}/iommu_group", f"../../../kernel/iommu_groups/{index}")
        _node(root, f"/dev/vfio/{index}")
        if index == 0:
            _node(root, VFIO_CONTROL)
    else:
        _link(f"{root}/sys/class/accel/accel{index}/device", f"../../../devices/pci0000:00/{address}")
        _node(root, f"/dev/accel{index}")


def _node(root: str, path: str) -> None:
    _link(f"{root}{path}", "/dev/null")


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{text}\n")


def _link(path: str, target: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(target, path)
