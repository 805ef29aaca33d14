"""What an interface should be like in a namespace, and what is to be done so that it is. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec.structs import replace

from pydra_net.claim_config import EthtoolConfig, InterfaceConfig, NetworkConfig, RouteConfig, RuleConfig
from pydra_net.dhcp.messages import Lease
from pydra_net.link_parameters import list_changes
from pydra_net.network_types import (
    BY_ADVERTISEMENT,
    BY_KERNEL,
    Address,
    Configuration,
    Interface,
    Link,
    Neighbour,
    Reading,
    Route,
    Rule,
)
from pydra_net.operations import (
    AddAddress,
    AddNeighbour,
    AddRoute,
    AddRule,
    DetachPrograms,
    JoinVrf,
    Operation,
    RemoveAddress,
    RemoveRoute,
    SetEthtool,
    SetLink,
    SetParameter,
    SetSysctls,
)

_LINK_SCOPE = 253
_LOCAL_TABLE, _MAIN_TABLE = 255, 254
_UNICAST = 1
_STATIC, _BY_DHCP = 4, 16
_KEPT_FLAGS = 0xF12
"""Of addresses, those that somebody chose: no duplicate detection (2), home, temporary ones, no prefix route, ..."""
_NO_DETECTION, _NO_PREFIX_ROUTE = 0x2, 0x200
_PERMANENT, _UNUSABLE = 0x80, 0x48
"""Of addresses: somebody set it; it is tentative, or another host has it."""


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
    sysctls: Mapping[str, int] = {}
    """Of IPv6: the kernel resets them whenever a link is moved."""

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
    own_tables = {one.table for one in routes} - elsewhere - {_MAIN_TABLE, _LOCAL_TABLE}
    return Interface(
        link=link,
        master=master.name if master else "",
        addresses=tuple(
            replace(one, flags=one.flags & _KEPT_FLAGS)
            for one in reading.addresses.get(link.index, ())
            if not _is_automatic(one)
        ),
        routes=tuple(sorted(routes, key=_by_dependency)),
        neighbours=reading.neighbours.get(link.index, ()),
        rules=tuple(one for one in reading.rules if one.table in own_tables),
    )


def _is_automatic(address: Address) -> bool:
    is_temporary = address.family == 6 and address.flags & 0x1
    return bool(address.family == 6 and (address.scope == _LINK_SCOPE or address.protocol == 2 or is_temporary))


def _list_prefixes(addresses: Sequence[Address]) -> Iterator[str]:
    """The destinations of the routes that the kernel makes for addresses; not for those whose owner makes them."""
    for one in addresses:
        if not one.flags & _NO_PREFIX_ROUTE:
            yield str(ipaddress.ip_interface(one.peer or one.address).network)


def _is_configured(route: Route, by_addresses: Collection[str]) -> bool:
    made = route.protocol == BY_KERNEL and route.destination in by_addresses
    automatic = made or (route.family == 6 and route.protocol == BY_ADVERTISEMENT)
    return route.type == _UNICAST and route.table != _LOCAL_TABLE and not automatic


def _by_dependency(route: Route) -> tuple[bool, int, str]:
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
        features=interface.features,
        private_flags=interface.private_flags,
    )


def find_state_in_pod(
    interface: Interface, config: NetworkConfig, ethtool: EthtoolConfig | None = None
) -> InterfaceState:
    """How it is in the pod: as it is on the node, with what the claim configures; `ethtool` has the kernel's names.

    Addresses, or DHCP, replace those of the node, and with these the routes, which may need them.
    """
    wanted = config.interface
    keeps = not (wanted.addresses or wanted.uses_dhcp or wanted.addressing == "SLAAC")
    table = wanted.vrf.number if wanted.vrf else 0
    addresses = interface.addresses if keeps else tuple(map(_build_address, wanted.addresses))
    routes = (*(interface.routes if keeps else ()), *map(_build_route, config.routes))
    if table:
        routes = tuple(replace(one, table=table) for one in routes)
    return InterfaceState(
        name=wanted.name or interface.link.name,
        mtu=wanted.mtu or interface.link.mtu,
        mac=(wanted.hardware_addr or interface.link.mac).lower(),
        alias=interface.link.alias,
        parameters=wanted.list_parameters(),
        addresses=tuple(map(_without_detection, addresses)),
        routes=tuple(sorted(routes, key=_by_dependency)),
        neighbours=(
            *interface.neighbours,
            *(Neighbour(destination=one.destination, mac=one.hardware_addr.lower()) for one in config.neighbors),
        ),
        rules=(*(interface.rules if keeps and not table else ()), *map(_build_rule, config.rules)),
        features=ethtool.features if ethtool else {},
        private_flags=ethtool.private_flags if ethtool else {},
        vrf=wanted.vrf.name if wanted.vrf else "",
        vrf_table=table,
        without_programs=bool(wanted.disable_ebpf_programs),
        dhcp=wanted.uses_dhcp,
        slaac=wanted.addressing == "SLAAC",
        sysctls=_list_sysctls(wanted, addresses),
    )


def _list_sysctls(wanted: InterfaceConfig, addresses: Sequence[Address]) -> dict[str, int]:
    """Those of IPv6. To forward is set for a link that uses IPv6, since the kernel may have none."""
    found = wanted.list_sysctls()
    if wanted.forwarding is not None and (found or any(one.family == 6 for one in addresses)):
        found["forwarding"] = int(wanted.forwarding)
    return found


def _without_detection(address: Address) -> Address:
    """Without the detection of duplicates, for which an address of IPv6 could not be used for a second."""
    return replace(address, label="", flags=address.flags | _NO_DETECTION if address.family == 6 else address.flags)


def _build_address(text: str) -> Address:
    return Address(address=str(ipaddress.ip_interface(text)))


def _build_route(config: RouteConfig) -> Route:
    return Route(
        destination=str(ipaddress.ip_network(config.destination)),
        gateway=config.gateway or "",
        source=config.source or "",
        scope=config.scope,
        table=config.table or _MAIN_TABLE,
        protocol=_STATIC,
    )


def _build_rule(config: RuleConfig) -> Rule:
    return Rule(
        family=ipaddress.ip_network(config.source or config.destination or "").version,
        table=config.table,
        priority=config.priority,
        source=config.source or "",
        destination=config.destination or "",
    )


def plan_changes(wanted: InterfaceState, link: Link, reading: Reading) -> tuple[Operation, ...]:
    """What makes the link as it should be. What is there beside that stays.

    Addresses come before the link is up, so that they are there when it is, and routes afterwards: they need it. What
    restarts the hardware is set while it is down, and a VRF is joined before there are addresses: IPv6 would
    lose them.
    """
    return (
        *_plan_link(wanted, link, reading),
        *_plan_addresses(wanted, link, reading),
        *((SetLink(index=link.index, up=wanted.up),) if wanted.up != link.up or _is_new(wanted, link) else ()),
        *(_plan_routes(wanted, link, reading) if wanted.up else ()),
        *_plan_neighbours_and_rules(wanted, link, reading),
    )


def _is_new(wanted: InterfaceState, link: Link) -> bool:
    """Whether it gets another MAC address, for which it is down meanwhile: many drivers change it only then."""
    return bool(wanted.mac) and wanted.mac != link.mac


def _plan_link(wanted: InterfaceState, link: Link, reading: Reading) -> Iterator[Operation]:
    index = link.index
    mac = wanted.mac if _is_new(wanted, link) else None
    if mac and link.up:
        yield SetLink(index=index, up=False)
    if wanted.name != link.name:
        yield SetLink(index=index, name=wanted.name)
    mtu = wanted.mtu if wanted.mtu and wanted.mtu != link.mtu else None
    alias = wanted.alias if wanted.alias != link.alias else None
    if (mac, mtu, alias) != (None, None, None):
        yield SetLink(index=index, mac=mac, mtu=mtu, alias=alias)
    for name, value in list_changes(wanted.parameters, link.parameters):
        yield SetParameter(index=index, name=name, value=value)
    if wanted.sysctls:
        yield SetSysctls(index=index, values=wanted.sysctls)
    if wanted.without_programs:
        yield DetachPrograms(index=index)
    if wanted.features or wanted.private_flags:
        yield SetEthtool(index=index, features=wanted.features, private_flags=wanted.private_flags)
    master = reading.find_name(wanted.master) if wanted.master else None
    if master and link.master != master.index:
        yield SetLink(index=index, master=master.index)
    if wanted.vrf:
        yield JoinVrf(index=index, name=wanted.vrf, table=wanted.vrf_table)


def _plan_addresses(wanted: InterfaceState, link: Link, reading: Reading) -> Iterator[Operation]:
    present = {one.address for one in reading.addresses.get(link.index, ())}
    for address in wanted.addresses:
        if address.address not in present:
            yield AddAddress(index=link.index, address=address)


def _plan_routes(wanted: InterfaceState, link: Link, reading: Reading) -> Iterator[Operation]:
    present = set(map(_identify, reading.routes.get(link.index, ())))
    for route in wanted.routes:
        if _identify(route) not in present and route not in wanted.later_routes:
            yield AddRoute(index=link.index, route=route)


def _plan_neighbours_and_rules(wanted: InterfaceState, link: Link, reading: Reading) -> Iterator[Operation]:
    for neighbour in wanted.neighbours:
        if neighbour not in reading.neighbours.get(link.index, ()):
            yield AddNeighbour(index=link.index, neighbour=neighbour)
    for rule in wanted.rules:
        if rule not in reading.rules:
            yield AddRule(rule=rule)


def plan_lease(wanted: InterfaceState, lease: Lease | None, link: Link, reading: Reading) -> tuple[Operation, ...]:
    """What makes the link have the address that DHCP gave it, with the routes that need it, and no others of DHCP.

    A default route is taken into a VRF only: in the main table the pod has one. Nor does a server replace what the
    claim configures, or the pod has by another interface.
    """
    index = link.index
    present = tuple(one for one in reading.addresses.get(index, ()) if one.family == 4)
    if lease is None:
        return tuple(RemoveAddress(index=index, address=one) for one in present)
    routes = tuple(
        Route(
            destination=destination,
            gateway=gateway,
            scope=0 if gateway else _LINK_SCOPE,
            table=wanted.vrf_table or _MAIN_TABLE,
            protocol=_BY_DHCP,
        )
        for destination, gateway in lease.routes
    )
    others = [one for other, found in reading.routes.items() if other != index for one in found]
    places = set(map(_place, (*others, *wanted.routes)))
    taken = [one for one in routes if (wanted.vrf or not one.is_default) and _place(one) not in places]
    added = sorted((*taken, *wanted.later_routes), key=_by_dependency)
    kept = set(map(_place, added))
    earlier = [one for one in reading.routes.get(index, ()) if one.family == 4 and one.protocol == _BY_DHCP]
    return (
        *(RemoveRoute(index=index, route=one) for one in earlier if _place(one) not in kept),
        *(RemoveAddress(index=index, address=one) for one in present if one.address != lease.address),
        AddAddress(index=index, address=Address(address=lease.address, valid=lease.seconds, preferred=lease.seconds)),
        *(AddRoute(index=index, route=one) for one in added),
    )


def _place(route: Route) -> tuple[str, int, int]:
    """What the kernel has one route for."""
    return route.destination, route.table, route.priority


def plan_given(wanted: InterfaceState, lease: Lease | None, link: Link, _reading: Reading) -> tuple[Operation, ...]:
    """The routes that need the address that a router has given to the link."""
    return tuple(AddRoute(index=link.index, route=one) for one in wanted.later_routes) if lease else ()


def find_given(link: Link, reading: Reading) -> Address | None:
    """The address that a router has given to the link, once it can be used."""
    for one in reading.addresses.get(link.index, ()):
        if one.family == 6 and one.scope == 0 and not one.flags & (_PERMANENT | _UNUSABLE):
            return one
    return None


def _identify(route: Route) -> tuple[str, str, int, int]:
    return route.destination, route.gateway, route.table, route.priority
