"""Machines with network interfaces."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from pydra_net.network_types import Address, Link, RdmaDevice, Reading, Route
from pydra_net.simulation.kernel import LOOPBACK
from pydra_pci.simulation.files import Files, change_files, device, folder, link, text
from pydra_pci.simulation.functions import Function, Slot, driver_files, function_files


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A network card: its PCI address, NUMA node and RDMA device, which can be `alone`, without an interface.

    It can have as many virtual functions.
    """

    name: str
    address: str
    numa: int = 0
    rdma: str = ""
    alone: bool = False
    most_functions: int = 0

    def build_function(self) -> Function:
        """Its PCI function, below a PCIe root of its NUMA node."""
        return Function(
            slot=Slot(root=f"pci0000:{self.numa:02x}", address=self.address, numa=self.numa),
            vendor="0x15b3",
            device="0x101d",
            subsystem_vendor="0x15b3",
            subsystem_device="0x0016",
            pci_class="0x020700" if self.alone else "0x020000",
            driver="mlx5_core",
            virtual=self.most_functions or None,
        )


UPLINK = Card(name="eth0", address="0000:01:00.0")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A node whose uplink is `eth0`, and its other interfaces."""

    cards: tuple[Card, ...] = ()
    links: tuple[Link, ...] = ()
    exclusive_rdma: bool = False

    def build(self) -> Reading:
        """What its kernel has: each card has an address and a route, `eth0` the default route."""
        cards = enumerate((UPLINK, *self.cards), 2)
        hardware = tuple(_build_link(index, card) for index, card in cards if not card.alone)
        return Reading(
            links=(LOOPBACK, *hardware, *self.links),
            addresses={link.index: (Address(address=f"10.0.{link.index}.1/24"),) for link in hardware},
            routes={link.index: (_build_route(link.index),) for link in hardware},
            rdma=tuple(
                RdmaDevice(index=number, name=card.rdma, links=() if card.alone else (number + 2,), active=True)
                for number, card in enumerate((UPLINK, *self.cards))
                if card.rdma
            ),
            exclusive_rdma=self.exclusive_rdma,
        )

    def write(self, root: Path) -> None:
        """Write the files of its hardware below `sys` and `dev` of this directory."""
        cards = (UPLINK, *self.cards)
        files = driver_files("mlx5_core")
        for card in cards:
            files |= function_files(card.build_function())
        for number, card in enumerate(one for one in cards if one.rdma):
            files |= _list_rdma_files(number, card)
        change_files(str(root), {}, files)


def _list_rdma_files(number: int, card: Card) -> Files:
    """What the kernel has of an RDMA device."""
    place = f"{card.build_function().slot.path}/infiniband/{card.rdma}"
    return {
        place: folder(),
        f"sys/class/infiniband/{card.rdma}": link(f"../../../{place}"),
        f"sys/class/infiniband_verbs/uverbs{number}/ibdev": text(card.rdma),
        f"sys/class/infiniband_mad/umad{number}/ibdev": text(card.rdma),
        "sys/class/misc/rdma_cm": folder(),
        **{f"dev/infiniband/{node}": device() for node in (f"uverbs{number}", f"umad{number}", "rdma_cm")},
    }


def _build_route(index: int) -> Route:
    destination = "0.0.0.0/0" if index == 2 else f"10.{index}.0.0/16"
    return Route(destination=destination, gateway=f"10.0.{index}.9", protocol=3)


def _build_link(index: int, card: Card) -> Link:
    mac = f"02:00:00:00:00:{index:02x}"
    return Link(
        index=index,
        name=card.name,
        mac=mac,
        permanent_mac=mac,
        mtu=9000,
        up=True,
        carrier=True,
        state="up",
        parent=f"pci/{card.address}",
        parameters={"gso_max_size": 65536, "gro_max_size": 65536, "forwarding": 1, "arp_ignore": 1, "arp_announce": 0},
        most_gso=262144,
        most_mtu=9216,
    )


MACHINE_TYPES: Mapping[str, Machine] = {
    "server": Machine(
        cards=tuple(
            Card(name=f"eth{number}", address=f"0000:{number}0:00.0", numa=number // 3, rdma=f"mlx5_{number}")
            for number in range(1, 5)
        ),
        links=(Link(index=9, name="dummy0", kind="dummy", mac="02:00:00:00:01:00", mtu=1500, state="down"),),
    ),
}
