"""Finds the interfaces that the node itself needs, which are never given away. No I/O."""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from pydra_net.network_types import Link, Reading

_NOT_MOVABLE = frozenset({"bridge", "bond", "team", "vrf", "openvswitch"})
"""Kinds that the kernel keeps in their namespace, or which are of use only with their members."""

_MADE_BY_MODULES = ("tunl0", "sit0", "gre0", "gretap0", "erspan0", "ip6tnl0", "ip6gre0", "ip_vti0", "ip6_vti0")
"""Tunnels that each namespace has of its own as soon as the kernel's module is loaded."""

_KEPT_BY_DAEMONS = frozenset({"team", "openvswitch"})


def find_needed(reading: Reading, node_addresses: Collection[str]) -> Mapping[int, str]:
    """Return why the node itself needs links, by index.

    Uplinks are the links of all default routes, in all tables, and those with an address of the node; with them, all
    below them, and all above them, to any depth.
    """
    reasons: dict[int, str] = {}
    for index, reason in _find_uplinks(reading, node_addresses):
        uplink = reading.find(index)
        if uplink is None:
            continue
        reasons.setdefault(index, reason)
        for below in _walk(uplink, lambda one: _list_below(one, reading)):
            reasons.setdefault(below.index, f"is below {uplink.name}, which {reason}")
        for above in _walk(uplink, lambda one: _list_above(one, reading)):
            reasons.setdefault(above.index, f"is above {uplink.name}, which {reason}")
    return reasons


def find_unmovable(reading: Reading, given: Sequence[Link] = ()) -> Mapping[int, str]:
    """Return why links cannot be moved, by index; there can be virtual interfaces on some of them.

    `given` has links that claims have, as they were on the node; they may be in pods.
    """
    reasons: dict[int, str] = {}
    for link in reading.links:
        if link.is_loopback:
            reasons.setdefault(link.index, "is the loopback interface")
        elif "\N{REPLACEMENT CHARACTER}" in link.name:
            reasons.setdefault(link.index, "has a name that is not UTF-8, which could not be put back")
        elif link.is_representor:
            reasons.setdefault(link.index, "stands for another function in the switch of its card, which needs it")
        elif link.kind in _NOT_MOVABLE:
            reasons.setdefault(link.index, f"is a {link.kind}, which cannot leave the node's network namespace")
        elif link.immovable or (link.kind and link.name in _MADE_BY_MODULES):
            reasons.setdefault(link.index, "cannot leave the node's network namespace")
        elif lost := [one for one in reading.routes.get(link.index, ()) if one.not_recorded]:
            reasons.setdefault(
                link.index,
                f"has the route to {lost[0].destination} with {lost[0].not_recorded}, which could not be put back",
            )
        elif settings := reading.port_settings.get(link.index):
            reasons.setdefault(
                link.index, f"is a port of a bridge with {', '.join(settings)}, which could not be put back"
            )
        elif above := [one.name for one in (*reading.links, *given) if one.lower == link.index and one.kind != "veth"]:
            reasons.setdefault(link.index, f"is below {above[0]}, which would lose its network, and then its routes")
        elif (master := reading.find(link.master)) and master.kind in _KEPT_BY_DAEMONS:
            reasons.setdefault(
                link.index, f"is a port of {master.name}, whose daemon ({master.kind}) keeps its settings"
            )
    return reasons


def _find_uplinks(reading: Reading, node_addresses: Collection[str]) -> Iterator[tuple[int, str]]:
    for index, routes in reading.routes.items():
        if default := [one for one in routes if one.is_default]:
            yield index, f"has a default route of the node (table {default[0].table})"
    own = {ipaddress.ip_address(one) for one in node_addresses}
    for index, addresses in reading.addresses.items():
        if found := [one for one in addresses if ipaddress.ip_interface(one.address).ip in own]:
            yield index, f"has the node's address {found[0].address.partition('/')[0]}"


def _walk(start: Link, neighbours: Callable[[Link], Iterable[Link]]) -> Iterator[Link]:
    """Yield all that can be reached, without the start."""
    waiting, seen = deque([start]), {start.index}
    while waiting:
        for one in neighbours(waiting.popleft()):
            if one.index not in seen:
                seen.add(one.index)
                waiting.append(one)
                yield one


def _list_below(link: Link, reading: Reading) -> Iterator[Link]:
    """Members of a bond or bridge; the parent of a VLAN or macvlan; the other end of a veth."""
    for one in reading.links:
        if one.master == link.index or (link.lower and one.index == link.lower):
            yield one


def _list_above(link: Link, reading: Reading) -> Iterator[Link]:
    for one in reading.links:
        if (link.master and one.index == link.master) or one.lower == link.index:
            yield one
