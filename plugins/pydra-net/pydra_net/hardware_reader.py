"""Reads the node's interfaces: what the kernel says of links, and what sysfs says of their hardware.

Source: Linux, Documentation/ABI: testing/sysfs-class-net, testing/sysfs-bus-pci, stable/sysfs-class-infiniband.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from pydra_net.device_names import name_device
from pydra_net.hardware_types import Hardware, Node, OfferedRdma, VirtualFunction
from pydra_net.kernel import Kernel, Namespace
from pydra_net.network_types import Link, Reading
from pydra_net.protected_interfaces import find_needed, find_unmovable
from pydra_net.rdma_devices import find_lone_rdma, find_rdma, find_software_rdma
from pydra_net.settings import Settings, split
from pydra_pci import Tree, function_path, read_attribute, read_driver, read_numa_node, read_root

_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


class HardwareReader:
    """Reads one node; `given` returns the links that claims have, as they were on the node."""

    def __init__(
        self,
        tree: Tree,
        kernel: Kernel,
        host: Namespace,
        settings: Settings,
        given: Callable[[], Sequence[Link]] = tuple,
    ) -> None:
        self._tree = tree
        self._kernel = kernel
        self._host = host
        self._settings = settings
        self._given = given

    def read(
        self,
        with_ethtool: Collection[str] = (),
        with_functions: Collection[str] = (),
        with_sysctls: Collection[str] = (),
    ) -> Node:
        """The node as it is now, with the settings of ethtool, those by their cards, and sysctls of these devices.

        Blocks.
        """
        reading = self._kernel.read(self._host)
        reading = replace(reading, links=tuple(map(self._without_borrowed_address, reading.links)))
        needed = find_needed(reading, split(self._settings.node_addresses))
        protected = {
            **dict(self._find_cards(reading)),
            **find_software_rdma(self._tree, reading),
            **find_unmovable(reading, self._given()),
            **needed,
        }
        names = {link.index: self._name(link) for link in reading.links}
        shared = {link.index for link in reading.links if self._is_shared(link, link.index in needed)}
        devices = {
            names[link.index]: link
            for link in reading.links
            if link.index in shared or (link.index not in protected and self._is_wanted(link))
        }
        moved = [name for name in with_sysctls if name in devices and devices[name].index not in shared]
        return Node(
            reading=reading,
            devices=devices,
            protected=protected,
            needed=frozenset(needed),
            names=names,
            speeds={link.index: self._read_speed(link) for link in devices.values()},
            shared=frozenset(names[index] for index in shared),
            programs=self._kernel.read_programs(self._host, [link.index for link in devices.values()]),
            ethtool={
                name: self._kernel.read_ethtool(self._host, devices[name].index)
                for name in with_ethtool
                if name in devices
            },
            sysctls={name: self._kernel.read_changed_sysctls(self._host, devices[name]) for name in moved},
            tokens={name: self._kernel.read_token(self._host, devices[name].index) for name in moved},
            rdma=dict(self._find_rdma(reading, devices)),
            functions={
                name: self.read_virtual_function(devices[name].pci_address, reading)
                for name in with_functions
                if name in devices
            },
        )

    def find_pci_address(self, link: Link) -> str:
        """The address of the PCI function that the link is of; also of one that has a bus between, such as virtio."""
        if link.pci_address or not link.parent:
            return link.pci_address
        bus, _, name = link.parent.partition("/")
        found = _PCI.findall(self._tree.link(self._tree.sys(f"bus/{bus}/devices/{name}")))
        return found[-1] if found else ""

    def read_hardware(self, address: str) -> Hardware:
        """What sysfs says of a PCI function."""

        def read(name: str) -> str:
            return read_attribute(self._tree, address, name)

        subsystem = ":".join(one.removeprefix("0x") for one in (read("subsystem_vendor"), read("subsystem_device")))
        count, most = read("sriov_numvfs"), read("sriov_totalvfs")
        return Hardware(
            address=address,
            vendor=read("vendor"),
            device=read("device"),
            subsystem=subsystem.strip(":"),
            driver=read_driver(self._tree, address),
            root=read_root(self._tree, address),
            numa=read_numa_node(self._tree, address),
            virtual_functions=int(count) if count.isdecimal() else -1,
            most_virtual_functions=int(most) if most.isdecimal() else 0,
            is_virtual_function=bool(self._tree.link(function_path(self._tree, address, "physfn"))),
        )

    def read_virtual_function(self, address: str, links: Reading) -> VirtualFunction | None:
        """The virtual function at this address, if it is one, whose card's interface is among these of the node."""
        card = self._tree.link(function_path(self._tree, address, "physfn")).rpartition("/")[2]
        for name in self._tree.names(function_path(self._tree, card)) if card else ():
            number = name.removeprefix("virtfn")
            is_it = self._tree.link(function_path(self._tree, card, name)).rpartition("/")[2] == address
            if number != name and number.isdecimal() and is_it:
                link = next((one for one in links.links if one.pci_address == card and not one.is_representor), None)
                state = self._kernel.read_function(self._host, link.index, int(number)) if link else None
                return VirtualFunction(address=address, card=card, number=int(number), link=link, state=state)
        return None

    def has_function(self, address: str) -> bool:
        """Whether the PCI function is there, with a driver that can make an interface of it."""
        driver = read_driver(self._tree, address)
        return bool(driver) and "vfio" not in driver

    def has_device(self, link: Link) -> bool:
        """Whether what a link belongs to is there, with a driver that can make an interface of it."""
        bus, _, name = link.parent.partition("/")
        if bus in ("", "pci"):
            return not name or self.has_function(name)
        return bool(self._tree.link(self._tree.sys(f"bus/{bus}/devices/{name}/driver")))

    def _name(self, link: Link) -> str:
        port = self._tree.read(self._tree.sys(f"class/net/{link.name}/dev_port"))
        return name_device(link, self.find_pci_address(link), int(port) if port.isdecimal() else 0)

    def _without_borrowed_address(self, link: Link) -> Link:
        """Without the permanent address of a virtual function: it is another one when the card gives it one."""
        is_function = link.pci_address and self._tree.link(function_path(self._tree, link.pci_address, "physfn"))
        return replace(link, permanent_mac="") if is_function else link

    def _find_cards(self, reading: Reading) -> Iterator[tuple[int, str]]:
        """Yield the cards of virtual functions, by index, and why they are not given away."""
        for link in reading.links:
            if link.pci_address and not link.kind:
                count = read_attribute(self._tree, link.pci_address, "sriov_numvfs")
                if count.isdecimal() and int(count):
                    yield link.index, f"configures virtual functions ({count}), which can be given instead"

    def _find_rdma(self, reading: Reading, devices: Mapping[str, Link]) -> Iterator[tuple[str, OfferedRdma]]:
        if not reading.rdma:
            return
        yield from find_rdma(self._tree, reading, devices, self.find_pci_address)
        for name, rdma in find_lone_rdma(self._tree, reading):
            if self._is_chosen(rdma.device.name, "rdma"):
                yield name, rdma

    def _is_wanted(self, link: Link) -> bool:
        return self._is_chosen(link.name, link.kind or "device")

    def _is_chosen(self, name: str, kind: str) -> bool:
        settings = self._settings
        if kind in split(settings.exclude_types):
            return False
        return _matches(name, settings.interfaces) and not _matches(name, settings.exclude)

    def _is_shared(self, link: Link, is_needed: bool) -> bool:
        """Whether it is offered in shares. The kernel makes none on a member of a bond or bridge."""
        if link.is_loopback or link.master:
            return False
        is_named = link.name in split(self._settings.shared)
        is_kept = is_needed or link.is_representor
        return is_named or (_matches(link.name, self._settings.shared) and self._is_wanted(link) and not is_kept)

    def _read_speed(self, link: Link) -> int:
        text = self._tree.read(self._tree.sys(f"class/net/{link.name}/speed"))
        return int(text) if text.isdecimal() else 0


def _matches(name: str, patterns: str) -> bool:
    return any(fnmatch.fnmatchcase(name, one) for one in split(patterns))
