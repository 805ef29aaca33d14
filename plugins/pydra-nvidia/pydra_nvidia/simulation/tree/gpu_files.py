"""The files of one GPU: its PCI functions, and what the NVIDIA driver shows of it while it has it.

Which driver has it is `pci_kernel`'s to show, and so are the device nodes of passthrough.
"""

from __future__ import annotations

import msgspec

from pydra_nvidia.simulation.scenario_gpus import Board
from pydra_nvidia.simulation.tree import device_numbers
from pydra_pci.simulation.files import Files, device, link, text
from pydra_pci.simulation.functions import MIB, Function, Region, Slot, function_files

AMPERE, HOPPER = 7, 9
_SPEEDS = {3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe", 6: "64.0 GT/s PCIe"}
_VGA = "0x0300"


class GpuPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, the `index` of its board among all, the CPUs near it, and whether the node has an IOMMU."""

    board: Board
    index: int
    cpus: tuple[int, int]
    iommu: bool


def gpu_files(place: GpuPlace, version: str) -> Files:
    """All of them; `version` is that of the NVIDIA driver, empty when it does not have the GPU."""
    board = place.board
    function = _function(place)
    files = function_files(function)
    if board.model.pci.pci_class.startswith(_VGA):
        files |= _audio_files(place, function)
    if version:
        files |= _driver_files(place) | _graphics_files(place, function.slot.path)
    return files


def _function(place: GpuPlace) -> Function:
    board, pci = place.board, place.board.model.pci
    return Function(
        slot=Slot(root=board.root, address=board.address, bridges=board.bridges, numa=board.numa, cpus=place.cpus),
        vendor=pci.vendor,
        device=pci.device,
        pci_class=f"{pci.pci_class:0<8}",
        subsystem_vendor=pci.subsystem_vendor,
        subsystem_device=pci.subsystem_device,
        revision=pci.revision,
        irq=120 + place.index,
        group=board.iommu_group if place.iommu else None,
        regions=_regions(place),
        virtual=16 if board.model.architecture >= AMPERE else None,
        speed=_SPEEDS.get(pci.generation, "2.5 GT/s PCIe"),
        width=pci.width,
    )


def _regions(place: GpuPlace) -> tuple[Region, ...]:
    """Hopper has three wide regions, what came before a narrow one for its registers."""
    model = place.board.model
    sizes = model.pci.regions or (16, model.bar1, 32)
    wide = model.architecture >= HOPPER
    start = (place.index + 1) << 44
    found = []
    for position, size in enumerate(size * MIB for size in sizes if size):
        if position == 0 and not wide:
            found.append(Region(bar=0, start=0xA0000000 + place.index * size, size=size, wide=False))
            continue
        start = -(-start // size) * size
        found.append(Region(bar=position * 2 if wide else position * 2 - 1, start=start, size=size))
        start += size
    return tuple(found)


def _audio_files(place: GpuPlace, gpu: Function) -> Files:
    """The sound of a board with video outputs: another function of the slot, which the kernel keeps after the GPU."""
    address = f"{place.board.address.rpartition('.')[0]}.1"
    slot = msgspec.structs.replace(gpu.slot, address=address)
    audio = Function(
        slot=slot,
        vendor=gpu.vendor,
        device="0x22ba",
        pci_class="0x040300",
        subsystem_vendor=gpu.subsystem_vendor,
        subsystem_device=gpu.subsystem_device,
        revision=gpu.revision,
        driver="snd_hda_intel",
        group=gpu.group,
        regions=(Region(bar=0, start=0x9F000000 + place.index * 0x4000, size=0x4000, wide=False),),
    )
    devlink = f"sys/devices/virtual/devlink/pci:{gpu.slot.address}--pci:{address}"
    up = "../" * gpu.slot.path.count("/")
    return function_files(audio) | {
        f"{devlink}/status": text("active"),
        f"{gpu.slot.path}/consumer:pci:{address}": link(f"{up}{devlink.removeprefix('sys/')}"),
        f"{slot.path}/supplier:pci:{gpu.slot.address}": link(f"{up}{devlink.removeprefix('sys/')}"),
    }


def _driver_files(place: GpuPlace) -> Files:
    board = place.board
    proc = f"proc/driver/nvidia/gpus/{board.address}"
    information = (
        f"Model: \t\t {board.model.name}",
        f"GPU UUID: \t {board.uuid}",
        f"Bus Location: \t {board.address}",
        f"Device Minor: \t {board.minor}",
        "GPU Excluded:\t No",
    )
    return {
        f"{proc}/information": text("\n".join(information)),
        f"dev/nvidia{board.minor}": device(),
    }


def _graphics_files(place: GpuPlace, path: str) -> Files:
    """What nvidia-drm makes. Card 0 is the display of the board's management."""
    files: Files = {}
    for name, minor, alias in (
        (f"card{place.index + 1}", place.index + 1, "card"),
        (f"renderD{128 + place.index}", 128 + place.index, "render"),
    ):
        files |= {
            f"{path}/drm/{name}/dev": text(f"{device_numbers.DRM}:{minor}"),
            f"sys/class/drm/{name}": link(f"../../{path.removeprefix('sys/')}/drm/{name}"),
            f"dev/dri/{name}": device(),
            f"dev/dri/by-path/pci-{place.board.address}-{alias}": link(f"../{name}"),
        }
    return files
