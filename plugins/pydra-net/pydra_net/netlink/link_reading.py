"""Reads links, by hand: pyroute2 needs a millisecond for each, and a node has one or more for each pod.

Source: rtnetlink(7), linux/if_link.h.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from pydra_net.link_parameters import ATTRIBUTES, FLAGS, IPV4
from pydra_net.netlink import rtnetlink_constants as rt
from pydra_net.netlink.messages import DUMP, HEADER, ask, list_attributes, pack, pack_number, unpack
from pydra_net.network_types import IPVLAN_MODES, Link, Reading, VirtualFunctionState

_GET_LINK = 18
_FUNCTIONS, WITHOUT_COUNTERS = 1, 8
"""RTEXT_FILTER_VF: report virtual functions, too. RTEXT_FILTER_SKIP_STATS: with counters, 180 functions need more than
64 KiB, the most that an attribute can have. Without any mask, the kernel leaves out links that need more than a page,
such as those with many names."""

_STATE, _FUNCTION_LIST, _MASK, _CARRIER, _CARRIER_CHANGES, _ELSEWHERE, _PORT, _XDP = 16, 22, 29, 33, 35, 37, 38, 43
_MOST_MTU, _PERMANENT_MAC, _PARENT, _PARENT_BUS, _MOST_GSO, _IMMOVABLE = 51, 54, 56, 57, 59, 67
_MASTERS_KIND, _MEMBER_DATA = 4, 5
_BOND_MEMBERS_MAC = 4
_XDP_ATTACHED = 2
_VLAN_ID, _VLAN_PROTOCOL, _IPVLAN_MODE = 1, 5, 1
_VF_MAC, _VF_VLAN, _VF_SPOOF_CHECK, _VF_LINK_STATE, _VF_RATE, _VF_TRUST = 1, 2, 4, 5, 6, 9

_STATES = ("unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up")
_IEEE_802_1Q = 0x8100
"""Other protocols of VLANs have IDs of their own."""
_UNKNOWN = 0xFFFFFFFF
"""What a driver says that cannot tell."""


def read_links() -> Reading:
    """The links of this thread's namespace. Raises OSError."""
    mask = pack({_MASK: pack_number(WITHOUT_COUNTERS)})
    # All at once: whatever changes before the last one is there interrupts the list.
    messages = list(ask(socket.NETLINK_ROUTE, _GET_LINK, DUMP, rt.IFINFOMSG.pack(0, 0, 0, 0, 0) + mask))
    return Reading(links=tuple(sorted(map(parse_link, messages), key=lambda one: one.index)))


def read_link(index: int, *, name: str = "", functions: bool = False) -> Link | None:
    """The link of an index, or of a name if that is 0, in this thread's namespace. Raises OSError."""
    named = {rt.IFLA_IFNAME: name.encode() + b"\0"} if name else {}
    message = _ask_for(index, {_MASK: pack_number(WITHOUT_COUNTERS | (_FUNCTIONS if functions else 0)), **named})
    return None if message is None else parse_link(message)


def read_token(index: int) -> str:
    """The token of a link's IPv6 addresses, or empty. Raises OSError."""
    message = _ask_for(index, {_MASK: pack_number(WITHOUT_COUNTERS)})
    found = unpack(_unpack_link(message).get(rt.IFLA_AF_SPEC, b"")) if message else {}
    token = unpack(found.get(socket.AF_INET6, b"")).get(rt.IFLA_INET6_TOKEN, b"")
    return str(ipaddress.IPv6Address(token)) if any(token) else ""


def read_alternative_names(index: int) -> list[bytes]:
    """The alternative names of a link, as the kernel has them. Raises OSError."""
    message = _ask_for(index, {_MASK: pack_number(WITHOUT_COUNTERS)})
    return list(_list_names(_unpack_link(message))) if message else []


def _list_names(link: Mapping[int, bytes]) -> Iterator[bytes]:
    for number, name in list_attributes(link.get(rt.IFLA_PROP_LIST, b"")):
        if number == rt.IFLA_ALT_IFNAME:
            yield name


def _ask_for(index: int, attributes: Mapping[int, bytes]) -> bytes | None:
    try:
        (message,) = ask(socket.NETLINK_ROUTE, _GET_LINK, 0, rt.IFINFOMSG.pack(0, 0, index, 0, 0) + pack(attributes))
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        return None
    return message


def _unpack_link(message: bytes) -> Mapping[int, bytes]:
    return unpack(message[HEADER.size + rt.IFINFOMSG.size :])


def parse_link(message: bytes) -> Link:
    """The link of a message, with its header."""
    _, hardware, index, flags, _ = rt.IFINFOMSG.unpack_from(message, HEADER.size)
    found = _unpack_link(message)
    info, xdp = unpack(found.get(rt.IFLA_LINKINFO, b"")), unpack(found.get(_XDP, b""))
    member = unpack(info.get(_MEMBER_DATA, b"")) if get_text(info, _MASTERS_KIND) == "bond" else {}
    bus, parent = get_text(found, _PARENT_BUS), get_text(found, _PARENT)
    permanent = found.get(_PERMANENT_MAC, b"")
    return Link(
        index=index,
        name=get_text(found, rt.IFLA_IFNAME),
        kind=get_text(info, rt.IFLA_INFO_KIND),
        mac=(member.get(_BOND_MEMBERS_MAC) or found.get(rt.IFLA_ADDRESS, b"")).hex(":"),
        permanent_mac=permanent.hex(":") if any(permanent) else "",
        mtu=get_number(found, rt.IFLA_MTU),
        up=bool(flags & rt.IFF_UP),
        carrier=bool(get_number(found, _CARRIER)),
        state=dict(enumerate(_STATES)).get(get_number(found, _STATE), ""),
        alias=get_text(found, rt.IFLA_IFALIAS),
        alternative_names=tuple(map(decode_name, _list_names(found))),
        master=get_number(found, rt.IFLA_MASTER),
        elsewhere=_ELSEWHERE in found,
        lower=0 if _ELSEWHERE in found else get_number(found, rt.IFLA_LINK),
        parent=f"{bus}/{parent}" if bus and parent else "",
        port=get_text(found, _PORT),
        hardware=hardware,
        has_xdp=bool(get_number(xdp, _XDP_ATTACHED)),
        carrier_changes=get_number(found, _CARRIER_CHANGES),
        functions=tuple(_parse_functions(found.get(_FUNCTION_LIST, b""))),
        parameters={"flags": flags & FLAGS, **dict(_parse_parameters(found))},
        most_gso=get_number(found, _MOST_GSO),
        most_mtu=get_number(found, _MOST_MTU),
        immovable=bool(get_number(found, _IMMOVABLE)),
        **_parse_kind(get_text(info, rt.IFLA_INFO_KIND), unpack(info.get(rt.IFLA_INFO_DATA, b""))),
    )


def _parse_kind(kind: str, data: Mapping[int, bytes]) -> dict[str, Any]:
    """What only links of some kinds have."""
    if kind == "vlan" and int.from_bytes(data.get(_VLAN_PROTOCOL, b"")) in (0, _IEEE_802_1Q):
        return {"vlan": get_number(data, _VLAN_ID)}
    if kind == "ipvlan" and _IPVLAN_MODE in data:
        number = get_number(data, _IPVLAN_MODE)
        return {"ipvlan_mode": IPVLAN_MODES[number] if number < len(IPVLAN_MODES) else str(number)}
    return {}


def _parse_functions(content: bytes) -> Iterator[VirtualFunctionState]:
    for _, one in list_attributes(content):
        found = unpack(one)

        def read(number: int, place: int = 1, of: Mapping[int, bytes] = found) -> int | None:
            """The number at a place of an attribute, in which that of the function is the first."""
            return int(struct.unpack_from("=I", of[number], 4 * place)[0]) if number in of else None

        spoof_check, trust = read(_VF_SPOOF_CHECK), read(_VF_TRUST)
        yield VirtualFunctionState(
            mac=found[_VF_MAC][4:10].hex(":") if _VF_MAC in found else None,
            vlan=read(_VF_VLAN),
            qos=read(_VF_VLAN, 2),
            min_rate=read(_VF_RATE),
            max_rate=read(_VF_RATE, 2),
            spoof_check=None if spoof_check in (None, _UNKNOWN) else bool(spoof_check),
            trust=None if trust in (None, _UNKNOWN) else bool(trust),
            link_state=read(_VF_LINK_STATE),
        )


def _parse_parameters(found: Mapping[int, bytes]) -> Iterator[tuple[str, int]]:
    yield from ((name, get_number(found, number)) for name, number in ATTRIBUTES.items() if number in found)
    of_inet = unpack(unpack(found.get(rt.IFLA_AF_SPEC, b"")).get(socket.AF_INET, b"")).get(rt.IFLA_INET_CONF, b"")
    values = struct.unpack(f"={len(of_inet) // 4}I", of_inet)
    yield from ((name, values[number - 1]) for name, number in IPV4.items() if number <= len(values))


def get_number(found: Mapping[int, bytes], number: int) -> int:
    """An attribute that is a number; 0 if it is not there."""
    return int.from_bytes(found.get(number, b""), sys.byteorder)


def get_text(found: Mapping[int, bytes], number: int) -> str:
    """An attribute that is text; empty if it is not there."""
    return decode_name(found.get(number, b""))


def decode_name(content: bytes) -> str:
    """What is not UTF-8 is replaced."""
    return content.rstrip(b"\0").decode(errors="replace")
