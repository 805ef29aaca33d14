"""How an interface is configured: on the node, and so to be put back there. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from pydra_net.hardware_types import Node
from pydra_net.network_types import (
    BY_ADVERTISEMENT,
    BY_KERNEL,
    LINK_SCOPE,
    MAIN_TABLE,
    Address,
    Configuration,
    Interface,
    Link,
    Programs,
    Route,
)

_LOCAL_TABLE = 255
_UNICAST = 1
_KEPT_FLAGS = 0xF12
"""Of addresses, those that somebody chose: no duplicate detection (2), home, temporary ones, no prefix route, ..."""
_TEMPORARY, _NO_PREFIX_ROUTE, _STABLE = 0x1, 0x200, 0x800
_BY_ROUTER, _BY_LINK = 2, 3
"""Protocols of addresses: IFAPROT_KERNEL_RA, IFAPROT_KERNEL_LL."""


class InterfaceState(Configuration, frozen=True, kw_only=True, omit_defaults=True):
    """How an interface is in one place; empty fields are left as they are."""

    name: str
    up: bool = True
    mtu: int = 0
    mac: str = ""
    alias: str = ""
    parameters: Mapping[str, int] = {}
    vrf: str = ""
    vrf_table: int = 0
    without_programs: bool = False
    dhcp: bool = False
    slaac: bool = False
    on_node: bool = False
    """Routes by other interfaces to the same destinations stay."""
    sysctls: Mapping[str, int | str] = {}
    """By names such as `ipv6/conf/accept_ra`. The kernel resets them whenever a link is moved."""
    token: str = ""

    @property
    def is_given_addresses(self) -> bool:
        """Whether somebody gives it an address in the pod."""
        return self.dhcp or self.slaac

    @property
    def later_routes(self) -> tuple[Route, ...]:
        """Those that need the address that it is given."""
        family = 4 if self.dhcp else 6 if self.slaac else 0
        return tuple(one for one in self.routes if one.family == family and (one.gateway or one.source))


def read_interface(node: Node, device: str, link: Link) -> Interface:
    """All that somebody configured on a device's link; what the kernel adds by itself is left out."""
    reading = node.reading
    by_addresses = set(_list_prefixes(reading.addresses.get(link.index, ())))
    routes = tuple(one for one in reading.routes.get(link.index, ()) if _is_configured(one, by_addresses))
    master = reading.find(link.master) if link.master else None
    elsewhere = {one.table for index, found in reading.routes.items() if index != link.index for one in found}
    own_tables = {one.table for one in routes} - elsewhere - {MAIN_TABLE, _LOCAL_TABLE}
    return Interface(
        link=link,
        master=master.name if master else "",
        addresses=tuple(_list_addresses(reading.addresses.get(link.index, ()), link)),
        routes=tuple(sorted(routes, key=by_dependency)),
        neighbours=reading.neighbours.get(link.index, ()),
        rules=tuple(one for one in reading.rules if one.table in own_tables),
        speed=node.speeds.get(link.index, 0),
        programs=node.programs.get(link.index, Programs()),
        sysctls=node.sysctls.get(device, {}),
        token=node.tokens.get(device, ""),
    )


def _list_addresses(found: Sequence[Address], link: Link) -> Iterator[Address]:
    """Yield them in the order in which they were added: the kernel lists those of IPv6 beginning with the newest."""
    for family, ordered in ((4, found), (6, reversed(found))):
        for one in ordered:
            if one.family == family and not _is_automatic(one, link):
                yield replace(one, flags=one.flags & _KEPT_FLAGS)


def _is_automatic(address: Address, link: Link) -> bool:
    if address.family == 4:
        return False
    if address.scope == LINK_SCOPE:  # kernels before 5.18 do not say by whom it is
        by_kernel = address.protocol == _BY_LINK or address.flags & _STABLE
        return bool(by_kernel) or ipaddress.ip_interface(address.address).ip.packed[8:] == _derive(link.mac)
    return bool(address.protocol == _BY_ROUTER or address.flags & _TEMPORARY)


def _derive(mac: str) -> bytes:
    """The part of an address that follows from a MAC address (EUI-64)."""
    own = bytes.fromhex(mac.replace(":", ""))
    return bytes((own[0] ^ 2, *own[1:3], 0xFF, 0xFE, *own[3:])) if len(own) == 6 else b""


def _list_prefixes(addresses: Sequence[Address]) -> Iterator[str]:
    """The destinations of the routes that the kernel makes for addresses; not for those whose owner makes them.

    That to a peer by IPv6 it only makes for a link that is up when it gets the address.
    """
    for one in addresses:
        if not one.flags & _NO_PREFIX_ROUTE:
            yield str(ipaddress.ip_interface((one.family == 4 and one.peer) or one.address).network)


def _is_configured(route: Route, by_addresses: Collection[str]) -> bool:
    """Kernels before 5.11 do not say that they made the route of multicast addresses."""
    if route.protocol == BY_KERNEL:
        made = route.type != _UNICAST or route.table == _LOCAL_TABLE or route.destination in by_addresses
    else:
        made = (route.destination, route.table) == ("ff00::/8", _LOCAL_TABLE)
    return not made and not (route.family == 6 and route.protocol == BY_ADVERTISEMENT)


def by_dependency(route: Route) -> tuple[bool, int, str]:
    """Gateways are reached by routes without one."""
    return bool(route.gateway), route.table, route.destination


def find_state_before(interface: Interface) -> InterfaceState:
    """How it is on the node, to be put back so."""
    link = interface.link
    return InterfaceState(
        name=link.name,
        on_node=True,
        up=link.up,
        mtu=link.mtu,
        mac=link.mac,
        alias=link.alias,
        master=interface.master,
        parameters=link.parameters,
        addresses=interface.addresses,
        routes=interface.routes,
        neighbours=interface.neighbours,
        sysctls=interface.sysctls,
        token=interface.token,
        features=interface.features,
        private_flags=interface.private_flags,
    )
