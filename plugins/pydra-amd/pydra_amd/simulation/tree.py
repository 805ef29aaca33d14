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
from pydra_pci.simulation.files import Files, change_files, link, text
from pydra_pci.simulation.functions import Function, Slot, function_files

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
    _draft_file(f"{draft}/sys/module/amdgpu/version", machine.driver_version)
    _draft_file(f"{draft}/sys/module/amdgpu/srcversion", "0D4DFC1B7F5A2C4E6B8A901")
    _draft_file(f"{draft}/sys/module/amdgpu/refcnt", "0")
    _draft_file(f"{draft}/sys/module/amdgpu/initstate", "live")
    for gpu in range(len(machine.buses)):
        change_files(draft, {}, _function_files(machine, gpu))
        for partition in range(0 if machine.virtual else machine.model.xccs):
            _write_partition(draft, machine, gpu, partition)
        if machine.virtual:
            change_files(draft, {}, _virtual_files(machine, gpu))
    for name in ("bind", "unbind"):
        _draft_file(f"{draft}/sys/bus/pci/drivers/vfio-pci/{name}", "")
    for node in (KFD_NODE, "/dev/vfio/vfio", "/dev/iommu"):
        _link(f"{draft}{node}", "/dev/null")
    os.makedirs(f"{draft}/proc")
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
    folder = f"{root}/sys/{os.path.dirname(NODES)}"
    os.makedirs(folder, exist_ok=True)
    nodes = tempfile.mkdtemp(prefix="nodes-", dir=folder)
    os.chmod(nodes, 0o755)  # noqa: S103 - as in a machine; mkdtemp makes it private
    for number in range(PROCESSORS):
        _draft_file(f"{nodes}/{number}/properties", "cpu_cores_count 96\nsimd_count 0\ndrm_render_minor 0")
    modes_shown = [] if machine.virtual else modes
    counts = [PARTITIONS[machine.model.xccs][mode] if machine.mode else 1 for mode in modes_shown]
    firsts = [PROCESSORS + sum(counts[:gpu]) for gpu in range(len(counts))]
    for gpu, count in enumerate(counts):
        for partition in range(count):
            _write_node(f"{nodes}/{firsts[gpu] + partition}", machine, gpu, partition, count)
        _write_links(f"{nodes}/{firsts[gpu]}", gpu, firsts, hive=machine.hive)
    before = os.path.realpath(f"{root}/sys/{NODES}")
    _link(f"{folder}/.next", os.path.basename(nodes))
    os.rename(f"{folder}/.next", f"{root}/sys/{NODES}")
    generation = f"{root}/sys/{GENERATION}"
    write_file(generation, str(_read_number(generation) + 1))
    if before != f"{root}/sys/{NODES}":
        shutil.rmtree(before)
    write_file(f"{root}/modes.json", msgspec.json.encode(list(modes)).decode())


def read_text(path: str) -> str:
    """The file's text without the white space around it."""
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def write_file(path: str, text: str) -> None:
    """The whole of it at once, where others may be reading."""
    _draft_file(f"{path}.next", text)
    os.rename(f"{path}.next", path)


def _draft_file(path: str, text: str) -> None:
    """Where nobody reads yet."""
    try:
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed below, whichever call opened it
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path))
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115
    with file:
        file.write(f"{text}\n")


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


def _write_partition(root: str, machine: MachineType, gpu: int, partition: int) -> None:
    """The nodes of one partition, which are there in every mode: the first one's belong to the PCI function."""
    card, render = machine.find_nodes(gpu, partition)
    number = gpu * (machine.model.xccs - 1) + partition - 1
    device = f"{BOUND}/{machine.addresses[gpu]}" if partition == 0 else f"devices/platform/amdgpu_xcp_{number}"
    for name in (f"card{card}", f"renderD{render}"):
        os.makedirs(f"{root}/sys/{device}/drm/{name}")
        _link(f"{root}/dev/dri/{name}", "/dev/null")


def _write_node(folder: str, machine: MachineType, gpu: int, partition: int, count: int) -> None:
    model = machine.model
    simds_per_unit = model.simds // model.compute_units
    properties = {
        "cpu_cores_count": 0,
        "simd_count": model.compute_units * simds_per_unit // count,
        "mem_banks_count": 1,
        "simd_per_cu": simds_per_unit,
        "gfx_target_version": model.gfx,
        "vendor_id": int(VENDOR, 16),
        "device_id": int(model.device, 16),
        "location_id": machine.buses[gpu] << 8 | partition,
        "domain": 0,
        "drm_render_minor": machine.find_nodes(gpu, partition)[1],
        "hive_id": machine.hive,
        "unique_id": machine.hive ^ (gpu + 1) << 20,
        "num_xcc": model.xccs // count,
    }
    _draft_file(f"{folder}/properties", "\n".join(f"{name} {value}" for name, value in properties.items()))
    _draft_file(f"{folder}/gpu_id", str(gpu << 8 | partition + 1))
    memory = model.memory * GIB // count - (RESERVED if partition == count - 1 else 0)
    _draft_file(f"{folder}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {memory}")


def _write_links(folder: str, gpu: int, firsts: Sequence[int], *, hive: int) -> None:
    """To a processor, and to the other GPUs of the hive."""
    for number, other in enumerate((0, *(first for first in firsts if hive and first != firsts[gpu]))):
        kind = XGMI if number else PCIE
        _draft_file(
            f"{folder}/io_links/{number}/properties",
            f"type {kind}\nnode_from {firsts[gpu]}\nnode_to {other}\nweight 15",
        )


def _read_number(path: str) -> int:
    try:
        with open(path, encoding="utf-8") as file:
            return int(file.read())
    except FileNotFoundError:
        return 0


def _link(path: str, target: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(target, path)
