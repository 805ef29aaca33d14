"""Where a PCI function stands and what it is, beyond what a `Reading` has of it; from the kernel's files.

Source: the kernel's Documentation/ABI/testing/sysfs-bus-pci.
"""

from __future__ import annotations

import re

import msgspec

from pydra_nvidia.hardware_types import PciFunction
from pydra_nvidia.host.filesystem import Tree
from pydra_nvidia.host.kernel_driver import read_gpu_information
from pydra_nvidia.host.pci import function_path, parse_regions
from pydra_nvidia.simulation.model import PciModel

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_MEMORY, _MIB = 0x200, 1 << 20


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

    def read(name: str) -> str | None:
        return tree.read(function_path(tree, function.address, name))

    path = (tree.link(function_path(tree, function.address)) or "").split("/")[:-1]
    told = read_gpu_information(tree, function.address)
    return Slot(
        function=function,
        bridges=tuple(step for step in path if _ADDRESS.fullmatch(step)),
        pci=PciModel(
            vendor=function.vendor,
            device=function.device,
            pci_class=function.pci_class,
            subsystem_vendor=read("subsystem_vendor") or "0x10de",
            subsystem_device=read("subsystem_device") or "0x0000",
            revision=read("revision") or "0xa1",
            regions=read_regions(read("resource") or ""),
        ),
        model=told.get("Model", ""),
        minor=int(told["Device Minor"]) if told.get("Device Minor", "").isdecimal() else None,
    )


def read_regions(resource: str) -> tuple[int, ...]:
    """The function's memory regions in MiB, in the order of their registers, from its file `resource`."""
    return tuple(-(-region.size // _MIB) for region in parse_regions(resource) if region.flags & _MEMORY)
