"""Makes the files of a simulated machine: what the kernel of such a host would show."""

from __future__ import annotations

import msgspec

from pydra_pci.simulation.files import Files, change_files, folder, link, text
from pydra_pci.simulation.functions import Function, Slot, function_files
from pydra_tpu.generations import VENDOR
from pydra_tpu.hardware_types import VFIO_CONTROL
from pydra_tpu.simulation.machine_types import MachineType

MACHINE_UUID = "5f1c7d0e-8a52-4a0f-9d3e-2b6f0c9d1e47"
ROOT = "pci0000:00"


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
        return f"sys/devices/{ROOT}/{self.address}"


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


def write_files(draft: str, machine: MachineType) -> None:
    """The files of the machine: PCI functions below /sys, and device nodes, for which links to /dev/null stand."""
    files = {"sys/class/dmi/id/product_uuid": text(MACHINE_UUID), "proc": folder(), "logs": folder()}
    for function in list_functions(machine):
        files |= _function_files(function, machine)
    change_files(draft, {}, files)


def _function_files(one: MachineFunction, machine: MachineType) -> Files:
    """A function that is bound to vfio-pci, in an IOMMU group; or one with an accel node."""
    generation, vfio = machine.generation, uses_vfio(machine)
    function = Function(
        slot=Slot(root=ROOT, address=one.address, numa=one.chip * machine.numa_nodes // machine.chips),
        vendor=VENDOR,
        device=generation.device,
        pci_class="0x120000",
        subsystem_vendor=VENDOR,
        subsystem_device=generation.subsystem or generation.device,
        driver="vfio-pci" if vfio else "google-tpu",
        group=one.group if vfio else None,
    )
    files = function_files(function) | {one.node[1:]: link("/dev/null")}
    if vfio:
        return files | {VFIO_CONTROL[1:]: link("/dev/null")}
    return files | {f"sys/class/accel/accel{one.number}/device": link(f"../../../devices/{ROOT}/{one.address}")}
