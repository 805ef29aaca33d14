"""Messages about addresses, routes, neighbours and rules by hand: pyroute2 needs half a millisecond for each.

Source: rtnetlink(7), linux/if_addr.h, linux/rtnetlink.h, linux/neighbour.h, linux/fib_rules.h.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from pydra_net.netlink import rtnetlink_constants as rt
from pydra_net.netlink.link_messages import pack_mac
from pydra_net.netlink.messages import APPEND, CREATE, REPLACE, change, pack, pack_number
from pydra_net.network_change_types import Add, Remove
from pydra_net.network_types import FOREVER, Address, Neighbour, Route, Rule

_NEW_ADDRESS, _DEL_ADDRESS, _NEW_ROUTE, _DEL_ROUTE, _NEW_NEIGHBOUR, _NEW_RULE = 20, 21, 24, 25, 28, 32
_FAMILIES = {version: family for family, version in rt.VERSIONS.items()}

_METRICS_BY_NAME = {name: number for number, (name, _) in rt.METRICS.items()}

Attributes: TypeAlias = dict[int, bytes]


def add(operation: Add) -> None:
    """Add to a link, in place of what is there for the same destination or address. Raises KernelRefused.

    A rule, or a route beside others, is added only if there is none like it; else the error is `taken`.
    """
    kind, flags, pack_item = _ADDED[type(operation.item)]
    change(kind, APPEND if operation.beside else flags, pack_item(operation.index, operation.item))


def remove(operation: Remove) -> None:
    """Remove from a link. Raises KernelRefused."""
    if isinstance(operation.item, Route):
        change(_DEL_ROUTE, 0, _pack_route(operation.index, operation.item))
        return
    interface = ipaddress.ip_interface(operation.item.address)
    own = pack({rt.IFA_LOCAL if interface.version == 4 else rt.IFA_ADDRESS: interface.ip.packed})
    change(_DEL_ADDRESS, 0, _pack_place(operation.index, interface, 0) + own)


def _pack_address(index: int, one: Address) -> bytes:
    interface = ipaddress.ip_interface(one.address)
    own = interface.ip.packed
    peer = ipaddress.ip_interface(one.peer).ip.packed if one.peer else own
    attributes: Attributes = {rt.IFA_ADDRESS: peer}
    if interface.version == 4 or one.peer:
        attributes[rt.IFA_LOCAL] = own
    if one.broadcast:
        attributes[rt.IFA_BROADCAST] = ipaddress.ip_address(one.broadcast).packed
    if one.label:
        attributes[rt.IFA_LABEL] = one.label.encode() + b"\0"
    if one.flags:
        attributes[rt.IFA_FLAGS] = pack_number(one.flags)
    if one.metric:
        attributes[rt.IFA_RT_PRIORITY] = pack_number(one.metric)
    if one.protocol:
        attributes[rt.IFA_PROTO] = bytes([one.protocol])
    if (one.valid, one.preferred) != (FOREVER, FOREVER):
        attributes[rt.IFA_CACHEINFO] = struct.pack("=IIII", one.preferred, one.valid, 0, 0)
    return _pack_place(index, interface, one.scope) + pack(attributes)


def _pack_place(index: int, one: ipaddress.IPv4Interface | ipaddress.IPv6Interface, scope: int) -> bytes:
    return rt.IFADDRMSG.pack(_FAMILIES[one.version], one.network.prefixlen, 0, scope, index)


def _pack_route(index: int, route: Route) -> bytes:
    destination = ipaddress.ip_network(route.destination)
    attributes: Attributes = {rt.RTA_OIF: pack_number(index), rt.RTA_TABLE: pack_number(route.table)}
    if destination.prefixlen:
        attributes[rt.RTA_DST] = destination.network_address.packed
    if route.gateway:
        gateway = ipaddress.ip_address(route.gateway)
        if gateway.version == destination.version:
            attributes[rt.RTA_GATEWAY] = gateway.packed
        else:
            attributes[rt.RTA_VIA] = struct.pack("=H", _FAMILIES[gateway.version]) + gateway.packed
    if route.source:
        attributes[rt.RTA_PREFSRC] = ipaddress.ip_address(route.source).packed
    if route.priority:
        attributes[rt.RTA_PRIORITY] = pack_number(route.priority)
    if route.metrics:
        attributes[rt.RTA_METRICS] = pack(
            {_METRICS_BY_NAME[name]: _metric(value) for name, value in route.metrics.items()}
        )
    if route.preference:
        attributes[rt.RTA_PREF] = bytes([route.preference])
    family, length = _FAMILIES[destination.version], destination.prefixlen
    # The attribute has the table, which may have more than eight bits.
    header = rt.RTMSG.pack(family, length, 0, 0, 0, route.protocol or 4, route.scope, route.type, route.flags)
    return header + pack(attributes)


def _metric(value: int | str) -> bytes:
    return value.encode() + b"\0" if isinstance(value, str) else pack_number(value)


def _pack_neighbour(index: int, neighbour: Neighbour) -> bytes:
    address = ipaddress.ip_address(neighbour.destination)
    header = rt.NDMSG.pack(_FAMILIES[address.version], index, rt.NUD_PERMANENT, 0, 0)
    named = {rt.NDA_DST: address.packed, rt.NDA_LLADDR: pack_mac(neighbour.mac)}
    return header + pack(named)


def _pack_rule(_index: int, rule: Rule) -> bytes:
    attributes: Attributes = {rt.FRA_TABLE: pack_number(rule.table), rt.FRA_PRIORITY: pack_number(rule.priority)}
    lengths = {rt.FRA_DST: 0, rt.FRA_SRC: 0}
    for number, text in ((rt.FRA_DST, rule.destination), (rt.FRA_SRC, rule.source)):
        if text:
            network = ipaddress.ip_network(text)
            attributes[number] = network.network_address.packed
            lengths[number] = network.prefixlen
    header = rt.RTMSG.pack(
        _FAMILIES[rule.family], lengths[rt.FRA_DST], lengths[rt.FRA_SRC], 0, 0, 0, 0, rt.FR_ACT_TO_TBL, 0
    )
    return header + pack(attributes)


_ADDED: Mapping[type, tuple[int, int, Callable[[int, Any], bytes]]] = {
    Address: (_NEW_ADDRESS, REPLACE, _pack_address),
    Route: (_NEW_ROUTE, REPLACE, _pack_route),
    Neighbour: (_NEW_NEIGHBOUR, REPLACE, _pack_neighbour),
    Rule: (_NEW_RULE, CREATE, _pack_rule),
}
