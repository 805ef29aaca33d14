"""A PCI function as passthrough sees it: its driver now, its IOMMU group, who else is in that, its nodes. Reads only.

Source: the kernel's Documentation/ABI/testing/sysfs-bus-pci and Documentation/driver-api/vfio.rst.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from pydra_nvidia.host.filesystem import Tree
from pydra_nvidia.host.pci import (
    count_virtual_functions,
    function_path,
    is_vfio,
    list_vfio_nodes,
    read_driver,
    read_iommu_group,
)

BRIDGE_CLASS = "0x06"
HARMLESS = ("", "pci-stub", "pcieport")
"""Drivers that do not mind what else happens in their group; so does a function with none."""


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function at one moment. `driver`, `override` and `group` are empty for none; `virtual` counts its functions."""

    address: str
    present: bool
    driver: str
    override: str
    group: str
    virtual: int


def read_function(tree: Tree, address: str) -> Function:
    """The function as sysfs has it now."""
    override = tree.read(function_path(tree, address, "driver_override")) or ""
    return Function(
        address=address,
        present=tree.exists(function_path(tree, address)),
        driver=read_driver(tree, address),
        override="" if override == "(null)" else override,
        group=read_iommu_group(tree, address),
        virtual=count_virtual_functions(tree, address),
    )


def find_strangers(tree: Tree, function: Function, ours: Collection[str]) -> tuple[str, ...]:
    """`0000:53:00.1 (snd_hda_intel)`: what the host's drivers have in the group, which so cannot be opened.

    `ours` are addresses that the same claim passes through.
    """
    members = tree.names(tree.sys(f"kernel/iommu_groups/{function.group}/devices"))
    found = []
    for address in members:
        driver = read_driver(tree, address)
        bridge = (tree.read(function_path(tree, address, "class")) or "").startswith(BRIDGE_CLASS)
        harmless = driver in HARMLESS or is_vfio(driver)
        if address not in (function.address, *ours) and not bridge and not harmless:
            found.append(f"{address} ({driver})")
    return tuple(found)


def list_nodes(tree: Tree, function: Function) -> tuple[str, ...]:
    """The paths on the host by which a bound function can be opened: its group's, its own. They need not exist."""
    return (f"/dev/vfio/{function.group}", *list_vfio_nodes(tree, function.address))
