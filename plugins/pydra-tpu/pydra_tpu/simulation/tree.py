"""Makes the files of a simulated machine: what the kernel of such a host would show."""

from __future__ import annotations

import os
import tempfile

import msgspec

from pydra_pci.simulation.machine_tree import write_tree
from pydra_tpu.generations import VENDOR
from pydra_tpu.hardware_types import VFIO_CONTROL
from pydra_tpu.simulation.machine_types import MachineType

MACHINE_UUID = "5f1c7d0e-8a52-4a0f-9d3e-2b6f0c9d1e47"


def default_state() -> str:
    """Where the machine's files are when nobody says where."""
    return os.path.join(tempfile.gettempdir(), f"pydra-tpu-{os.getuid()}")


class MachineFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A PCI function of a chip: its number on the machine, its address, its IOMMU group and its device node."""

    number: int
    chip: int
    address: str
    group: int
    node: str

    @property
    def directory(self) -> str:
        """Where the function is, below the root."""
        return f"sys/devices/pci0000:00/{self.address}"


def list_functions(machine: MachineType) -> tuple[MachineFunction, ...]:
    """The functions of all chips, in the order of their addresses."""
    each = machine.generation.functions
    found = []
    for number in range(machine.chips * each):
        slot, function = (number, 0) if machine.own_slots else divmod(number, each)
        address = f"0000:00:{4 + slot:02x}.{function}"
        group = machine.first_group + number // machine.group_size
        node = f"/dev/vfio/{group}" if uses_vfio(machine) else f"/dev/accel{number}"
        chip = number // each
        found.append(MachineFunction(number=number, chip=chip, address=address, group=group, node=node))
    return tuple(found)


def uses_vfio(machine: MachineType) -> bool:
    """Whether the chips of this machine are bound to vfio-pci."""
    return machine.generation.name not in ("v2", "v3", "v4")


def build_tree(root: str, machine: MachineType) -> None:
    """The files of the machine, in their place. Raises OSError."""
    write_tree(root, lambda draft: write_files(draft, machine))


def write_files(draft: str, machine: MachineType) -> None:
    """The files of the machine: PCI functions below /sys, and device nodes, for which links to /dev/null stand."""
    for function in list_functions(machine):
        _add_function(draft, function, machine)
    _write(f"{draft}/sys/class/dmi/id/product_uuid", MACHINE_UUID)
    os.makedirs(f"{draft}/proc")
    os.makedirs(f"{draft}/logs")


def _add_function(root: str, function: MachineFunction, machine: MachineType) -> None:
    """A function that is bound to vfio-pci, alone in an IOMMU group; or one with an accel node."""
    place, address, generation = function.directory, function.address, machine.generation
    ids = {
        "vendor": VENDOR,
        "device": generation.device,
        "subsystem_device": generation.subsystem or generation.device,
        "numa_node": str(function.chip * machine.numa_nodes // machine.chips),
    }
    for name, text in ids.items():
        _write(f"{root}/{place}/{name}", text)
    _link(f"{root}/sys/bus/pci/devices/{address}", f"../../../devices/pci0000:00/{address}")
    driver = "vfio-pci" if uses_vfio(machine) else "google-tpu"
    _link(f"{root}/{place}/driver", f"../../../bus/pci/drivers/{driver}")
    _node(root, function.node)
    if not uses_vfio(machine):
        _link(f"{root}/sys/class/accel/accel{function.number}/device", f"../../../devices/pci0000:00/{address}")
        return
    _link(f"{root}/{place}/iommu_group", f"../../../kernel/iommu_groups/{function.group}")
    if function.number == 0:
        _node(root, VFIO_CONTROL)


def _node(root: str, path: str) -> None:
    if not os.path.lexists(f"{root}{path}"):  # functions of one IOMMU group have one node
        _link(f"{root}{path}", "/dev/null")


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{text}\n")


def _link(path: str, target: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(target, path)
