"""What claims and DeviceClasses may configure: the form of DRANET, and its names.

    interface: {name: net1, addresses: [10.0.0.5/24], mtu: 9000}
    routes: [{destination: 10.9.0.0/16, gateway: 10.0.0.1}]

Decoded strictly, in the backend and in the webhook alike. Source: kubernetes-sigs/dranet, its NetworkConfig.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Annotated, Literal, TypeVar

import msgspec

from pydra_net.link_parameters import IPV4, IPV6, SIZES
from pydra_net.network_types import LEAST_MTU_OF_IPV6, MAIN_TABLE, IpInterface, is_of_host

ParsedT = TypeVar("ParsedT")

GROUP_VERSION = "net.pydra.dev/v1alpha1"

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,15}$")]
Cidr = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Fa-f:.]{2,45}/[0-9]{1,3}$")]
Ip = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Fa-f:.]{2,45}$")]
Mac = Annotated[str, msgspec.Meta(pattern=r"^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$")]
Table = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]

Count = Annotated[int, msgspec.Meta(ge=0, le=3600)]

Size = Annotated[int, msgspec.Meta(ge=1, le=524280)]

EthtoolName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_+./ -]{1,32}$")]

_KERNELS_NAMES = (".", "..", "lo", "all", "default")
"""Those of sysctls of all links and of new ones, and of the loopback interface, included."""
_OWN_TABLES = (253, 254, 255)
_FIRST_TABLE = 1000
_MAC = re.compile(r"(?!00:00:00:00:00:00)[0-9a-f][02468ace]:.*")


class MacvlanConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A macvlan interface: whether it reaches others on the same interface (bridge), by the switch (vepa), or not."""

    mode: Literal["bridge", "private", "vepa"] = "bridge"


class IpvlanConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """An ipvlan interface; on one interface all have the same mode."""

    mode: Literal["l2", "l3", "l3s", "L2"] = "l2"
    flag: Literal["bridge", "Bridge"] = "bridge"


class VlanConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A VLAN interface. A VLAN is used once on each interface."""

    id: Annotated[int, msgspec.Meta(ge=1, le=4094)]


class VfConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """What the card does with a virtual function. Names are those of the SR-IOV network operator."""

    vlan: Annotated[int, msgspec.Meta(ge=0, le=4094)] | None = None
    """The VLAN that it is in, and does not see; 0 for none."""
    vlan_qos: Annotated[int, msgspec.Meta(ge=0, le=7)] | None = msgspec.field(default=None, name="vlanQoS")
    """The priority of its packets in the VLAN."""
    min_tx_rate: Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)] | None = None
    """The rate at which it can send in any case, in Mbit/s."""
    max_tx_rate: Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)] | None = None
    """The rate at which it can send at most, in Mbit/s; 0 for any."""
    spoof_chk: bool | None = None
    """Whether packets from other MAC addresses than its own are dropped."""
    trust: bool | None = None
    """Whether the pod can change its MAC address, and receive packets for others."""
    link_state: Literal["auto", "enable", "disable"] | None = None
    """Whether it has carrier as the card (auto), always, or never."""

    def __post_init__(self) -> None:
        """Refuse what the card would refuse."""
        if self.vlan_qos and not self.vlan:
            raise ValueError("vlanQoS: needs a vlan")
        if self.min_tx_rate and self.max_tx_rate and self.min_tx_rate > self.max_tx_rate:
            raise ValueError(f"minTxRate: found {self.min_tx_rate}, which is more than maxTxRate, {self.max_tx_rate}")


LINK_STATES = ("auto", "enable", "disable")
"""By the numbers of the kernel."""


def _check_name(name: str | None) -> None:
    """Refuse the name of an interface that the kernel refuses. Raises ValueError."""
    if name in _KERNELS_NAMES:
        raise ValueError(f"name: found {name}, which the kernel refuses; choose another")


class VrfConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A VRF of the pod: its interfaces have a routing table of their own."""

    name: Name
    table: Annotated[int, msgspec.Meta(ge=1, le=0xFFFFFFFF)] | None = None
    """Without one, a number from 1000 to 1999 that only depends on the name."""

    def __post_init__(self) -> None:
        """Refuse names and tables that the kernel needs."""
        _check_name(self.name)
        if self.table in _OWN_TABLES:
            raise ValueError(f"table: found {self.table}, which is one of the kernel's own (253 to 255)")

    @property
    def number(self) -> int:
        """Its routing table."""
        return self.table or _FIRST_TABLE + _hash(self.name) % _FIRST_TABLE


class InterfaceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The interface in the pod."""

    name: Name | None = None
    """Its name in the pod; without one, as on the node."""
    type: Literal["passthrough", "macvlan", "ipvlan", "vlan", "Passthrough", "IPVLAN"] | None = None
    """The interface itself (passthrough), or one that is made on it; without one, macvlan for a share."""
    macvlan: MacvlanConfig | None = None
    """For type macvlan."""
    ipvlan: IpvlanConfig | None = None
    """For type ipvlan."""
    vlan: VlanConfig | None = None
    """For type vlan."""
    addressing: Literal["Static", "DHCP", "SLAAC", "Unnumbered"] | None = None
    """Where its addresses come from: the configuration or the node, a DHCP server, a router by IPv6, or nowhere (for
    virtual ones)."""
    addresses: Annotated[tuple[Cidr, ...], msgspec.Meta(max_length=64)] = ()
    """Its addresses in the pod, instead of those that it has on the node."""
    dhcp: bool | None = None
    """The same as addressing DHCP: it gets an IPv4 address from a DHCP server of its network, and keeps it."""
    mtu: Annotated[int, msgspec.Meta(ge=68, le=65535)] | None = None
    """Its MTU in the pod."""
    hardware_addr: Mac | None = None
    """Its MAC address in the pod."""
    gso_max_size: Size | None = None
    """The most bytes of a segment that the stack gives it, to be cut by the hardware."""
    gro_max_size: Size | None = None
    """The most bytes that received packets are joined to."""
    gso_ipv4_max_size: Size | None = msgspec.field(default=None, name="gsoIPv4MaxSize")
    """The same for IPv4, if it is larger than 64 KiB."""
    gro_ipv4_max_size: Size | None = msgspec.field(default=None, name="groIPv4MaxSize")
    """The same for IPv4, if it is larger than 64 KiB."""
    forwarding: bool | None = None
    """Whether packets that arrive by it are forwarded: of IPv4, and of IPv6 if it has such an address."""
    arp_ignore: Literal[0, 1, 2, 3, 8] | None = None
    """Which ARP requests it answers, as the sysctl says it."""
    arp_announce: Literal[0, 1, 2] | None = None
    """Which of its addresses ARP requests announce, as the sysctl says it."""
    accept_ra: Literal[0, 1, 2] | None = msgspec.field(default=None, name="acceptRA")
    """Whether it takes addresses and routes from router advertisements of IPv6, as the sysctl says it."""
    dad_transmits: Count | None = msgspec.field(default=None, name="dadTransmits")
    """How often it asks whether somebody has its IPv6 address."""
    router_solicitation_delay: Count | None = None
    """Seconds until it asks for routers."""
    router_solicitation_interval: Annotated[int, msgspec.Meta(ge=1, le=3600)] | None = None
    """Seconds until it asks for them again."""
    disable_ipv6: bool | None = msgspec.field(default=None, name="disableIPv6")
    """Whether it has no IPv6."""
    addr_gen_mode: Literal[0, 1, 3] | None = None
    """How its IPv6 addresses are made, as the sysctl says it."""
    disable_ebpf_programs: bool | None = None
    """Whether eBPF programs (tc, tcx, XDP) are detached from it; they are not put back when it is on the node again."""
    vrf: VrfConfig | None = None
    """The VRF of the pod that it is in."""
    vf: VfConfig | None = None
    """For a virtual function: what its card does with it."""

    def __post_init__(self) -> None:
        """Refuse names, types and addresses that the kernel would refuse."""
        self._check_type()
        _check_name(self.name)
        if self.vrf is not None and self.vrf.name == self.name:
            raise ValueError(f"vrf.name: found {self.name}, which is the name of the interface itself")
        self._check_addresses()

    def _check_type(self) -> None:
        if self.vf is not None and self.type not in (None, "passthrough"):
            raise ValueError(f"vf: cannot be set with type {self.type}, which is an interface on one of the node")
        for kind in ("macvlan", "ipvlan", "vlan"):
            if getattr(self, kind) is not None and self.kind != kind:
                raise ValueError(f"{kind}: needs type {kind}")
        if self.kind == "vlan" and self.vlan is None:
            raise ValueError("vlan: is required with type vlan, such as {id: 100}")
        if self.kind == "ipvlan" and self.hardware_addr is not None:
            raise ValueError("hardwareAddr: cannot be set with type ipvlan, which has that of the node's interface")

    def _check_addresses(self) -> None:
        if self.dhcp and self.addressing not in (None, "DHCP"):
            raise ValueError(f"dhcp: excludes addressing {self.addressing}; remove one of both")
        if self.addresses and (self.uses_dhcp or self.addressing in ("SLAAC", "Unnumbered")):
            raise ValueError(f"addresses: excludes {'dhcp' if self.dhcp else f'addressing {self.addressing}'}")
        if self.hardware_addr is not None and not _MAC.fullmatch(self.hardware_addr.lower()):
            raise ValueError(f'hardwareAddr: found "{self.hardware_addr}", which no interface can have')
        mode = self.ipvlan.mode.lower() if self.ipvlan else ""
        if mode.startswith("l3") and (self.uses_dhcp or self.addressing == "SLAAC"):
            raise ValueError(
                f"ipvlan.mode: found {mode}, by which no broadcast reaches a DHCP server or router; use l2"
            )
        for place, address in enumerate(self.addresses):
            _check_host(f"addresses[{place}]", address)

    @property
    def kind(self) -> str:
        """Its type as the kernel calls it; empty if there is none."""
        return (self.type or "").lower()

    @property
    def uses_dhcp(self) -> bool:
        """Whether its address comes from a DHCP server."""
        return bool(self.dhcp) or self.addressing == "DHCP"

    def list_parameters(self) -> dict[str, int]:
        """Those of `link_parameters` that are configured."""
        return self._list_numbers((*SIZES, *IPV4))

    def list_sysctls(self) -> dict[str, int]:
        """Those of IPv6 that are configured, or needed to be given an address by a router soon, by their names."""
        if self.addressing != "SLAAC":
            return self._list_numbers(IPV6)
        needed = {"disable_ipv6": 0, "accept_ra": 2 if self.forwarding else 1}
        if self.kind == "ipvlan":  # all on one interface have its MAC address
            needed["addr_gen_mode"] = 3
        needed |= {"router_solicitation_delay": 0, "router_solicitation_interval": 1}
        return needed | self._list_numbers(IPV6)

    def _list_numbers(self, names: Iterable[str]) -> dict[str, int]:
        found = {name: getattr(self, name, None) for name in names}
        return {name: int(value) for name, value in found.items() if value is not None}


class RouteConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A route by the interface; `scope` 0 (with a gateway) or 253 (without)."""

    destination: Cidr
    gateway: Ip | None = None
    source: Ip | None = None
    scope: Literal[0, 253] = 0
    table: Table = 0
    """0: the main table."""

    def __post_init__(self) -> None:
        """Refuse routes that the kernel would refuse."""
        network = _check("destination", self.destination, ipaddress.ip_network)
        for name, address in (("gateway", self.gateway), ("source", self.source)):
            if address is not None and _check_host(name, address).version != network.version:
                raise ValueError(f'{name}: found "{address}", which is not of the family of {self.destination}')
        if self.gateway is None and self.scope == 0:
            raise ValueError("gateway: is required, unless scope is 253")
        if self.gateway is not None and self.scope:
            raise ValueError("gateway: excludes scope 253, which is for networks of the interface itself")


class RuleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A rule that chooses a table by the source or destination of packets."""

    priority: Annotated[int, msgspec.Meta(ge=0, le=32767)] = 0
    source: Cidr | None = None
    destination: Cidr | None = None
    table: Annotated[int, msgspec.Meta(ge=1, le=0xFFFFFFFF)]

    def __post_init__(self) -> None:
        """Refuse rules that the kernel would refuse."""
        named = (("source", self.source), ("destination", self.destination))
        families = {_check(name, one, ipaddress.ip_network).version for name, one in named if one is not None}
        if len(families) != 1:
            raise ValueError("source, destination: one is required, and both must be of one family")


class NeighborConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A permanent neighbour."""

    destination: Ip
    hardware_addr: Mac

    def __post_init__(self) -> None:
        """Refuse addresses that are none."""
        _check("destination", self.destination, ipaddress.ip_address)


class EthtoolConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Settings of the interface's hardware, by the names of `ethtool -k` and `ethtool --show-priv-flags`."""

    features: Annotated[dict[EthtoolName, bool], msgspec.Meta(max_length=64)] = {}
    private_flags: Annotated[dict[EthtoolName, bool], msgspec.Meta(max_length=32)] = {}


class NetworkConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How an interface is in the pod."""

    interface: InterfaceConfig = InterfaceConfig()
    routes: Annotated[tuple[RouteConfig, ...], msgspec.Meta(max_length=256)] = ()
    """Beside those that it has on the node, unless its addresses are replaced."""
    rules: Annotated[tuple[RuleConfig, ...], msgspec.Meta(max_length=256)] = ()
    neighbors: Annotated[tuple[NeighborConfig, ...], msgspec.Meta(max_length=256)] = ()
    ethtool: EthtoolConfig | None = None
    """Put back when the interface is on the node again."""

    def __post_init__(self) -> None:
        """Refuse what excludes each other."""
        if self.interface.vrf is not None and self.rules:
            raise ValueError("rules: cannot be set with interface.vrf, which chooses the table")
        if (why := self._find_no_ipv6()) and (found := list(self._list_ipv6())):
            raise ValueError(f'interface.{why}, but also "{found[0]}", which is of IPv6')
        if self.ethtool is not None and self.interface.kind not in ("", "passthrough"):
            raise ValueError(f"ethtool: cannot be set with interface.type {self.interface.type}, which has no hardware")
        in_vrf = self.interface.vrf is not None
        places = [(ipaddress.ip_network(one.destination), in_vrf or one.table or MAIN_TABLE) for one in self.routes]
        _check_once("routes", self.routes, places)
        _check_once("neighbors", self.neighbors, [ipaddress.ip_address(one.destination) for one in self.neighbors])
        on_link = [one.destination for one in self.routes if one.gateway is None]
        addresses = self.interface.addresses  # else those of the node, or given ones
        if addresses and (problem := find_gateway_problem(self.routes, addresses, on_link)):
            raise ValueError(problem)

    def _find_no_ipv6(self) -> str:
        mtu = self.interface.mtu
        if mtu is not None and mtu < LEAST_MTU_OF_IPV6:
            return f"mtu: found {mtu}, less than the {LEAST_MTU_OF_IPV6} that IPv6 needs"
        return "disableIPv6: found true" if self.interface.disable_ipv6 else ""

    def _list_ipv6(self) -> Iterator[str]:
        """Yield what needs IPv6."""
        if self.interface.addressing == "SLAAC":
            yield "SLAAC"
        routes, neighbors = ([one.destination for one in items] for items in (self.routes, self.neighbors))
        yield from (one for one in (*self.interface.addresses, *routes, *neighbors) if ":" in one)


CONFIG_TYPES: dict[str, type] = {"": NetworkConfig, f"{GROUP_VERSION}/NetworkConfig": NetworkConfig}
"""DRANET's configurations have neither apiVersion nor kind."""


def find_gateway_problem(
    routes: Sequence[RouteConfig], addresses: Iterable[str], on_link: Iterable[str], given: Collection[int] = ()
) -> str:
    """Return why a gateway cannot be reached, or empty.

    The interface has these `addresses`, routes without a gateway to the networks `on_link`, and is `given` addresses of
    these families, whose networks are not known yet.
    """
    own = [ipaddress.ip_interface(one) for one in addresses]
    networks = [*(one.network for one in own), *map(ipaddress.ip_network, on_link)]
    for place, route in enumerate(routes):
        gateway = ipaddress.ip_address(route.gateway) if route.gateway else None
        if gateway is None or gateway.version in given or gateway.is_link_local:
            continue
        near = [one.network for one in own if gateway in one.network]  # routes bring no address for broadcasts
        problem = ""
        if not any(gateway in one for one in networks):
            found = ", ".join(map(str, networks)) or "it has no address"
            problem = f"is in no network of the interface ({found}); add an address, or a route with scope 253"
        elif any(gateway == one.ip for one in own):
            problem = "is the address of the interface itself; name that of a router"
        elif not all(is_of_host(ipaddress.ip_interface(f"{gateway}/{one.prefixlen}")) for one in near):
            problem = f"no host of {near[0]} can have; name that of a router"
        if problem:
            return f"routes[{place}].gateway: found {gateway}, which {problem}"
    return ""


def get_field_name(parameter: str) -> str:
    """The name in a claim of an interface's parameter."""
    return next(one.encode_name for one in msgspec.structs.fields(InterfaceConfig) if one.name == parameter)


def _hash(text: str) -> int:
    """FNV-1a with 32 bits, as DRANET chooses the table of a VRF."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def _check(name: str, text: str, parse: Callable[[str], ParsedT]) -> ParsedT:
    """The parsed text. Raises ValueError with the field's name."""
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f'{name}: found "{text}": {error}') from error


def _check_host(name: str, text: str) -> IpInterface:
    """The parsed address. Raises ValueError with the field's name if no host can have it."""
    found = _check(name, text, ipaddress.ip_interface)
    if not is_of_host(found):
        raise ValueError(f'{name}: found "{text}", which no host can have as its address')
    return found


def _check_once(name: str, items: Sequence[object], places: Sequence[object]) -> None:
    """Raise ValueError for an item that would replace another one in the same place."""
    known: dict[object, int] = {}
    for number, (item, place) in enumerate(zip(items, places, strict=True)):
        if items[first := known.setdefault(place, number)] != item:
            raise ValueError(
                f"{name}[{number}]: found another {name}[{first}] before it, which it would replace; remove one of both"
            )
