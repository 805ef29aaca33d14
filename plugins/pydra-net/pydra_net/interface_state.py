"""How an interface is configured: on the node, and so to be put back there. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from pydra_net.network_types import (
    BY_ADVERTISEMENT,
    BY_KERNEL,
    LINK_SCOPE,
    MAIN_TABLE,
    Address,
    Configuration,
    Interface,
    Link,
    Reading,
    Route,
)

_LOCAL_TABLE = 255
_UNICAST = 1
_KEPT_FLAGS = 0xF12
"""Of addresses, those that somebody chose: no duplicate detection (2), home, temporary ones, no prefix route, ..."""
_NO_PREFIX_ROUTE = 0x200


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
    sysctls: Mapping[str, int | str] = {}
    """By names such as `ipv6/conf/accept_ra`. The kernel resets them whenever a link is moved."""

    @property
    def is_given_addresses(self) -> bool:
        """Whether somebody gives it an address in the pod."""
        return self.dhcp or self.slaac

    @property
    def later_routes(self) -> tuple[Route, ...]:
        """Those that need the address that it is given."""
        family = 4 if self.dhcp else 6 if self.slaac else 0
        return tuple(one for one in self.routes if one.family == family and (one.gateway or one.source))


def read_interface(reading: Reading, link: Link) -> Interface:
    """All that somebody configured on the link; what the kernel adds by itself is left out."""
    by_addresses = set(_list_prefixes(reading.addresses.get(link.index, ())))
    routes = tuple(one for one in reading.routes.get(link.index, ()) if _is_configured(one, by_addresses))
    master = reading.find(link.master) if link.master else None
    elsewhere = {one.table for index, found in reading.routes.items() if index != link.index for one in found}
    own_tables = {one.table for one in routes} - elsewhere - {MAIN_TABLE, _LOCAL_TABLE}
    return Interface(
        link=link,
        master=master.name if master else "",
        addresses=tuple(
            replace(one, flags=one.flags & _KEPT_FLAGS)
            for one in reading.addresses.get(link.index, ())
            if not _is_automatic(one)
        ),
        routes=tuple(sorted(routes, key=by_dependency)),
        neighbours=reading.neighbours.get(link.index, ()),
        rules=tuple(one for one in reading.rules if one.table in own_tables),
    )


def _is_automatic(address: Address) -> bool:
    is_temporary = address.family == 6 and address.flags & 0x1
    return bool(address.family == 6 and (address.scope == LINK_SCOPE or address.protocol == 2 or is_temporary))


def _list_prefixes(addresses: Sequence[Address]) -> Iterator[str]:
    """The destinations of the routes that the kernel makes for addresses; not for those whose owner makes them."""
    for one in addresses:
        if not one.flags & _NO_PREFIX_ROUTE:
            yield str(ipaddress.ip_interface(one.peer or one.address).network)


def _is_configured(route: Route, by_addresses: Collection[str]) -> bool:
    made = route.protocol == BY_KERNEL and route.destination in by_addresses
    automatic = made or (route.family == 6 and route.protocol == BY_ADVERTISEMENT)
    return route.type == _UNICAST and route.table != _LOCAL_TABLE and not automatic


def by_dependency(route: Route) -> tuple[bool, int, str]:
    """Gateways are reached by routes without one."""
    return bool(route.gateway), route.table, route.destination


def find_state_before(interface: Interface) -> InterfaceState:
    """How it is on the node, to be put back so."""
    link = interface.link
    return InterfaceState(
        name=link.name,
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
        features=interface.features,
        private_flags=interface.private_flags,
    )
