"""PCI functions, from /sys/bus/pci: what they are, where they stand, which driver has them.

Source: the kernel's Documentation/ABI/testing/sysfs-bus-pci. A node has hundreds of functions and backends look every
few seconds, so what a function is, which cannot change, is remembered; the inode of an entry changes with the function.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import msgspec

from pydra_pci.filesystem import Tree

VFIO_PCI = "vfio-pci"

Entry: TypeAlias = tuple[str, int]
"""A PCI address and the inode of its entry."""


class PciFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function as sysfs shows it; `address` as `0000:53:00.0`, ids as `0x10de`, `pci_class` as `0x030200`.

    `driver` is the bound kernel driver, `override` its driver_override, both empty for none. `root` is the PCIe root
    complex (`pci0000:00`), `numa` None where the machine has one node or does not say. `addressable` is the sum of its
    64-bit memory regions in bytes. `group` is the IOMMU group, empty without an IOMMU. `parent` is the address of the
    function that a virtual one is of, empty for any other; `has_virtual`: virtual functions of it exist. The backend
    may add what it knows: the product's `name`, and the driver that passthrough binds, which is a variant of vfio-pci
    where the kernel has one for the function.
    """

    address: str
    vendor: str
    device: str
    pci_class: str
    driver: str = ""
    override: str = ""
    root: str = ""
    numa: int | None = None
    group: str = ""
    addressable: int = 0
    modalias: str = ""
    name: str = ""
    vfio_driver: str = VFIO_PCI
    parent: str = ""
    has_virtual: bool = False

    @property
    def is_virtual(self) -> bool:
        """Whether it is a virtual function."""
        return bool(self.parent)

    @property
    def slot(self) -> str:
        """The address without the function's number (`0000:53:00`): functions of one slot are one physical device."""
        return self.address.rpartition(".")[0]


class PciBus:
    """The functions of `vendor` (`0x10de`) whose class begins with one of these. May be used by several threads."""

    def __init__(self, tree: Tree, vendor: str, classes: tuple[str, ...] = ("",)) -> None:
        self._tree = tree
        self._vendor = vendor
        self._classes = classes
        self._known: dict[Entry, PciFunction | None] = {}

    def functions(self) -> dict[str, PciFunction]:
        """All of them by address, in its order; none on a machine without PCI. Raises OSError."""
        return {one.address: self._refresh(one) for _, one in self._ours()}

    def drivers(self) -> tuple[tuple[str, int, str], ...]:
        """Address, inode and bound driver of each: what changes when a function comes, goes or is bound again.

        Raises OSError.
        """
        return tuple((one.address, inode, read_driver(self._tree, one.address)) for inode, one in self._ours())

    def _ours(self) -> list[tuple[int, PciFunction]]:
        try:
            with os.scandir(self._tree.sys("bus/pci/devices")) as entries:
                present = sorted((entry.name, entry.inode()) for entry in entries)
        except FileNotFoundError:  # a machine without PCI
            present = []
        before = self._known
        self._known = {entry: before[entry] if entry in before else self._read(entry[0]) for entry in present}
        return [(inode, one) for (_, inode), one in self._known.items() if one is not None]

    def _read(self, address: str) -> PciFunction | None:
        """What the function is; None for another vendor's or class."""

        def read(name: str) -> str:
            return read_attribute(self._tree, address, name)

        if read("vendor") != self._vendor or not (pci_class := read("class")).startswith(self._classes):
            return None
        return PciFunction(
            address=address,
            vendor=self._vendor,
            device=read("device"),
            pci_class=pci_class,
            root=read_root(self._tree, address),
            numa=read_numa_node(self._tree, address),
            addressable=sum(one.size for one in parse_regions(read("resource")) if one.is_64_bit),
            modalias=read("modalias"),
        )

    def _refresh(self, function: PciFunction) -> PciFunction:
        """With what may change. The kernel says whose a virtual function is after it shows the function."""
        found = msgspec.structs.replace(
            function,
            driver=read_driver(self._tree, function.address),
            override=read_override(self._tree, function.address),
            group=read_iommu_group(self._tree, function.address),
            parent=posixpath.basename(self._tree.link(function_path(self._tree, function.address, "physfn"))),
            has_virtual=count_virtual_functions(self._tree, function.address) > 0,
        )
        return function if found == function else found


def function_path(tree: Tree, address: str, name: str = "") -> str:
    """The function's entry in sysfs, or a file of it."""
    return tree.sys(f"bus/pci/devices/{address}/{name}" if name else f"bus/pci/devices/{address}")


def read_attribute(tree: Tree, address: str, name: str) -> str:
    """What a file of the function says (`subsystem_device`); empty when it cannot be read."""
    return tree.read(function_path(tree, address, name))


def read_driver(tree: Tree, address: str) -> str:
    """The kernel driver that the function is bound to now; empty for none."""
    return posixpath.basename(tree.link(function_path(tree, address, "driver")))


def read_override(tree: Tree, address: str) -> str:
    """The driver that alone may take the function; empty for none."""
    override = read_attribute(tree, address, "driver_override")
    return "" if override == "(null)" else override


def read_iommu_group(tree: Tree, address: str) -> str:
    """The number of the function's IOMMU group; empty for none."""
    return posixpath.basename(tree.link(function_path(tree, address, "iommu_group")))


def read_numa_node(tree: Tree, address: str) -> int | None:
    """The NUMA node; None where the machine has one node or does not say (-1)."""
    text = read_attribute(tree, address, "numa_node")
    return int(text) if text.isdecimal() else None


def read_root(tree: Tree, address: str) -> str:
    """The PCIe root complex (`pci0000:00`) that the function is below; empty when its entry names none."""
    return find_root(tree.link(function_path(tree, address)))


def count_virtual_functions(tree: Tree, address: str) -> int:
    """How many virtual functions of it exist."""
    text = read_attribute(tree, address, "sriov_numvfs")
    return int(text) if text.isdecimal() else 0


def list_vfio_nodes(tree: Tree, address: str) -> tuple[str, ...]:
    """The paths of the function's own devices for vfio, made when it is bound to a driver for passthrough."""
    names = tree.names(function_path(tree, address, "vfio-dev"))
    return tuple(f"/dev/vfio/devices/{name}" for name in names if name.startswith("vfio"))


def find_root(link: str) -> str:
    """The PCIe root complex in the link of a function's entry; empty when it names none."""
    _, found, path = link.partition("/devices/")
    first = path.split("/", 1)[0]
    return first if found and first.startswith("pci") else ""


class Region(NamedTuple):
    """A memory region of a function: its size in bytes, and its flags as the kernel has them (`IORESOURCE_*`)."""

    size: int
    flags: int

    @property
    def is_64_bit(self) -> bool:
        """Whether it is addressed with 64 bits."""
        return self.flags & 0x06 == 0x04


def parse_regions(resource: str) -> Iterator[Region]:
    """Source: lines `start end flags` of the file `resource`, whose first six are the base address registers."""
    for line in resource.splitlines()[:6]:
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError:
            continue
        if end > start:
            yield Region(end - start + 1, flags)


def is_vfio(driver: str) -> bool:
    """Whether it is vfio-pci or a variant of it, such as nvgrace-gpu-vfio-pci."""
    return driver.replace("_", "-").endswith("vfio-pci")
