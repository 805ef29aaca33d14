"""Makes the files of a simulated machine: what the kernel of such a host would show."""

from __future__ import annotations

import msgspec

from pydra_pci.simulation.files import change_files, folder, link, text
from pydra_pci.simulation.functions import Function, Slot, function_files
from pydra_tpu.generations import VENDOR
from pydra_tpu.hardware_types import VFIO_CONTROL
from pydra_tpu.simulation.machine_types import MachineType

MACHINE_UUID = "5f1c7d0e-8a52-4a0f-9d3e-2b6f0c9d1e47"
ROOT = "pci0000:00"


class MachineFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A PCI function of a chip, and the device node that opens it: `/dev/vfio/0`, or `/dev/accel0`."""

    function: Function
    node: str


def list_functions(machine: MachineType) -> tuple[MachineFunction, ...]:
    """The functions of all chips, in the order of their addresses: bound to vfio-pci, or with an accel node."""
    generation, each = machine.generation, machine.generation.functions
    uses_vfio = generation.name not in ("v2", "v3", "v4")
    found = []
    for number in range(machine.chips * each):
        slot, place = (number, 0) if machine.own_slots else divmod(number, each)
        numa = number // each * machine.numa_nodes // machine.chips
        group = machine.first_group + number // machine.group_size
        function = Function(
            slot=Slot(root=ROOT, address=f"0000:00:{4 + slot:02x}.{place}", numa=numa),
            vendor=VENDOR,
            device=generation.device,
            pci_class="0x120000",
            subsystem_vendor=VENDOR,
            subsystem_device=generation.subsystem or generation.device,
            driver="vfio-pci" if uses_vfio else "google-tpu",
            group=group if uses_vfio else None,
        )
        node = f"/dev/vfio/{group}" if uses_vfio else f"/dev/accel{number}"
        found.append(MachineFunction(function=function, node=node))
    return tuple(found)


def write_files(draft: str, machine: MachineType) -> None:
    """The files of the machine: PCI functions below /sys, and device nodes, for which links to /dev/null stand."""
    files = {"sys/class/dmi/id/product_uuid": text(MACHINE_UUID), "proc": folder(), "logs": folder()}
    for one in list_functions(machine):
        files |= function_files(one.function) | {one.node[1:]: link("/dev/null")}
        if one.function.group is None:
            name = one.node.removeprefix("/dev/")
            files[f"sys/class/accel/{name}/device"] = link(f"../../../devices/{ROOT}/{one.function.slot.address}")
        else:
            files[VFIO_CONTROL[1:]] = link("/dev/null")
    change_files(draft, {}, files)
