"""Reads everything in a namespace: links, addresses, routes, neighbours and rules.

Source: rtnetlink(7), linux/if_addr.h, linux/rtnetlink.h, linux/nexthop.h, linux/neighbour.h, linux/fib_rules.h.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import TypeVar

from pydra_net.netlink import rtnetlink_constants as rt
from pydra_net.netlink.bridge_ports import read_port_settings
from pydra_net.netlink.link_reading import get_number, get_text, read_links
from pydra_net.netlink.messages import DUMP, HEADER, ask, unpack
from pydra_net.netlink.rdma import read_exclusive, read_rdma
from pydra_net.network_types import BY_ADVERTISEMENT, FOREVER, Address, Neighbour, Reading, Route, Rule

ValueT = TypeVar("ValueT")

_AF_MPLS, _EVERY_FAMILY = 28, 255
_GET_ADDRESS, _GET_ROUTE, _GET_NEIGHBOUR, _GET_RULE, _GET_NEXTHOP = 22, 26, 30, 34, 106

_DEPRECATED = 0x20
"""Of addresses, which the kernel calls preferred for ever if they are valid for ever."""

_FROM, _MULTIPATH, _FLOW, _CACHE, _ENCAPSULATION, _NEXTHOP = 2, 9, 11, 12, 22, 30
_NOT_RECORDED = {
    _MULTIPATH: "other links",
    _ENCAPSULATION: "an encapsulation",
    _FLOW: "a realm",
    _FROM: "a prefix of sources",
}
_LEG = struct.Struct("=HBBi")
_EXPIRES = struct.Struct("=8xi")
_NEXTHOP_MESSAGE = struct.Struct("=BBBxI")
_NEXTHOP_ID, _NEXTHOP_GROUP, _NEXTHOP_LINK = 1, 2, 5
_NEXTHOP_MEMBER = struct.Struct("=IBxxx")
_CLONED, _ON_LINK = 0x200, 0x4

_FLOW_TO, _SUPPRESSED_LENGTH, _BY_WHOM = 11, 14, 21
_OF_ALL_PACKETS = {rt.FRA_DST, rt.FRA_SRC, rt.FRA_PRIORITY, _FLOW_TO, _SUPPRESSED_LENGTH, rt.FRA_TABLE, _BY_WHOM}
"""The kernel reports others, such as FRA_UID_RANGE, only of rules that they restrict."""
_INVERTED = 0x2


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
    for (family, length, short_flags, scope, index), found in _list(_GET_ADDRESS, rt.IFADDRMSG):
        if family not in rt.VERSIONS:
            continue
        peer = _format(family, found.get(rt.IFA_ADDRESS))
        local = _format(family, found.get(rt.IFA_LOCAL)) or peer
        flags = get_number(found, rt.IFA_FLAGS) if rt.IFA_FLAGS in found else short_flags
        preferred, valid = struct.unpack_from("=II", found.get(rt.IFA_CACHEINFO, b"\xff" * 8))
        yield (
            index,
            Address(
                address=f"{local}/{length}",
                peer=f"{peer}/{length}" if peer and local != peer else "",
                broadcast=_format(family, found.get(rt.IFA_BROADCAST)),
                scope=scope,
                flags=flags,
                label=get_text(found, rt.IFA_LABEL),
                valid=valid,
                preferred=0 if flags & _DEPRECATED else preferred,
                metric=get_number(found, rt.IFA_RT_PRIORITY),
                protocol=get_number(found, rt.IFA_PROTO),
            ),
        )


def _read_routes() -> Iterator[tuple[int, Route]]:
    """Yield each route for each of its links, with the link's index."""
    nexthops: Mapping[int, Collection[int]] | None = None
    for header, found in _list(_GET_ROUTE, rt.RTMSG, _EVERY_FAMILY):
        nexthop = get_number(found, _NEXTHOP)
        if nexthop and nexthops is None:
            nexthops = _read_nexthops()
        indexes = {*_list_legs(found.get(_MULTIPATH, b"")), *(nexthops or {}).get(nexthop, ())}
        if rt.RTA_OIF in found and _MULTIPATH not in found:
            indexes.add(get_number(found, rt.RTA_OIF))
        route = _build_route(header, found)
        if route is not None:
            yield from ((index, route) for index in indexes)


def _list_legs(content: bytes) -> Iterator[int]:
    place = 0
    while place + _LEG.size <= len(content):
        length, _, _, index = _LEG.unpack_from(content, place)
        yield index
        place += max(length, _LEG.size) + -length % 4


def _read_nexthops() -> Mapping[int, frozenset[int]]:
    """The links that nexthop objects lead to, by their numbers; those of a group are those of its members.

    Routes name only the object if net.ipv4.nexthop_compat_mode is 0.
    """
    links: dict[int, frozenset[int]] = {}
    groups: dict[int, list[int]] = {}
    for _, found in _list(_GET_NEXTHOP, _NEXTHOP_MESSAGE):
        number = get_number(found, _NEXTHOP_ID)
        if _NEXTHOP_GROUP in found:
            groups[number] = [member for member, _ in _NEXTHOP_MEMBER.iter_unpack(found[_NEXTHOP_GROUP])]
        elif _NEXTHOP_LINK in found:
            links[number] = frozenset((get_number(found, _NEXTHOP_LINK),))
    members = {number: [links.get(one, frozenset()) for one in those] for number, those in groups.items()}
    return {**links, **{number: frozenset[int]().union(*those) for number, those in members.items()}}


def _build_route(header: tuple[int, ...], found: Mapping[int, bytes]) -> Route | None:
    """The route; None for what is none, such as an entry of a cache."""
    family, length, _, tos, table, protocol, scope, kind, flags = header
    if family == _AF_MPLS:
        return Route(destination="a label", not_recorded="MPLS")
    if family not in rt.VERSIONS or flags & _CLONED:
        return None
    has = {what: number in found for number, what in _NOT_RECORDED.items()} | {
        "a nexthop object": _NEXTHOP in found,
        "a type of service": bool(tos),
        "a lifetime": _CACHE in found and any(_EXPIRES.unpack_from(found[_CACHE])) and protocol != BY_ADVERTISEMENT,
    }
    via = found.get(rt.RTA_VIA, b"")
    network = _format(family, found.get(rt.RTA_DST)) or ("0.0.0.0" if family == socket.AF_INET else "::")
    return Route(
        destination=f"{network}/{length}",
        gateway=_format(family, found.get(rt.RTA_GATEWAY)) or _format(int.from_bytes(via[:2], sys.byteorder), via[2:]),
        source=_format(family, found.get(rt.RTA_PREFSRC)),
        table=get_number(found, rt.RTA_TABLE) or table,
        scope=scope,
        type=kind,
        protocol=protocol,
        priority=get_number(found, rt.RTA_PRIORITY),
        flags=flags & _ON_LINK,  # the others say how it is
        preference=get_number(found, rt.RTA_PREF),
        metrics=_read_metrics(unpack(found.get(rt.RTA_METRICS, b""))),
        not_recorded=", ".join(what for what, is_so in has.items() if is_so),
    )


def _read_metrics(found: Mapping[int, bytes]) -> dict[str, int | str]:
    """Without those that pyroute2 does not know."""
    named = [(number, *rt.METRICS[number]) for number in found if number in rt.METRICS]
    return {
        name: get_text(found, number) if form == "asciiz" else get_number(found, number)
        for number, name, form in sorted(named, key=lambda one: one[1])
    }


def _read_neighbours() -> Iterator[tuple[int, Neighbour]]:
    for (family, index, state, _, _), found in _list(_GET_NEIGHBOUR, rt.NDMSG):
        if family in rt.VERSIONS and state == rt.NUD_PERMANENT and (mac := found.get(rt.NDA_LLADDR)):
            yield index, Neighbour(destination=_format(family, found.get(rt.NDA_DST)), mac=mac.hex(":"))


def _read_rules() -> Iterator[Rule]:
    """Yield those that choose a table for all packets from and to their prefixes."""
    for (family, to_length, from_length, tos, table, _, _, action, flags), found in _list(_GET_RULE, rt.RTMSG):
        suppresses = get_number(found, _SUPPRESSED_LENGTH) != FOREVER if _SUPPRESSED_LENGTH in found else False
        is_special = tos or flags & _INVERTED or suppresses or found.keys() - _OF_ALL_PACKETS
        if family not in rt.VERSIONS or action != rt.FR_ACT_TO_TBL or is_special:
            continue
        yield Rule(
            family=rt.VERSIONS[family],
            table=get_number(found, rt.FRA_TABLE) or table,
            priority=get_number(found, rt.FRA_PRIORITY),
            source=_format_prefix(family, found.get(rt.FRA_SRC), from_length),
            destination=_format_prefix(family, found.get(rt.FRA_DST), to_length),
        )


def _format(family: int, content: bytes | None) -> str:
    """The address; empty if there is none."""
    return socket.inet_ntop(family, content) if content and family in rt.VERSIONS else ""


def _format_prefix(family: int, content: bytes | None, length: int) -> str:
    """The network; empty if there is none. Rules keep the bits that are not of the prefix, too."""
    return str(ipaddress.ip_network(f"{_format(family, content)}/{length}", strict=False)) if content else ""
