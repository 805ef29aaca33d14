"""Machines with network interfaces."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import msgspec

from pydra_net.network_types import Address, Link, RdmaDevice, Reading, Route
from pydra_net.simulation.kernel import LOOPBACK


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
        """Write the files of its hardware below `sys` of this directory."""
        driver = root / "sys/bus/pci/drivers/mlx5_core"
        driver.mkdir(parents=True)
        (root / "sys/bus/pci/devices").mkdir()
        for card in (UPLINK, *self.cards):
            place = f"devices/pci0000:{card.numa:02x}/{card.address}"  # a PCIe root in each NUMA node
            real = root / "sys" / place
            real.mkdir(parents=True)
            files = {
                "vendor": "0x15b3",
                "device": "0x101d",
                "class": "0x020700" if card.alone else "0x020000",
                "numa_node": str(card.numa),
            }
            for name, text in files.items():
                (real / name).write_text(f"{text}\n")
            (real / "driver").symlink_to("../../../bus/pci/drivers/mlx5_core")
            if card.most_functions:
                (real / "sriov_totalvfs").write_text(f"{card.most_functions}\n")
                (real / "sriov_numvfs").write_text("0\n")
            if card.rdma:
                (real / "infiniband" / card.rdma).mkdir(parents=True)
                _write_rdma(root, card.rdma, f"{place}/infiniband/{card.rdma}")
            (root / f"sys/bus/pci/devices/{card.address}").symlink_to(f"../../../{place}")


def _write_rdma(root: Path, name: str, place: str) -> None:
    """Write what the kernel has of an RDMA device."""
    classes, nodes = root / "sys/class", root / "dev/infiniband"
    (classes / "infiniband").mkdir(parents=True, exist_ok=True)
    (classes / "misc/rdma_cm").mkdir(parents=True, exist_ok=True)
    nodes.mkdir(parents=True, exist_ok=True)
    number = len(list((classes / "infiniband").iterdir()))
    (classes / f"infiniband/{name}").symlink_to(f"../../{place}")
    for kind, node in (("infiniband_verbs", f"uverbs{number}"), ("infiniband_mad", f"umad{number}")):
        (classes / kind / node).mkdir(parents=True)
        (classes / kind / node / "ibdev").write_text(f"{name}\n")
        _make_node(nodes / node)
    if not number:
        _make_node(nodes / "rdma_cm")


def _make_node(path: Path) -> None:
    """Make a device node, as container runtimes demand it, or a link to one without the right to."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        path.symlink_to("/dev/null")


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
