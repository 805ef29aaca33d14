"""The files of one GPU: its PCI function, and what the NVIDIA driver shows of it while it has it.

Which driver has it is `pci_kernel`'s to show, and so are the device nodes of passthrough.
"""

from __future__ import annotations

from pydra_nvidia.simulation.gpu_model import Model
from pydra_nvidia.simulation.scenario_gpus import Board
from pydra_nvidia.simulation.tree.kernel_driver_files import DRM
from pydra_pci.simulation.files import Files, device, folder, text
from pydra_pci.simulation.functions import MIB, Function, Region, Slot, function_files

AMPERE, HOPPER = 7, 9


def gpu_files(board: Board, index: int, version: str, *, iommu: bool) -> Files:
    """All of them. `index` is the GPU's among all, `version` the NVIDIA driver's if it has the GPU, else empty."""
    function = _function(board, index, iommu=iommu)
    files = function_files(function)
    if version:
        files |= _driver_files(board) | _graphics_files(index, function.slot.path)
    return files


def _function(board: Board, index: int, *, iommu: bool) -> Function:
    pci = board.model.pci
    return Function(
        slot=Slot(root=board.root, address=board.address, bridges=board.bridges, numa=board.numa),
        vendor=pci.vendor,
        device=pci.device,
        pci_class=f"{pci.pci_class:0<8}",
        subsystem_vendor=pci.subsystem_vendor,
        subsystem_device=pci.subsystem_device,
        group=board.iommu_group if iommu else None,
        regions=_regions(board.model, index),
        virtual=16 if board.model.architecture >= AMPERE else None,
    )


def _regions(model: Model, index: int) -> tuple[Region, ...]:
    """Hopper has three wide regions, what came before a narrow one for its registers."""
    sizes = model.pci.regions or (16, model.bar1, 32)
    wide = model.architecture >= HOPPER
    start = (index + 1) << 44
    found = []
    for position, size in enumerate(size * MIB for size in sizes if size):
        if position == 0 and not wide:
            found.append(Region(bar=0, start=0xA0000000 + index * size, size=size, wide=False))
            continue
        start = -(-start // size) * size
        found.append(Region(bar=position * 2 if wide else position * 2 - 1, start=start, size=size))
        start += size
    return tuple(found)


def _driver_files(board: Board) -> Files:
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


def _graphics_files(index: int, path: str) -> Files:
    """What nvidia-drm makes. Card 0 is the display of the board's management."""
    card, render = index + 1, index + 128
    return card_files(path, f"card{card}", card) | card_files(path, f"renderD{render}", render)


def card_files(path: str, name: str, minor: int) -> Files:
    """A device of the DRM subsystem: that of the function at this path, and its node."""
    return {
        f"{path}/drm/{name}": folder(),
        f"sys/class/drm/{name}/dev": text(f"{DRM}:{minor}"),
        f"dev/dri/{name}": device(),
    }
