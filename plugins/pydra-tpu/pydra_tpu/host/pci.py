"""The PCI functions of the machine's TPU chips, from /sys/bus/pci and /sys/class/accel. Source: tpu-info, which finds
chips in the same way."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping

from pydra_pci import VFIO_PCI, PciBus, PciFunction, Tree, read_attribute
from pydra_tpu.generations import VENDOR, Generation, identify
from pydra_tpu.hardware_types import VFIO_CONTROL, ChipFunction

OTHER_DEVICES = frozenset(("0x001f", "0x0042", "0xabcd"))
"""Google's disks, network cards and virtual devices."""


def read_functions(tree: Tree) -> tuple[tuple[ChipFunction, ...], tuple[str, ...]]:
    """The functions of TPUs in the order of their addresses, and a text for each of Google's that is not known.

    Raises OSError.
    """
    found: list[ChipFunction] = []
    unknown = _find_missing(tree)
    nodes = dict(_read_accel_nodes(tree))
    for address, function in PciBus(tree, VENDOR).functions().items():
        subsystem = read_attribute(tree, address, "subsystem_device")
        if generation := identify(function.device, subsystem):
            found.append(_build_function(tree, function, generation, nodes))
        elif function.device not in OTHER_DEVICES:
            unknown.append(
                f"PCI function {address} of Google has the unknown device id {function.device or '(unreadable)'}"
                f"{f' with subsystem {subsystem}' if subsystem else ''}; if it is a TPU, a newer pydra-tpu may know it"
            )
    return tuple(found), tuple(unknown)


def _find_missing(tree: Tree) -> list[str]:
    """Why there are no functions, if /sys is somewhere else; empty if the machine has none, or no PCI bus."""
    path = tree.sys("bus/pci/devices")
    if tree.exists(path) or tree.names(tree.sys("bus")):
        return []
    text = f"the PCI functions of this machine cannot be read: {path}: No such file or directory"
    return [f"{text}; PYDRA_TPU_SYS_ROOT must be where the host's /sys is mounted"]


def _read_accel_nodes(tree: Tree) -> Iterator[tuple[str, str]]:
    """The PCI address of each entry of /sys/class/accel, and the node that belongs to it."""
    for name in tree.names(tree.sys("class/accel")):
        if address := posixpath.basename(tree.link(tree.sys(f"class/accel/{name}/device"))):
            yield address, f"/dev/{name}"


def _build_function(
    tree: Tree, function: PciFunction, generation: Generation, accel: Mapping[str, str]
) -> ChipFunction:
    vfio = f"/dev/vfio/{function.group}" if function.group and function.driver == VFIO_PCI else ""
    node = accel.get(function.address) or vfio
    return ChipFunction(
        address=function.address,
        slot=function.slot,
        generation=generation,
        driver=function.driver,
        node=node,
        node_exists=bool(node) and tree.has_node(node),
        control_exists=tree.has_node(VFIO_CONTROL) if vfio and node == vfio else True,
        numa_node=function.numa,
        pcie_root=function.root,
        group=function.group,
    )
