"""The node's NVIDIA display functions, from /sys/bus/pci, and the names of their products.

Source: the kernel's Documentation/ABI/testing/sysfs-bus-pci. A node has hundreds of functions and the agent looks
every few seconds, so which of them are NVIDIA's is remembered; the inode of an entry changes with the function.
Products of data centres are known by name here, others from the host's pci.ids: some nodes have none, an old one lacks
new GPUs, and a product's name should not depend on the node.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from pydra_nvidia.hardware_types import PciFunction, VfioHost
from pydra_nvidia.host.filesystem import ParsedFile, Tree

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
        return tuple((address, inode, read_driver(self._tree, address)) for address, inode in self._ours())

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
            driver=read_driver(self._tree, address),
            root=find_root(tree.link(function_path(tree, address)) or ""),
            numa=_integer(self._read(address, "numa_node"), -1),
            group=read_iommu_group(tree, address),
            addressable=addressable_memory(self._read(address, "resource")),
            modalias=self._read(address, "modalias"),
            is_virtual=tree.link(function_path(tree, address, "physfn")) is not None,
            has_virtual=count_virtual_functions(tree, address) > 0,
        )

    def _read(self, address: str, name: str) -> str:
        return self._tree.read(function_path(self._tree, address, name)) or ""


def function_path(tree: Tree, address: str, name: str = "") -> str:
    """The function's entry in sysfs, or a file of it."""
    return tree.sys(f"bus/pci/devices/{address}/{name}" if name else f"bus/pci/devices/{address}")


def read_driver(tree: Tree, address: str) -> str:
    """The kernel driver that the function is bound to now; empty for none."""
    return posixpath.basename(tree.link(function_path(tree, address, "driver")) or "")


def read_iommu_group(tree: Tree, address: str) -> str:
    """The number of the function's IOMMU group; empty for none."""
    return posixpath.basename(tree.link(function_path(tree, address, "iommu_group")) or "")


def count_virtual_functions(tree: Tree, address: str) -> int:
    """How many virtual functions of it exist."""
    return _integer(tree.read(function_path(tree, address, "sriov_numvfs")) or "", 0)


def list_vfio_nodes(tree: Tree, address: str) -> tuple[str, ...]:
    """The paths of the function's own devices for vfio, made when it is bound to a driver for passthrough."""
    names = tree.names(function_path(tree, address, "vfio-dev"))
    return tuple(f"/dev/vfio/devices/{name}" for name in names if name.startswith("vfio"))


def find_root(link: str) -> str:
    """The PCIe root complex (`pci0000:00`) in the link of a function's entry; empty when it names none."""
    _, found, path = link.partition("/devices/")
    first = path.split("/", 1)[0]
    return first if found and first.startswith("pci") else ""


class Region(NamedTuple):
    """A memory region of a function: its size in bytes, and its flags as the kernel has them (`IORESOURCE_*`)."""

    size: int
    flags: int


def parse_regions(resource: str) -> Iterator[Region]:
    """Source: lines `start end flags` of the file `resource`, whose first six are the base address registers."""
    for line in resource.splitlines()[:6]:
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError:
            continue
        if end > start:
            yield Region(end - start + 1, flags)


def addressable_memory(resource: str) -> int:
    """The memory that the function's 64-bit regions address, in bytes, rounded up to a power of two; 0 for none.

    The rounding is what NVIDIA's DRA driver publishes.
    """
    total = sum(region.size for region in parse_regions(resource) if region.flags & 0x06 == 0x04)
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


PCI_IDS_PATHS = (
    "/usr/share/misc/pci.ids",
    "/usr/local/share/pci.ids",
    "/usr/share/hwdata/pci.ids",
    "/usr/share/pci.ids",
)

PRODUCTS = {
    "15f7": "GP100GL [Tesla P100 PCIe 12GB]",
    "15f8": "GP100GL [Tesla P100 PCIe 16GB]",
    "15f9": "GP100GL [Tesla P100 SXM2 16GB]",
    "1b38": "GP102GL [Tesla P40]",
    "1bb3": "GP104GL [Tesla P4]",
    "1db1": "GV100GL [Tesla V100 SXM2 16GB]",
    "1db4": "GV100GL [Tesla V100 PCIe 16GB]",
    "1db5": "GV100GL [Tesla V100 SXM2 32GB]",
    "1db6": "GV100GL [Tesla V100 PCIe 32GB]",
    "1df6": "GV100GL [Tesla V100S PCIe 32GB]",
    "1eb8": "TU104GL [Tesla T4]",
    "20b0": "GA100 [A100 SXM4 40GB]",
    "20b1": "GA100 [A100 PCIe 40GB]",
    "20b2": "GA100 [A100 SXM4 80GB]",
    "20b5": "GA100 [A100 PCIe 80GB]",
    "20b7": "GA100GL [A30 PCIe]",
    "20f1": "GA100 [A100 PCIe 40GB]",
    "20f3": "GA100 [A800-SXM4-80GB]",
    "20f5": "GA100 [A800 80GB PCIe]",
    "2230": "GA102GL [RTX A6000]",
    "2235": "GA102GL [A40]",
    "2236": "GA102GL [A10]",
    "2237": "GA102GL [A10G]",
    "2321": "GH100 [H100L 94GB]",
    "2322": "GH100 [H800 PCIe]",
    "2324": "GH100 [H800]",
    "2329": "GH100 [H20]",
    "2330": "GH100 [H100 SXM5 80GB]",
    "2331": "GH100 [H100 PCIe]",
    "2335": "GH100 [H200 SXM 141GB]",
    "233b": "GH100 [H200 NVL]",
    "25b6": "GA107GL [A2 / A16]",
    "26b5": "AD102GL [L40]",
    "26b9": "AD102GL [L40S]",
    "26ba": "AD102GL [L20]",
    "27b8": "AD104GL [L4]",
    "2901": "GB100 [B200]",
    "2941": "GB100 [HGX GB200]",
    "29bc": "GB102 [B100]",
    "2bb5": "GB202GL [RTX PRO 6000 Blackwell Server Edition]",
    "3182": "GB110 [B300 SXM6 AC]",
    "31c2": "GB110 [GB300]",
}
"""By device id. Source: the PCI ID Repository (pci-ids.ucw.cz), vendor 10de."""


class PciIds:
    """Names of devices, from the first list that the host has."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._file = ParsedFile(tree, parse_names)

    def name(self, device: str) -> str:
        """The name of the device (`0x2330`); empty when it is not known."""
        id_ = device.removeprefix("0x")
        if known := PRODUCTS.get(id_):
            return known
        for path in map(self._tree.here, PCI_IDS_PATHS):
            if (names := self._file.read(path)) is not None:
                return names.get(id_, "")
        return ""


def parse_names(text: str) -> dict[str, str]:
    """NVIDIA's devices by id. Source: the comments at the head of pci.ids; deeper lines are subsystems."""
    names: dict[str, str] = {}
    inside = False
    for line in text.splitlines():
        if not line.startswith(("\t", "#")) and line.strip():
            if inside:
                break
            inside = line[:4] == VENDOR.removeprefix("0x")
        elif inside and line.startswith("\t") and not line.startswith("\t\t"):
            device, _, name = line.strip().partition("  ")
            names[device] = name.strip()
    return names
