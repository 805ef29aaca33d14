"""What a network namespace has: links, and what is configured on them. Names and numbers are the kernel's."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

_REPRESENTOR = re.compile(r"(c\d+)?pf\d+(vf|sf)\d+")

BY_KERNEL, BY_ADVERTISEMENT = 2, 9
"""Protocols of routes that the kernel adds: RTPROT_KERNEL, RTPROT_RA."""
LINK_SCOPE, MAIN_TABLE = 253, 254
FOREVER = 0xFFFFFFFF
"""The seconds of an address, and of a lease, that does not end."""
LEAST_MTU_OF_IPV6 = 1280
_EVERYBODY = b"\xff" * 4

IpInterface: TypeAlias = ipaddress.IPv4Interface | ipaddress.IPv6Interface


def is_of_host(one: IpInterface) -> bool:
    """Whether one host can have the address, and others reach it there."""
    if one.ip.is_unspecified or one.ip.is_loopback or one.ip.is_multicast:
        return False
    network = one.network
    return one.version == 6 or (one.ip.packed != _EVERYBODY and (network.prefixlen > 30 or one.ip != network[-1]))


class Address(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An address of a link; `address` is `10.0.0.1/24`, lifetimes are in seconds, `metric` is that of its route."""

    address: str
    peer: str = ""
    broadcast: str = ""
    scope: int = 0
    flags: int = 0
    label: str = ""
    valid: int = FOREVER
    preferred: int = FOREVER
    metric: int = 0
    protocol: int = 0

    @property
    def family(self) -> int:
        """4 or 6."""
        return ipaddress.ip_interface(self.address).version

    def __str__(self) -> str:
        return f"address {self.address}"


class Route(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A route by one link; `destination` is `10.0.0.0/8`.

    `not_recorded` says what else it has, such as other links, so that it could not be put back with this link.
    """

    destination: str
    gateway: str = ""
    source: str = ""
    table: int = MAIN_TABLE
    scope: int = 0
    type: int = 1
    protocol: int = 0
    priority: int = 0
    flags: int = 0
    preference: int = 0
    metrics: Mapping[str, int | str] = {}
    not_recorded: str = ""

    @property
    def family(self) -> int:
        """4 or 6."""
        return ipaddress.ip_network(self.destination).version

    @property
    def is_default(self) -> bool:
        """Whether it is for everything that no other route is for."""
        return self.destination in ("0.0.0.0/0", "::/0")

    def __str__(self) -> str:
        gateway = f" via {self.gateway}" if self.gateway else ""
        return f"route {self.destination}{gateway} in table {self.table}"


class Rule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rule that chooses a table; an empty `source` or `destination` is any."""

    family: int
    table: int
    priority: int
    source: str = ""
    destination: str = ""

    def __str__(self) -> str:
        return f"the rule with priority {self.priority} for table {self.table}"


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A permanent entry of the neighbour table."""

    destination: str
    mac: str

    def __str__(self) -> str:
        return f"neighbour {self.destination}"


class Feature(msgspec.Struct, frozen=True, kw_only=True):
    """A feature of `ethtool -k`; one that is fixed cannot be changed."""

    enabled: bool
    fixed: bool = False


class Ethtool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What ethtool can set of a link."""

    features: Mapping[str, Feature] = {}
    private_flags: Mapping[str, bool] = {}


class Programs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The names of the eBPF programs of a link: tc filters, and programs of tcx."""

    filters: tuple[str, ...] = ()
    tcx: tuple[str, ...] = ()


class VirtualFunctionState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a card does with a virtual function; None: not known, or left as it is. Rates are in Mbit/s."""

    mac: str | None = None
    vlan: int | None = None
    qos: int | None = None
    min_rate: int | None = None
    max_rate: int | None = None
    spoof_check: bool | None = None
    trust: bool | None = None
    link_state: int | None = None

    def list_known(self) -> dict[str, Any]:
        """What is known of it, by name."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}


class Link(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A network interface. `kind` is that of a virtual one (`veth`, `macvlan`), empty for hardware.

    `mac` is its own address also while a bond gives it another one. `lower` is the index of the link below (or of a
    veth's other end) if it is in the same namespace, else 0. `parent` is the device that it belongs to, as
    `pci/0000:3b:00.0`; `port` the name of the device's port. `parameters` are those of `link_parameters` that
    the kernel knows; `most_gso` is its limit for the sizes of segments, `most_mtu` that for its MTU, 0 without one.
    """

    index: int
    name: str
    kind: str = ""
    mac: str = ""
    permanent_mac: str = ""
    mtu: int = 0
    up: bool = False
    carrier: bool = False
    state: str = ""
    alias: str = ""
    alternative_names: tuple[str, ...] = ()
    master: int = 0
    lower: int = 0
    elsewhere: bool = False
    """Whether what it is made on, or connected to, is in another namespace than the link itself."""
    parent: str = ""
    port: str = ""
    hardware: int = 1
    has_xdp: bool = False
    carrier_changes: int = 0
    functions: tuple[VirtualFunctionState, ...] = ()
    """What a card does with its virtual functions, if that was asked for."""
    parameters: Mapping[str, int] = {}
    most_gso: int = 0
    most_mtu: int = 0
    vlan: int = 0
    """The ID of a VLAN interface."""
    ipvlan_mode: str = ""
    """That of all ipvlan interfaces on one."""
    immovable: bool = False
    """Whether the kernel keeps it in its namespace, as far as it says so."""

    @property
    def is_loopback(self) -> bool:
        """Whether it is `lo`."""
        return self.hardware == 772

    @property
    def is_representor(self) -> bool:
        """Whether it stands for another function, in the switch of a card."""
        return bool(_REPRESENTOR.fullmatch(self.port))

    @property
    def pci_address(self) -> str:
        """The address of its PCI function; empty if it is not one."""
        bus, _, address = self.parent.partition("/")
        return address if bus == "pci" else ""


class RdmaDevice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An RDMA device, whose name no other one of the machine has. `links` are the indexes of its ports' links.

    `active`: one of its ports can be used.
    """

    index: int
    name: str
    links: tuple[int, ...] = ()
    active: bool = False


IPVLAN_MODES = ("l2", "l3", "l3s")
"""By the numbers of the kernel."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of a namespace; addresses, routes and neighbours by the index of their link.

    `exclusive_rdma`: an RDMA device is in one namespace only, else all namespaces have those of the node.
    """

    links: tuple[Link, ...] = ()
    addresses: Mapping[int, tuple[Address, ...]] = {}
    routes: Mapping[int, tuple[Route, ...]] = {}
    neighbours: Mapping[int, tuple[Neighbour, ...]] = {}
    rules: tuple[Rule, ...] = ()
    rdma: tuple[RdmaDevice, ...] = ()
    exclusive_rdma: bool = False
    port_settings: Mapping[int, tuple[str, ...]] = {}
    """What is not as the default of ports of bridges, such as `isolated 1`."""

    def find(self, index: int) -> Link | None:
        """The link of this index."""
        return next((one for one in self.links if one.index == index), None)

    def find_name(self, name: str) -> Link | None:
        """The link of this name."""
        return next((one for one in self.links if one.name == name or name in one.alternative_names), None)


class Configuration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is configured on an interface; `master` is the name of the link that it is enslaved to."""

    master: str = ""
    addresses: tuple[Address, ...] = ()
    routes: tuple[Route, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    rules: tuple[Rule, ...] = ()
    """Those that choose a table which only this link's routes are in."""
    features: Mapping[str, bool] = {}
    """Those of ethtool that a claim changes; so `private_flags`."""
    private_flags: Mapping[str, bool] = {}


class Interface(Configuration, frozen=True, kw_only=True, omit_defaults=True):
    """A link of the node with all that is configured on it."""

    link: Link
    speed: int = 0
    """In Mbit/s, if it is known. An interface in a pod is published with it."""
    sysctls: Mapping[str, int | str] = {}
    """Those that are not as the node's default, to which the kernel resets them whenever a link is moved."""
    token: str = ""
    """The part of its IPv6 addresses that is not a router's (`ip token`), which the kernel forgets then, too."""
    programs: Programs = Programs()
    """Those that others had attached, which are not put back."""
