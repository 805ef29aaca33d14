"""From the kernel's messages about addresses, routes, neighbours and rules to values. Source: rtnetlink(7)."""

from __future__ import annotations

import ipaddress
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydra_net.netlink.bridge_ports import read_port_settings
from pydra_net.netlink.link_reading import read_links
from pydra_net.netlink.nexthops import read_nexthops
from pydra_net.network_types import (
    BY_ADVERTISEMENT,
    FOREVER,
    Address,
    Neighbour,
    Reading,
    Route,
    Rule,
)

_AF_INET, _AF_INET6, _AF_MPLS = 2, 10, 28
_FAMILIES = {_AF_INET: 4, _AF_INET6: 6}
_NUD_PERMANENT = 0x80
_DEPRECATED = 0x20
"""Of addresses, which the kernel calls preferred for ever if they are valid for ever."""
_UNKNOWN = 0xFFFFFFFF
"""What a driver says that cannot tell."""
_NOT_RECORDED = {
    "RTA_MULTIPATH": "other links",
    "RTA_ENCAP": "an encapsulation",
    "RTA_FLOW": "a realm",
    "RTA_SRC": "a prefix of sources",
}
"""Attributes of routes."""
_NEXTHOP = 30
"""RTA_NH_ID, which pyroute2 0.9 does not know."""
_SELECTORS = (
    "FRA_FWMARK",
    "FRA_IIFNAME",
    "FRA_OIFNAME",
    "FRA_UID_RANGE",
    "FRA_IP_PROTO",
    "FRA_SPORT_RANGE",
    "FRA_DPORT_RANGE",
)
"""Attributes of rules."""
_INVERTED = 0x2


def read_all(ip: Any) -> Reading:
    """Everything in it."""
    routes: defaultdict[int, list[Route]] = defaultdict(list)
    addresses: defaultdict[int, list[Address]] = defaultdict(list)
    neighbours: defaultdict[int, list[Neighbour]] = defaultdict(list)
    for message in ip.get_addr():
        addresses[message["index"]].append(_read_address(message))
    nexthops: Mapping[int, Collection[int]] | None = None
    for message in ip.get_routes():
        nexthop = _read_unknown(message).get(_NEXTHOP, 0)
        if nexthop and nexthops is None:
            nexthops = read_nexthops()
        for index, route in _read_routes(message, nexthop, (nexthops or {}).get(nexthop, ())):
            routes[index].append(route)
    for message in ip.get_neighbours():
        if message["state"] == _NUD_PERMANENT and (mac := message.get_attr("NDA_LLADDR")):
            neighbour = Neighbour(destination=message.get_attr("NDA_DST"), mac=mac)
            neighbours[message["ifindex"]].append(neighbour)
    links = read_links().links
    return Reading(
        links=links,
        port_settings=read_port_settings(ip) if any(one.master for one in links) else {},
        addresses=_freeze(addresses),
        routes=_freeze(routes),
        neighbours=_freeze(neighbours),
        rules=tuple(_read_rules(ip)),
    )


def _freeze(found: Mapping[int, list[Any]]) -> dict[int, tuple[Any, ...]]:
    return {index: tuple(values) for index, values in sorted(found.items())}


def _read_address(message: Any) -> Address:
    length = message["prefixlen"]
    address, local = message.get_attr("IFA_ADDRESS"), message.get_attr("IFA_LOCAL")
    lifetimes = message.get_attr("IFA_CACHEINFO") or {}
    flags = message.get_attr("IFA_FLAGS")
    flags = message["flags"] if flags is None else flags
    return Address(
        address=f"{local or address}/{length}",
        peer=f"{address}/{length}" if local and address and local != address else "",
        broadcast=message.get_attr("IFA_BROADCAST") or "",
        scope=message["scope"],
        flags=flags,
        label=message.get_attr("IFA_LABEL") or "",
        valid=lifetimes.get("ifa_valid", FOREVER),
        preferred=0 if flags & _DEPRECATED else lifetimes.get("ifa_preferred", FOREVER),
        metric=message.get_attr("IFA_RT_PRIORITY") or 0,
        protocol=message.get_attr("IFA_PROTO") or 0,
    )


def _read_routes(message: Any, nexthop: int, links: Collection[int]) -> Iterator[tuple[int, Route]]:
    """Yield the route for each of its links, with the link's index.

    `nexthop` is the number of its nexthop object, or 0, and `links` has the links to which that leads.
    """
    family = message["family"]
    legs = message.get_attr("RTA_MULTIPATH")
    indexes = {leg["oif"] for leg in legs} if legs else {message.get_attr("RTA_OIF")} - {None}
    indexes |= set(links)
    if family == _AF_MPLS:
        yield from ((index, Route(destination="a label", not_recorded="MPLS")) for index in indexes)
    if family not in _FAMILIES or message["flags"] & 0x200:  # cloned: a cache
        return
    network = message.get_attr("RTA_DST") or ("0.0.0.0" if family == _AF_INET else "::")
    route = Route(
        destination=f"{network}/{message['dst_len']}",
        gateway=message.get_attr("RTA_GATEWAY") or _read_via(message),
        source=message.get_attr("RTA_PREFSRC") or "",
        table=message.get_attr("RTA_TABLE") or message["table"],
        scope=message["scope"],
        type=message["type"],
        protocol=message["proto"],
        priority=message.get_attr("RTA_PRIORITY") or 0,
        flags=message["flags"] & 0x4,  # onlink; the others say how it is
        preference=message.get_attr("RTA_PREF") or 0,
        metrics=_read_metrics(message.get_attr("RTA_METRICS")),
        not_recorded=_find_not_recorded(message, nexthop),
    )
    yield from ((index, route) for index in indexes)


def _read_unknown(message: Any) -> Mapping[int, int]:
    """What pyroute2 does not know, as numbers, by the kind of attribute."""
    unknown = [value for name, value in message["attrs"] if name == "UNKNOWN"]
    return {
        one["header"]["type"]: int.from_bytes(one.data[one.offset + 4 : one.offset + 8], sys.byteorder)
        for one in unknown
    }


def _find_not_recorded(message: Any, nexthop: int) -> str:
    lifetime = (message.get_attr("RTA_CACHEINFO") or {}).get("rta_expires")
    has = {what: bool(message.get_attr(name)) for name, what in _NOT_RECORDED.items()} | {
        "a nexthop object": bool(nexthop),
        "a type of service": bool(message["tos"]),
        "a lifetime": bool(lifetime) and message["proto"] != BY_ADVERTISEMENT,
    }
    return ", ".join(what for what, is_so in has.items() if is_so)


def _read_metrics(message: Any) -> dict[str, int | str]:
    """Without those that pyroute2 does not know."""
    found = [(one[0], one[1]) for one in message["attrs"]] if message is not None else []
    return {name: value for name, value in sorted(found) if name != "UNKNOWN"}


def _read_via(message: Any) -> str:
    via = message.get_attr("RTA_VIA")
    return (via or {}).get("addr", "") if isinstance(via, dict) else ""


def _read_rules(ip: Any) -> Iterator[Rule]:
    for message in ip.get_rules():
        if message["family"] not in _FAMILIES or message["action"] != 1 or _is_special(message):
            continue
        yield Rule(
            family=_FAMILIES[message["family"]],
            table=message.get_attr("FRA_TABLE") or message["table"],
            priority=message.get_attr("FRA_PRIORITY") or 0,
            source=_join(message.get_attr("FRA_SRC"), message["src_len"]),
            destination=_join(message.get_attr("FRA_DST"), message["dst_len"]),
        )


def _is_special(rule: Any) -> bool:
    """Whether it is for some of the packets from and to its prefixes: without that, it would be for all of them."""
    suppresses = rule.get_attr("FRA_SUPPRESS_PREFIXLEN") not in (None, _UNKNOWN)
    selects = any(rule.get_attr(name) for name in _SELECTORS)
    return bool(rule["tos"] or rule["flags"] & _INVERTED or suppresses or selects)


def _join(address: str | None, length: int) -> str:
    return str(ipaddress.ip_network(f"{address}/{length}", strict=False)) if address else ""
