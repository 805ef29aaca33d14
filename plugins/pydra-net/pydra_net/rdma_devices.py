"""Which RDMA device belongs to a device, and the device nodes by which containers use it.

Source: Linux, Documentation/ABI/stable/sysfs-class-infiniband, Documentation/infiniband: user_mad, user_verbs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from pydra_net.device_names import name_function
from pydra_net.hardware_types import OfferedRdma
from pydra_net.network_types import Link, Reading
from pydra_pci import Tree, function_path, read_attribute

_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ETHERNET = "0x0200"
"""The class of PCI functions whose RDMA device belongs to an interface, also if that is in another namespace now."""


def find_rdma(
    tree: Tree, reading: Reading, links: Mapping[str, Link], find_pci_address: Callable[[Link], str]
) -> Iterator[tuple[str, OfferedRdma]]:
    """Yield the RDMA devices of links, by the device's name: that of the PCI function, else one with a port on it."""
    for name, link in links.items():
        address = find_pci_address(link)
        own = tree.names(function_path(tree, address, "infiniband")) if address else ()
        for one in reading.rdma:
            if one.name in own[:1] or (not own and link.index in one.links):
                yield name, OfferedRdma(device=one, pci_address=address, nodes=list_nodes(tree, one.name))
                break


def find_software_rdma(tree: Tree, reading: Reading) -> Mapping[int, str]:
    """Return why links cannot be moved, by index: the kernel removes RDMA devices that software has made on them."""
    return {
        index: f"has the RDMA device {one.name}, which the kernel would remove with it; it can be shared"
        for one in reading.rdma
        if not _PCI.search(tree.link(tree.sys(f"class/infiniband/{one.name}")))
        for index in one.links
    }


def find_lone_rdma(tree: Tree, reading: Reading) -> Iterator[tuple[str, OfferedRdma]]:
    """Yield the RDMA devices of PCI functions that have no interface, by the name of the device that each is."""
    taken = {link.pci_address for link in reading.links}
    for one in reading.rdma:
        places = _PCI.findall(tree.link(tree.sys(f"class/infiniband/{one.name}")))
        if places and places[-1] not in taken and not read_attribute(tree, places[-1], "class").startswith(_ETHERNET):
            nodes = list_nodes(tree, one.name)
            yield (
                name_function(places[-1]),
                OfferedRdma(device=one, pci_address=places[-1], nodes=nodes, alone=True),
            )


def list_nodes(tree: Tree, name: str) -> tuple[str, ...]:
    """The device nodes of an RDMA device. The kernel can give it others when it is moved."""
    return tuple(f"/dev/infiniband/{one}" for one in sorted(_list_names(tree, name)))


def _list_names(tree: Tree, name: str) -> Iterator[str]:
    for kind in ("infiniband_verbs", "infiniband_mad"):
        for one in tree.names(tree.sys(f"class/{kind}")):
            if tree.read(tree.sys(f"class/{kind}/{one}/ibdev")) == name:
                yield one
    if tree.exists(tree.sys("class/misc/rdma_cm")):  # the connection manager's, which all devices have in common
        yield "rdma_cm"
