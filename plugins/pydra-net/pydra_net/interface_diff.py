"""What is to be done so that an interface is as it should be, and has the address that it was given. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from pydra_net.dhcp.messages import Lease
from pydra_net.interface_state import InterfaceState, by_dependency
from pydra_net.link_parameters import DISABLE_IPV6, FOR_TOKENS, list_changes
from pydra_net.network_change_types import (
    Add,
    DetachPrograms,
    JoinVrf,
    Operation,
    Remove,
    SetEthtool,
    SetLink,
    SetParameter,
    SetSysctls,
    SetToken,
)
from pydra_net.network_types import FOREVER, LINK_SCOPE, MAIN_TABLE, Address, Link, Reading, Route

_BY_DHCP = 16
"""Protocol of routes and addresses: RTPROT_DHCP."""
_LOOPBACK = 1
"""The index of the loopback interface, in every namespace."""
_PERMANENT, _UNUSABLE = 0x80, 0x48
"""Of addresses: somebody set it; it is tentative, or another host has it."""


def plan_changes(wanted: InterfaceState, link: Link, reading: Reading) -> tuple[Operation, ...]:
    """What makes the link as it should be. What is there beside that stays.

    Addresses come before the link is up, so that they are there when it is, and routes afterwards: they need it. What
    restarts the hardware is set while it is down, and a VRF is joined before there are addresses: IPv6 would
    lose them.
    """
    restarts = link.up and _must_restart(wanted, link)
    present = Reading() if restarts else reading
    return (
        # Many drivers change the MAC address only of a link that is down, and kernels before 6.2 the name.
        *((SetLink(index=link.index, up=False),) if restarts else ()),
        *_plan_link(wanted, link, reading),
        *_plan_addresses(wanted, link, present),
        *((SetLink(index=link.index, up=wanted.up),) if wanted.up != (link.up and not restarts) else ()),
        *(_plan_routes(wanted, link, present) if wanted.up else ()),
        *_plan_neighbours_and_rules(wanted, link, present),
    )


def plan_rest(wanted: InterfaceState, link: Link, reading: Reading) -> tuple[Operation, ...]:
    """What may be missing of an interface that is up in its pod; the rest came before, and the pod may change it."""
    return (*_plan_routes(wanted, link, reading), *_plan_neighbours_and_rules(wanted, link, reading))


def _must_restart(wanted: InterfaceState, link: Link) -> bool:
    """Whether what it gets is set of a link that is down."""
    return wanted.name != link.name or _is_new(wanted, link)


def _is_new(wanted: InterfaceState, link: Link) -> bool:
    """Whether it gets another MAC address."""
    return bool(wanted.mac) and wanted.mac != link.mac


def _plan_link(wanted: InterfaceState, link: Link, reading: Reading) -> Iterator[Operation]:
    index = link.index
    mac = wanted.mac if _is_new(wanted, link) else None
    if wanted.name != link.name:
        yield SetLink(index=index, name=wanted.name)
    mtu = wanted.mtu if wanted.mtu and wanted.mtu != link.mtu else None
    alias = wanted.alias if wanted.alias != link.alias else None
    if (mac, mtu, alias) != (None, None, None):
        yield SetLink(index=index, mac=mac, mtu=mtu, alias=alias)
    for name, value in list_changes(wanted.parameters, link.parameters):
        yield SetParameter(index=index, name=name, value=value)
    if wanted.token and not (link.up and not _must_restart(wanted, link)):  # else the kernel ends the addresses with it
        yield SetSysctls(index=index, values=FOR_TOKENS)
        yield SetToken(index=index, token=wanted.token)
    if wanted.sysctls.get(DISABLE_IPV6) == 0 and not wanted.on_node:
        yield SetSysctls(index=_LOOPBACK, values={DISABLE_IPV6: 0})  # else the pod cannot reach its own address
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
            yield Add(index=link.index, item=address)


def _plan_routes(wanted: InterfaceState, link: Link, reading: Reading) -> Iterator[Operation]:
    present = set(map(_identify, reading.routes.get(link.index, ())))
    for route in wanted.routes:
        if _identify(route) not in present and route not in wanted.later_routes:
            yield Add(index=link.index, item=route, beside=wanted.on_node)


def _plan_neighbours_and_rules(wanted: InterfaceState, link: Link, reading: Reading) -> Iterator[Operation]:
    for neighbour in wanted.neighbours:
        if neighbour not in reading.neighbours.get(link.index, ()):
            yield Add(index=link.index, item=neighbour)
    for rule in wanted.rules:
        if rule not in reading.rules:
            yield Add(item=rule)


def plan_lease(
    wanted: InterfaceState, lease: Lease | None, earlier: Lease | None, link: Link, reading: Reading
) -> tuple[Operation, ...]:
    """What makes the link have the address that DHCP gave it, instead of the earlier one, and the routes that need it.

    A default route is taken into a VRF only: in the main table the pod has one. Nor does a server replace what the
    claim configures, or the pod has by another interface.
    """
    index = link.index
    ended = [
        Remove(index=index, item=one)
        for one in reading.addresses.get(index, ())
        if earlier and one.address == earlier.address and (lease is None or lease.address != earlier.address)
    ]
    if lease is None:
        return tuple(ended)
    routes = tuple(
        Route(
            destination=destination,
            gateway=gateway,
            scope=0 if gateway else LINK_SCOPE,
            table=wanted.vrf_table or MAIN_TABLE,
            protocol=_BY_DHCP,
        )
        for destination, gateway in lease.routes
    )
    others = [one for other, found in reading.routes.items() if other != index for one in found]
    places = set(map(_place, (*others, *wanted.routes)))
    taken = [one for one in routes if (wanted.vrf or not one.is_default) and _place(one) not in places]
    added = sorted((*taken, *wanted.later_routes), key=by_dependency)
    kept = set(map(_place, added))
    present = [one for one in reading.routes.get(index, ()) if one.family == 4 and one.protocol == _BY_DHCP]
    return (
        *(Remove(index=index, item=one) for one in present if _place(one) not in kept),
        *ended,
        Add(
            index=index,
            item=Address(address=lease.address, valid=lease.seconds, preferred=lease.seconds, protocol=_BY_DHCP),
        ),
        *(Add(index=index, item=one) for one in added),
    )


def _place(route: Route) -> tuple[str, int, int]:
    """What the kernel has one route for."""
    return route.destination, route.table, route.priority


def find_leased(link: Link, reading: Reading) -> Address | None:
    """The address that `plan_lease` has given to the link: the pod may have set others."""
    present = [one for one in reading.addresses.get(link.index, ()) if one.family == 4]
    # Kernels before 5.18 do not say by whom an address is; what has no end is rarely a lease.
    marked = [one for one in present if one.protocol == _BY_DHCP]
    return next(iter(marked or [one for one in present if one.valid != FOREVER and not one.protocol]), None)


def plan_given(wanted: InterfaceState, lease: Lease | None, link: Link) -> tuple[Operation, ...]:
    """The routes that need the address that a router has given to the link."""
    return tuple(Add(index=link.index, item=one) for one in wanted.later_routes) if lease else ()


def find_given(link: Link, reading: Reading) -> Address | None:
    """The address that a router has given to the link, once it can be used."""
    for one in reading.addresses.get(link.index, ()):
        if one.family == 6 and one.scope == 0 and not one.flags & (_PERMANENT | _UNUSABLE):
            return one
    return None


def _identify(route: Route) -> tuple[str, str, int, int]:
    return route.destination, route.gateway, route.table, route.priority
