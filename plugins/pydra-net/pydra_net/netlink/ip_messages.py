"""Messages about addresses, routes, neighbours and rules by hand: pyroute2 needs half a millisecond for each.

Source: rtnetlink(7), linux/if_addr.h, linux/rtnetlink.h, linux/neighbour.h, linux/fib_rules.h.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import TypeAlias

from pyroute2.netlink.rtnl.rtmsg import rtmsg

from pydra_net.netlink.link_messages import pack_mac
from pydra_net.netlink.messages import CREATE, REPLACE, change, pack, pack_number
from pydra_net.network_change_types import AddAddress, AddNeighbour, AddRoute, AddRule, RemoveAddress, RemoveRoute
from pydra_net.network_types import FOREVER, Route

_NEW_ADDRESS, _DEL_ADDRESS, _NEW_ROUTE, _DEL_ROUTE, _NEW_NEIGHBOUR, _NEW_RULE = 20, 21, 24, 25, 28, 32
_FAMILIES = {4: 2, 6: 10}

_ADDRESS = struct.Struct("=BBBBi")
_PEER, _LOCAL, _LABEL, _BROADCAST, _LIFETIMES, _ADDRESS_FLAGS, _METRIC, _PROTOCOL = 1, 2, 3, 4, 6, 8, 9, 11

_ROUTE = struct.Struct("=BBBBBBBBI")
_TO, _BY, _GATEWAY, _PRIORITY, _SOURCE, _METRICS, _TABLE, _VIA = 1, 4, 5, 6, 7, 8, 15, 18
_METRIC_NUMBERS = {name: number for number, (name, *_) in enumerate(rtmsg.metrics.nla_map)}

_NEIGHBOUR = struct.Struct("=BxxxiHBB")
_NEIGHBOUR_ADDRESS, _NEIGHBOUR_MAC = 1, 2
_PERMANENT = 0x80

_RULE_TO, _RULE_FROM, _RULE_PRIORITY, _RULE_TABLE = 1, 2, 6, 15
_TO_TABLE = 1

Attributes: TypeAlias = dict[int, bytes]


def add_address(operation: AddAddress) -> None:
    """Add an address to a link, or change how long it is valid. Raises KernelRefused."""
    one = operation.address
    interface = ipaddress.ip_interface(one.address)
    own = interface.ip.packed
    peer = ipaddress.ip_interface(one.peer).ip.packed if one.peer else own
    attributes: Attributes = {_PEER: peer}
    if interface.version == 4 or one.peer:
        attributes[_LOCAL] = own
    if one.broadcast:
        attributes[_BROADCAST] = ipaddress.ip_address(one.broadcast).packed
    if one.label:
        attributes[_LABEL] = one.label.encode() + b"\0"
    if one.flags:
        attributes[_ADDRESS_FLAGS] = pack_number(one.flags)
    if one.metric:
        attributes[_METRIC] = pack_number(one.metric)
    if one.protocol:
        attributes[_PROTOCOL] = bytes([one.protocol])
    if one.valid != FOREVER:
        attributes[_LIFETIMES] = struct.pack("=IIII", one.preferred, one.valid, 0, 0)
    change(_NEW_ADDRESS, REPLACE, _pack_address(operation.index, interface, one.scope) + pack(attributes))


def remove_address(operation: RemoveAddress) -> None:
    """Remove an address of a link. Raises KernelRefused."""
    interface = ipaddress.ip_interface(operation.address.address)
    own = pack({_LOCAL if interface.version == 4 else _PEER: interface.ip.packed})
    change(_DEL_ADDRESS, 0, _pack_address(operation.index, interface, 0) + own)


def _pack_address(index: int, one: ipaddress.IPv4Interface | ipaddress.IPv6Interface, scope: int) -> bytes:
    return _ADDRESS.pack(_FAMILIES[one.version], one.network.prefixlen, 0, scope, index)


def add_route(operation: AddRoute) -> None:
    """Add a route by a link, in place of one to the same destination. Raises KernelRefused."""
    change(_NEW_ROUTE, REPLACE, _pack_route(operation.index, operation.route))


def remove_route(operation: RemoveRoute) -> None:
    """Remove a route by a link. Raises KernelRefused."""
    change(_DEL_ROUTE, 0, _pack_route(operation.index, operation.route))


def _pack_route(index: int, route: Route) -> bytes:
    destination = ipaddress.ip_network(route.destination)
    attributes: Attributes = {_BY: pack_number(index), _TABLE: pack_number(route.table)}
    if destination.prefixlen:
        attributes[_TO] = destination.network_address.packed
    if route.gateway:
        gateway = ipaddress.ip_address(route.gateway)
        if gateway.version == destination.version:
            attributes[_GATEWAY] = gateway.packed
        else:
            attributes[_VIA] = struct.pack("=H", _FAMILIES[gateway.version]) + gateway.packed
    if route.source:
        attributes[_SOURCE] = ipaddress.ip_address(route.source).packed
    if route.priority:
        attributes[_PRIORITY] = pack_number(route.priority)
    if route.metrics:
        attributes[_METRICS] = pack({_METRIC_NUMBERS[name]: _metric(value) for name, value in route.metrics.items()})
    family, length = _FAMILIES[destination.version], destination.prefixlen
    # The attribute has the table, which may have more than eight bits.
    header = _ROUTE.pack(family, length, 0, 0, 0, route.protocol or 4, route.scope, route.type, route.flags)
    return header + pack(attributes)


def _metric(value: int | str) -> bytes:
    return value.encode() + b"\0" if isinstance(value, str) else pack_number(value)


def add_neighbour(operation: AddNeighbour) -> None:
    """Add a permanent neighbour on a link. Raises KernelRefused."""
    neighbour = operation.neighbour
    address = ipaddress.ip_address(neighbour.destination)
    header = _NEIGHBOUR.pack(_FAMILIES[address.version], operation.index, _PERMANENT, 0, 0)
    named = {_NEIGHBOUR_ADDRESS: address.packed, _NEIGHBOUR_MAC: pack_mac(neighbour.mac)}
    change(_NEW_NEIGHBOUR, REPLACE, header + pack(named))


def add_rule(operation: AddRule) -> None:
    """Add a rule. Raises KernelRefused, `taken` if there is one like it."""
    rule = operation.rule
    attributes: Attributes = {_RULE_TABLE: pack_number(rule.table), _RULE_PRIORITY: pack_number(rule.priority)}
    lengths = {_RULE_TO: 0, _RULE_FROM: 0}
    for number, text in ((_RULE_TO, rule.destination), (_RULE_FROM, rule.source)):
        if text:
            network = ipaddress.ip_network(text)
            attributes[number] = network.network_address.packed
            lengths[number] = network.prefixlen
    header = _ROUTE.pack(_FAMILIES[rule.family], lengths[_RULE_TO], lengths[_RULE_FROM], 0, 0, 0, 0, _TO_TABLE, 0)
    change(_NEW_RULE, CREATE, header + pack(attributes))
