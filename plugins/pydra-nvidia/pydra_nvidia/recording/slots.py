"""Where a PCI function stands and what it is, beyond what a `Reading` has of it; from the kernel's files.

Source: the kernel's Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import re

import msgspec

from pydra_nvidia.hardware_types import PciFunction
from pydra_nvidia.host.tree import Tree
from pydra_nvidia.simulation.model import PciModel

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_MEMORY, _MIB = 0x200, 1 << 20
_BASE_REGISTERS = 6


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """`bridges` are above the function, from the root down. `model` and `minor` are as the kernel driver has them."""

    function: PciFunction
    bridges: tuple[str, ...]
    pci: PciModel
    model: str = ""
    minor: int | None = None


def read_slots(tree: Tree, functions: tuple[PciFunction, ...]) -> tuple[Slot, ...]:
    """The slots of these functions, in their order."""
    return tuple(_read(tree, function) for function in functions)


def _read(tree: Tree, function: PciFunction) -> Slot:
    place = f"bus/pci/devices/{function.address}"
    path = (tree.link(tree.sys(place)) or "").split("/")[:-1]
    told = _driver_tells(tree, function.address)
    return Slot(
        function=function,
        bridges=tuple(step for step in path if _ADDRESS.fullmatch(step)),
        pci=PciModel(
            vendor=function.vendor,
            device=function.device,
            pci_class=function.pci_class,
            subsystem_vendor=tree.read(tree.sys(f"{place}/subsystem_vendor")) or "0x10de",
            subsystem_device=tree.read(tree.sys(f"{place}/subsystem_device")) or "0x0000",
            revision=tree.read(tree.sys(f"{place}/revision")) or "0xa1",
            regions=read_regions(tree.read(tree.sys(f"{place}/resource")) or ""),
        ),
        model=told.get("Model", ""),
        minor=int(told["Device Minor"]) if told.get("Device Minor", "").isdecimal() else None,
    )


def read_regions(resource: str) -> tuple[int, ...]:
    """The function's memory regions in MiB, in the order of their registers, from its file `resource`."""
    regions: list[int] = []
    for line in resource.splitlines()[:_BASE_REGISTERS]:
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError:
            continue
        if flags & _MEMORY and end > start:
            regions.append(-(-(end - start + 1) // _MIB))
    return tuple(regions)


def _driver_tells(tree: Tree, address: str) -> dict[str, str]:
    text = tree.read(tree.proc(f"driver/nvidia/gpus/{address}/information")) or ""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
