"""Which links nexthop objects lead to. Routes name only the object if net.ipv4.nexthop_compat_mode is 0, and pyroute2
has no such messages. Source: linux/nexthop.h.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

from pydra_net.netlink.messages import DUMP, HEADER, ask, unpack

_GET_NEXTHOP = 106
_REQUEST = struct.Struct("=BBBxI")
_ID, _GROUP, _LINK = 1, 2, 5
_MEMBER = struct.Struct("=IBxxx")


def read_nexthops() -> Mapping[int, frozenset[int]]:
    """The indexes of links by the number of the object; those of a group are those of its members. Raises OSError."""
    links: dict[int, frozenset[int]] = {}
    groups: dict[int, list[int]] = {}
    for message in ask(socket.NETLINK_ROUTE, _GET_NEXTHOP, DUMP, _REQUEST.pack(0, 0, 0, 0)):
        attributes = unpack(message[HEADER.size + _REQUEST.size :])
        (number,) = struct.unpack("=I", attributes[_ID])
        if _GROUP in attributes:
            groups[number] = [member for member, _ in _MEMBER.iter_unpack(attributes[_GROUP])]
        elif _LINK in attributes:
            links[number] = frozenset(struct.unpack("=I", attributes[_LINK]))
    members = {number: [links.get(one, frozenset()) for one in found] for number, found in groups.items()}
    return {**links, **{number: frozenset[int]().union(*found) for number, found in members.items()}}
