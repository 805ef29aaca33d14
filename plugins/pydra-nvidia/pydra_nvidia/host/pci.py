"""The node's NVIDIA display functions, from /sys/bus/pci.

Source: the kernel's Documentation/ABI/testing/sysfs-bus-pci. A node has hundreds of functions and the agent looks
every few seconds, so which of them are NVIDIA's is remembered; the inode of an entry changes with the function.
"""

from __future__ import annotations

import os
import posixpath
from typing import TypeAlias

from pydra_nvidia.hardware_types import PciFunction, VfioHost
from pydra_nvidia.host.tree import Tree

VENDOR = "0x10de"
DISPLAY_CLASSES = ("0x0300", "0x0302")
"""VGA compatible and 3D controllers; a GPU's audio and USB functions are not display functions."""

DRIVER = "nvidia"

Entry: TypeAlias = tuple[str, int]
"""A PCI address and the inode of its entry."""


class PciBus:
    """The functions below the tree's /sys. May be used by several threads."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._known: dict[Entry, bool] = {}

    def functions(self) -> dict[str, PciFunction]:
        """All NVIDIA display functions by address, in its order."""
        return {address: self._function(address) for address, _ in self._ours()}

    def drivers(self) -> tuple[tuple[str, int, str], ...]:
        """Address, inode and bound driver of each: what changes when a function comes, goes or is bound anew."""
        return tuple((address, inode, self.driver(address)) for address, inode in self._ours())

    def driver(self, address: str) -> str:
        """The kernel driver that the function is bound to now; empty for none."""
        return posixpath.basename(self._tree.link(self._path(address, "driver")) or "")

    def _ours(self) -> list[Entry]:
        try:
            with os.scandir(self._tree.sys("bus/pci/devices")) as entries:
                present = [(entry.name, entry.inode()) for entry in entries]
        except OSError:  # a machine without PCI
            present = []
        known = self._known
        self._known = {
            entry: known[entry] if entry in known else self._is_display(entry[0]) for entry in sorted(present)
        }
        return [entry for entry, ours in self._known.items() if ours]

    def _is_display(self, address: str) -> bool:
        return self._read(address, "vendor") == VENDOR and self._read(address, "class").startswith(DISPLAY_CLASSES)

    def _function(self, address: str) -> PciFunction:
        tree = self._tree
        return PciFunction(
            address=address,
            vendor=self._read(address, "vendor"),
            device=self._read(address, "device"),
            pci_class=self._read(address, "class"),
            driver=self.driver(address),
            root=find_root(tree.link(tree.sys(f"bus/pci/devices/{address}")) or ""),
            numa=_integer(self._read(address, "numa_node"), -1),
            group=posixpath.basename(tree.link(self._path(address, "iommu_group")) or ""),
            addressable=addressable_memory(self._read(address, "resource")),
            modalias=self._read(address, "modalias"),
            is_virtual=tree.link(self._path(address, "physfn")) is not None,
            has_virtual=_integer(self._read(address, "sriov_numvfs"), 0) > 0,
        )

    def _path(self, address: str, name: str) -> str:
        return self._tree.sys(f"bus/pci/devices/{address}/{name}")

    def _read(self, address: str, name: str) -> str:
        return self._tree.read(self._path(address, name)) or ""


def find_root(link: str) -> str:
    """The PCIe root complex (`pci0000:00`) in the link of a function's entry; empty when it names none."""
    _, found, path = link.partition("/devices/")
    first = path.split("/", 1)[0]
    return first if found and first.startswith("pci") else ""


def addressable_memory(resource: str) -> int:
    """The memory that the function's 64-bit regions address, in bytes, rounded up to a power of two; 0 for none.

    Source: lines `start end flags` of the file `resource`, whose first six are the base address registers; the
    rounding is what NVIDIA's DRA driver publishes.
    """
    total = 0
    for line in resource.splitlines()[:6]:
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError:
            continue
        if flags & 0x06 == 0x04 and end > start:
            total += end - start + 1
    return 1 << (total - 1).bit_length() if total else 0


def is_vfio(driver: str) -> bool:
    """Whether it is vfio-pci or a variant of it, such as nvgrace-gpu-vfio-pci."""
    return "vfio" in driver


def _integer(text: str, otherwise: int) -> int:
    try:
        return int(text)
    except ValueError:
        return otherwise


def read_vfio_host(tree: Tree) -> VfioHost:
    """An IOMMU is on when the kernel has put devices into groups; iommufd has a device of its own."""
    return VfioHost(
        iommu=bool(tree.names(tree.sys("kernel/iommu_groups"))),
        iommufd=tree.exists(tree.here("/dev/iommu")),
    )
