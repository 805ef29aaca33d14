"""Reads everything in a namespace: links, addresses, routes, neighbours and rules.

Source: rtnetlink(7), linux/if_addr.h, linux/rtnetlink.h, linux/neighbour.h, linux/fib_rules.h.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

from pyroute2.netlink.rtnl.rtmsg import rtmsg

from pydra_net.netlink.bridge_ports import read_port_settings
from pydra_net.netlink.link_reading import get_number, get_text, read_links
from pydra_net.netlink.messages import DUMP, HEADER, ask, unpack
from pydra_net.netlink.nexthops import read_nexthops
from pydra_net.netlink.rdma import read_exclusive, read_rdma
from pydra_net.network_types import BY_ADVERTISEMENT, FOREVER, Address, Neighbour, Reading, Route, Rule

ValueT = TypeVar("ValueT")

_FAMILIES: Mapping[int, int] = {socket.AF_INET: 4, socket.AF_INET6: 6}
_AF_MPLS, _EVERY_FAMILY = 28, 255
_GET_ADDRESS, _GET_ROUTE, _GET_NEIGHBOUR, _GET_RULE = 22, 26, 30, 34

ADDRESS = struct.Struct("=BBBBi")
_PEER, _LOCAL, _LABEL, _BROADCAST, _LIFETIMES, _ADDRESS_FLAGS, _METRIC, _PROTOCOL = 1, 2, 3, 4, 6, 8, 9, 11
_DEPRECATED = 0x20
"""Of addresses, which the kernel calls preferred for ever if they are valid for ever."""

ROUTE = struct.Struct("=BBBBBBBBI")
"""Of rules, too."""
_TO, _FROM, _BY, _GATEWAY, _PRIORITY, _SOURCE, _METRICS, _MULTIPATH, _FLOW = 1, 2, 4, 5, 6, 7, 8, 9, 11
_CACHE, _TABLE, _VIA, _PREFERENCE, _ENCAPSULATION, _NEXTHOP = 12, 15, 18, 20, 22, 30
_NOT_RECORDED = {
    _MULTIPATH: "other links",
    _ENCAPSULATION: "an encapsulation",
    _FLOW: "a realm",
    _FROM: "a prefix of sources",
}
_LEG = struct.Struct("=HBBi")
_EXPIRES = struct.Struct("=8xi")
_CLONED, _ON_LINK = 0x200, 0x4
_METRIC_NAMES = dict(enumerate(rtmsg.metrics.nla_map))

NEIGHBOUR = struct.Struct("=BxxxiHBB")
_NEIGHBOUR_ADDRESS, _NEIGHBOUR_MAC = 1, 2
PERMANENT = 0x80

_RULE_TO, _RULE_FROM, _RULE_PRIORITY, _FLOW_TO, _SUPPRESSED_LENGTH, _RULE_TABLE, _BY_WHOM = 1, 2, 6, 11, 14, 15, 21
_OF_ALL_PACKETS = {_RULE_TO, _RULE_FROM, _RULE_PRIORITY, _FLOW_TO, _SUPPRESSED_LENGTH, _RULE_TABLE, _BY_WHOM}
"""The kernel reports others, such as FRA_UID_RANGE, only of rules that they restrict."""
_TO_TABLE, _INVERTED = 1, 0x2


def read_all() -> Reading:
    """Everything in this thread's namespace. Raises OSError, NetlinkDumpInterrupted."""
    links = read_links().links
    return Reading(
        links=links,
        port_settings=read_port_settings() if any(one.master for one in links) else {},
        addresses=_group(_read_addresses()),
        routes=_group(_read_routes()),
        neighbours=_group(_read_neighbours()),
        rules=tuple(_read_rules()),
        rdma=read_rdma(),
        exclusive_rdma=read_exclusive(),
    )


def _group(found: Iterator[tuple[int, ValueT]]) -> dict[int, tuple[ValueT, ...]]:
    groups: defaultdict[int, list[ValueT]] = defaultdict(list)
    for index, value in found:
        groups[index].append(value)
    return {index: tuple(values) for index, values in sorted(groups.items())}


def _list(kind: int, beginning: struct.Struct, family: int = 0) -> Iterator[tuple[tuple[int, ...], dict[int, bytes]]]:
    """Yield the numbers that each message begins with, the family first, and its attributes."""
    request = bytes((family,)).ljust(beginning.size, b"\0")
    for message in list(ask(socket.NETLINK_ROUTE, kind, DUMP, request)):
        yield beginning.unpack_from(message, HEADER.size), unpack(message[HEADER.size + beginning.size :])


def _read_addresses() -> Iterator[tuple[int, Address]]:
    for (family, length, short_flags, scope, index), found in _list(_GET_ADDRESS, ADDRESS):
        if family not in _FAMILIES:
            continue
        peer = _format(family, found.get(_PEER))
        local = _format(family, found.get(_LOCAL)) or peer
        flags = get_number(found, _ADDRESS_FLAGS) if _ADDRESS_FLAGS in found else short_flags
        preferred, valid = struct.unpack_from("=II", found.get(_LIFETIMES, b"\xff" * 8))
        yield (
            index,
            Address(
                address=f"{local}/{length}",
                peer=f"{peer}/{length}" if peer and local != peer else "",
                broadcast=_format(family, found.get(_BROADCAST)),
                scope=scope,
                flags=flags,
                label=get_text(found, _LABEL),
                valid=valid,
                preferred=0 if flags & _DEPRECATED else preferred,
                metric=get_number(found, _METRIC),
                protocol=get_number(found, _PROTOCOL),
            ),
        )


def _read_routes() -> Iterator[tuple[int, Route]]:
    """Yield each route for each of its links, with the link's index."""
    nexthops: Mapping[int, Collection[int]] | None = None
    for header, found in _list(_GET_ROUTE, ROUTE, _EVERY_FAMILY):
        nexthop = get_number(found, _NEXTHOP)
        if nexthop and nexthops is None:
            nexthops = read_nexthops()
        indexes = {*_list_legs(found.get(_MULTIPATH, b"")), *(nexthops or {}).get(nexthop, ())}
        if _BY in found and _MULTIPATH not in found:
            indexes.add(get_number(found, _BY))
        route = _build_route(header, found)
        if route is not None:
            yield from ((index, route) for index in indexes)


def _list_legs(content: bytes) -> Iterator[int]:
    place = 0
    while place + _LEG.size <= len(content):
        length, _, _, index = _LEG.unpack_from(content, place)
        yield index
        place += max(length, _LEG.size) + -length % 4


def _build_route(header: tuple[int, ...], found: Mapping[int, bytes]) -> Route | None:
    """The route; None for what is none, such as an entry of a cache."""
    family, length, _, tos, table, protocol, scope, kind, flags = header
    if family == _AF_MPLS:
        return Route(destination="a label", not_recorded="MPLS")
    if family not in _FAMILIES or flags & _CLONED:
        return None
    has = {what: number in found for number, what in _NOT_RECORDED.items()} | {
        "a nexthop object": _NEXTHOP in found,
        "a type of service": bool(tos),
        "a lifetime": _CACHE in found and any(_EXPIRES.unpack_from(found[_CACHE])) and protocol != BY_ADVERTISEMENT,
    }
    via = found.get(_VIA, b"")
    network = _format(family, found.get(_TO)) or ("0.0.0.0" if family == socket.AF_INET else "::")
    return Route(
        destination=f"{network}/{length}",
        gateway=_format(family, found.get(_GATEWAY)) or _format(int.from_bytes(via[:2], sys.byteorder), via[2:]),
        source=_format(family, found.get(_SOURCE)),
        table=get_number(found, _TABLE) or table,
        scope=scope,
        type=kind,
        protocol=protocol,
        priority=get_number(found, _PRIORITY),
        flags=flags & _ON_LINK,  # the others say how it is
        preference=get_number(found, _PREFERENCE),
        metrics=_read_metrics(unpack(found.get(_METRICS, b""))),
        not_recorded=", ".join(what for what, is_so in has.items() if is_so),
    )


def _read_metrics(found: Mapping[int, bytes]) -> dict[str, int | str]:
    """Without those that pyroute2 does not know."""
    named = [(number, *_METRIC_NAMES[number]) for number in found if number in _METRIC_NAMES]
    return {
        name: get_text(found, number) if form == "asciiz" else get_number(found, number)
        for number, name, form in sorted(named, key=lambda one: one[1])
    }


def _read_neighbours() -> Iterator[tuple[int, Neighbour]]:
    for (family, index, state, _, _), found in _list(_GET_NEIGHBOUR, NEIGHBOUR):
        if family in _FAMILIES and state == PERMANENT and (mac := found.get(_NEIGHBOUR_MAC)):
            yield index, Neighbour(destination=_format(family, found.get(_NEIGHBOUR_ADDRESS)), mac=mac.hex(":"))


def _read_rules() -> Iterator[Rule]:
    """Yield those that choose a table for all packets from and to their prefixes."""
    for (family, to_length, from_length, tos, table, _, _, action, flags), found in _list(_GET_RULE, ROUTE):
        suppresses = get_number(found, _SUPPRESSED_LENGTH) != FOREVER if _SUPPRESSED_LENGTH in found else False
        is_special = tos or flags & _INVERTED or suppresses or found.keys() - _OF_ALL_PACKETS
        if family not in _FAMILIES or action != _TO_TABLE or is_special:
            continue
        yield Rule(
            family=_FAMILIES[family],
            table=get_number(found, _RULE_TABLE) or table,
            priority=get_number(found, _RULE_PRIORITY),
            source=_format_prefix(family, found.get(_RULE_FROM), from_length),
            destination=_format_prefix(family, found.get(_RULE_TO), to_length),
        )


def _format(family: int, content: bytes | None) -> str:
    """The address; empty if there is none."""
    return socket.inet_ntop(family, content) if content and family in _FAMILIES else ""


def _format_prefix(family: int, content: bytes | None, length: int) -> str:
    """The network; empty if there is none. Rules keep the bits that are not of the prefix, too."""
    return str(ipaddress.ip_network(f"{_format(family, content)}/{length}", strict=False)) if content else ""
