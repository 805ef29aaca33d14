"""The machine's TPU chips, from /sys/bus/pci and /sys/class/accel.

Source: the kernel's Documentation/ABI/testing/sysfs-bus-pci; tpu-info, which finds chips in the same way.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping

from pydra_tpu.generations import VENDOR, Generation, identify
from pydra_tpu.hardware import Chip, host_node
from pydra_tpu.host.tree import Tree, list_names, read_link, read_text

OTHER_DEVICES = frozenset(("0x001f", "0x0042", "0xabcd"))
"""Google's disks, network cards and virtual devices."""


def read_chips(tree: Tree) -> tuple[tuple[Chip, ...], tuple[str, ...]]:
    """The chips in the order of their PCI addresses, and a text for each function of Google's that is not known."""
    found: list[tuple[str, Generation]] = []
    unknown: list[str] = []
    for address in list_names(f"{tree.sys}/bus/pci/devices"):  # of equal width, so that text order is their order
        if _read(tree, address, "vendor") != VENDOR or not address.endswith(".0"):  # one chip may have two functions
            continue
        device, subsystem = _read(tree, address, "device"), _read(tree, address, "subsystem_device")
        if generation := identify(device, subsystem):
            found.append((address, generation))
        elif device not in OTHER_DEVICES:
            unknown.append(
                f"PCI function {address} of Google has the unknown device id {device or '(unreadable)'}"
                f"{f' with subsystem {subsystem}' if subsystem else ''}; if it is a TPU, a newer pydra-tpu may know it"
            )
    nodes = dict(_read_accel_nodes(tree))
    return tuple(
        _read_chip(tree, index, address, generation, nodes) for index, (address, generation) in enumerate(found)
    ), tuple(unknown)


def _read_accel_nodes(tree: Tree) -> Iterator[tuple[str, str]]:
    """The PCI address of each entry of /sys/class/accel, and the node that belongs to it."""
    for name in list_names(f"{tree.sys}/class/accel"):
        if address := posixpath.basename(read_link(f"{tree.sys}/class/accel/{name}/device")):
            yield address, f"/dev/{name}"


def _read_chip(tree: Tree, index: int, address: str, generation: Generation, accel: Mapping[str, str]) -> Chip:
    driver = posixpath.basename(read_link(_path(tree, address, "driver")))
    group = posixpath.basename(read_link(_path(tree, address, "iommu_group")))
    node = accel.get(address) or (f"/dev/vfio/{group}" if group and driver == "vfio-pci" else "")
    numa = _read(tree, address, "numa_node")
    return Chip(
        index=index,
        address=address,
        generation=generation,
        driver=driver,
        node=node,
        node_exists=bool(node) and os.path.exists(tree.here(host_node(node, tree.dev))),
        numa_node=int(numa) if numa.isdecimal() else None,  # -1: the machine has one node, or does not say
        pcie_root=_find_root(read_link(f"{tree.sys}/bus/pci/devices/{address}")),
    )


def _find_root(link: str) -> str:
    """The PCIe root complex, `pci0000:00`, in the link of a function's entry; empty when it names none."""
    _, found, path = link.partition("/devices/")
    first = path.split("/", 1)[0]
    return first if found and first.startswith("pci") else ""


def _path(tree: Tree, address: str, name: str) -> str:
    return f"{tree.sys}/bus/pci/devices/{address}/{name}"


def _read(tree: Tree, address: str, name: str) -> str:
    return read_text(_path(tree, address, name))
