"""The files of a simulated machine: PCI functions, platform devices and KFD's topology below /sys, nodes below /dev."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from pydra_amd.host.amdgpu import BOUND, COMPUTE, KFD_NODE, MEMORY
from pydra_amd.host.kfd import GENERATION, NODES, XGMI
from pydra_amd.models import PARTITIONS, VENDOR, WHOLE
from pydra_amd.simulation.machine_types import MachineType
from pydra_pci.simulation.files import Files, change_files, folder, link, text
from pydra_pci.simulation.functions import Function, Slot, driver_files, function_files, module_files

GIB = 1 << 30
PCIE = 2
"""KFD's type of a link that is none of xGMI."""

RESERVED = 16 << 20
"""Bytes of a GPU's memory that the driver keeps; the last partition has so much less."""

PCI_CLASS = "0x120000"
GIM = "gim"
"""AMD's driver for hosts whose GPUs are divided for guests."""

PROCESSORS = 2
RAS_BLOCKS = ("umc", "sdma", "gfx", "mmhub", "xgmi_wafl")
"""The blocks that count errors; a workstation card has none of them."""


def write_files(draft: str, machine: MachineType) -> None:
    """All files of the machine; links to /dev/null stand for device nodes."""
    files = {"proc": folder()} | module_files("amdgpu", machine.driver_version) | driver_files("vfio-pci")
    files |= {"sys/module/amdgpu/srcversion": text("0D4DFC1B7F5A2C4E6B8A901"), f"sys/{GENERATION}": text(0)}
    files |= {node.lstrip("/"): link("/dev/null") for node in (KFD_NODE, "/dev/vfio/vfio", "/dev/iommu")}
    for gpu in range(len(machine.buses)):
        files |= _function_files(machine, gpu)
        if machine.virtual:
            files |= _virtual_files(machine, gpu)
        else:
            for partition in range(machine.model.xccs):
                files |= _partition_files(machine, gpu, partition)
    change_files(draft, {}, files)
    if machine.mode:
        write_memory(draft, machine.mode.memory, machine.mode.memory)
    write_topology(draft, machine, [machine.mode.compute if machine.mode else WHOLE] * len(machine.buses))


def read_modes(root: str) -> list[str]:
    """The compute modes that the GPUs have."""
    with open(f"{root}/modes.json", "rb") as file:
        return msgspec.json.decode(file.read(), type=list[str])


def read_memory(root: str) -> tuple[str, str]:
    """The memory mode that the GPUs have, and the one that they get when the driver is reloaded."""
    with open(f"{root}/memory.json", "rb") as file:
        return msgspec.json.decode(file.read(), type=tuple[str, str])


def write_memory(root: str, present: str, requested: str) -> None:
    """The same, to be remembered."""
    write_file(f"{root}/memory.json", msgspec.json.encode((present, requested)).decode())


def write_topology(root: str, machine: MachineType, modes: Sequence[str]) -> None:
    """Give the GPUs these compute modes: KFD has a node for each partition then. Readers see the old or the new one."""
    topology = f"{root}/sys/{os.path.dirname(NODES)}"
    os.makedirs(topology, exist_ok=True)
    nodes = tempfile.mkdtemp(prefix="nodes-", dir=topology)
    os.chmod(nodes, 0o755)  # noqa: S103 - as in a machine; mkdtemp makes it private
    processor = text("simd_count 0\ndrm_render_minor 0")
    files = {f"{number}/properties": processor for number in range(PROCESSORS)}
    modes_shown = [] if machine.virtual else modes
    counts = [PARTITIONS[machine.model.xccs][mode] if machine.mode else 1 for mode in modes_shown]
    firsts = [PROCESSORS + sum(counts[:gpu]) for gpu in range(len(counts))]
    for gpu, count in enumerate(counts):
        for partition in range(count):
            files |= _node_files(firsts[gpu] + partition, machine, gpu, partition, count)
        files |= _link_files(firsts[gpu], firsts, hive=machine.hive)
    change_files(nodes, {}, files)
    before = os.path.realpath(f"{root}/sys/{NODES}")
    change_files(root, {}, {f"sys/{NODES}": link(os.path.basename(nodes))})
    generation = f"{root}/sys/{GENERATION}"
    write_file(generation, str(int(read_text(generation)) + 1))
    if before != f"{root}/sys/{NODES}":
        shutil.rmtree(before)
    write_file(f"{root}/modes.json", msgspec.json.encode(list(modes)).decode())


def read_text(path: str) -> str:
    """The file's text without the white space around it."""
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def write_file(path: str, content: str) -> None:
    """The whole of it at once, where others may be reading."""
    directory, name = os.path.split(path)
    change_files(directory, {}, {name: text(content)})


def _function_files(machine: MachineType, gpu: int) -> Files:
    """A PCI function below a root complex of its own, bound to amdgpu, or to gim where that has made others of it."""
    memory = machine.model.memory * GIB - RESERVED if machine.has_vram else 0
    function = _describe_function(machine, gpu)
    files = {
        "mem_info_vram_total": str(memory),
        "mem_info_vram_used": str(memory // 100),
        "gpu_busy_percent": "0",
        "mem_busy_percent": "0",
        "hwmon/hwmon4/power1_average": "141000000",
        "hwmon/hwmon4/power1_cap": "750000000",
        "hwmon/hwmon4/temp2_label": "junction",
        "hwmon/hwmon4/temp2_input": "41000",
        "hwmon/hwmon4/temp3_label": "mem",
        "hwmon/hwmon4/temp3_input": "34000",
    }
    if machine.mode:
        files |= {
            COMPUTE: machine.mode.compute.upper(),
            MEMORY: machine.mode.memory.upper(),
            "available_compute_partition": ", ".join(machine.list_compute_modes(machine.mode.memory)).upper(),
            "available_memory_partition": ", ".join(machine.memory_modes).upper(),
        }
    if machine.hive:
        files |= {f"ras/{block}_err_count": "ue: 0\nce: 0" for block in RAS_BLOCKS}
        files |= {"ras/gpu_vram_bad_pages": "", "product_name": f"{machine.model.name} OAM"}
    if machine.virtual:
        files["sriov_numvfs"] = "1"
    return function_files(function) | {f"{function.slot.path}/{name}": text(one) for name, one in files.items()}


def _virtual_files(machine: MachineType, gpu: int) -> Files:
    """The virtual function of a GPU, which no driver has."""
    parent = _describe_function(machine, gpu)
    slot = replace(parent.slot, address=parent.slot.address.replace(":00.0", ":02.0"))
    function = replace(parent, slot=slot, device=machine.virtual, driver="", group=gpu + 117)
    return function_files(function) | {f"{slot.path}/physfn": link(f"../{parent.slot.address}")}


def _describe_function(machine: MachineType, gpu: int) -> Function:
    return Function(
        slot=Slot(
            root=f"pci0000:{machine.buses[gpu] & 0xE0:02x}",
            address=machine.addresses[gpu],
            numa=gpu * machine.numa_nodes // len(machine.buses),
        ),
        vendor=VENDOR,
        device=machine.model.device,
        pci_class=PCI_CLASS,
        subsystem_vendor=VENDOR,
        driver=GIM if machine.virtual else os.path.basename(BOUND),
        group=gpu + 17,
    )


def _partition_files(machine: MachineType, gpu: int, partition: int) -> Files:
    """The nodes of one partition, which are there in every mode: the first one's belong to the PCI function."""
    card, render = machine.find_nodes(gpu, partition)
    number = gpu * (machine.model.xccs - 1) + partition - 1
    whole = _describe_function(machine, gpu).slot.path
    device = whole if partition == 0 else f"sys/devices/platform/amdgpu_xcp_{number}"
    names = f"card{card}", f"renderD{render}"
    nodes = {f"dev/dri/{name}": link("/dev/null") for name in names}
    return nodes | {f"{device}/drm/{name}": folder() for name in names}


def _node_files(number: int, machine: MachineType, gpu: int, partition: int, count: int) -> Files:
    model = machine.model
    simds_per_unit = model.simds // model.compute_units
    properties = {
        "simd_count": model.compute_units * simds_per_unit // count,
        "simd_per_cu": simds_per_unit,
        "gfx_target_version": model.gfx,
        "location_id": machine.buses[gpu] << 8 | partition,
        "domain": 0,
        "drm_render_minor": machine.find_nodes(gpu, partition)[1],
        "hive_id": machine.hive,
        "unique_id": machine.hive ^ (gpu + 1) << 20,
        "num_xcc": model.xccs // count,
    }
    memory = model.memory * GIB // count - (RESERVED if partition == count - 1 else 0)
    return {
        f"{number}/properties": text("\n".join(f"{name} {value}" for name, value in properties.items())),
        f"{number}/gpu_id": text(gpu << 8 | partition + 1),
        f"{number}/mem_banks/0/properties": text(f"heap_type 1\nsize_in_bytes {memory}"),
    }


def _link_files(node: int, firsts: Sequence[int], *, hive: int) -> Files:
    """Its links to a processor, and to the other GPUs of the hive."""
    others = (0, *(first for first in firsts if hive and first != node))
    return {
        f"{node}/io_links/{number}/properties": text(f"type {XGMI if number else PCIE}\nnode_to {other}")
        for number, other in enumerate(others)
    }
