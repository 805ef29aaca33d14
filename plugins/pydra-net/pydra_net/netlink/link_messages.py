"""Messages about single links by hand: pyroute2 lacks some, and needs a millisecond more while a runtime waits.

Source: rtnetlink(7), linux/if_link.h.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from collections.abc import Mapping
from typing import Any

from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from pydra_net.gso_sizes_and_sysctls import ATTRIBUTES, FLAGS, IPV4
from pydra_net.netlink.messages import CREATE, ask, change, pack, pack_number
from pydra_net.network_change_types import Mark, RemoveLink, SetLink, SetParameter, SetToken

_NEW_LINK, _DEL_LINK, _GET_LINK, _SET_LINK, _NEW_PROPERTY, _DEL_PROPERTY = 16, 17, 18, 19, 108, 109
_MAC, _NAME, _MTU, _MASTER, _ALIAS, _FAMILIES, _NAMESPACE, _MASK = 1, 3, 4, 10, 20, 26, 28, 29
_PROPERTIES, _ALTERNATIVE_NAME = 52 | 0x8000, 53
_UP = 1
_FUNCTIONS, WITHOUT_COUNTERS = 1, 8
"""RTEXT_FILTER_VF: report virtual functions, too. RTEXT_FILTER_SKIP_STATS: with counters, 180 functions need more than
64 KiB, the most that an attribute can have."""
_INET, _INET_CONF = 2, 1
_INET6, _INET6_TOKEN = 10, 7
_LINK = struct.Struct("=BxHiII")


def get_link(index: int, *, functions: bool = False) -> Any:
    """The message about a link of this thread's namespace, as pyroute2 decodes it, or None. Raises OSError."""
    wanted = pack({_MASK: pack_number(_FUNCTIONS | WITHOUT_COUNTERS)}) if functions else b""
    try:
        (message,) = ask(socket.NETLINK_ROUTE, _GET_LINK, 0, _LINK.pack(0, 0, index, 0, 0) + wanted)
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        return None
    decoded = ifinfmsg(message)  # type: ignore[no-untyped-call]
    decoded.decode()  # type: ignore[no-untyped-call]
    return decoded


def get_token(index: int) -> str:
    """The token of a link's IPv6 addresses, or empty. Raises OSError."""
    families = None if (link := get_link(index)) is None else link.get_attr("IFLA_AF_SPEC")
    of_inet6 = None if families is None else families.get_attr("AF_INET6")
    found: str | None = None if of_inet6 is None else of_inet6.get_attr("IFLA_INET6_TOKEN")
    return found if found and found != "::" else ""


def set_token(operation: SetToken) -> None:
    """Set the token of a link's IPv6 addresses. Raises KernelRefused."""
    of_inet6 = pack({_INET6_TOKEN: ipaddress.IPv6Address(operation.token).packed})
    _change(_SET_LINK, operation.index, {_FAMILIES: pack({_INET6: of_inet6})})


def move_link(index: int, namespace: int, name: str) -> None:
    """Move a link to a namespace, given as an open file, and rename it. Raises KernelRefused."""
    _change(_NEW_LINK, index, {_NAMESPACE: pack_number(namespace), _NAME: _text(name)})


def set_link(wanted: SetLink) -> None:
    """Change a link. Raises KernelRefused."""
    attributes = {
        _NAME: None if wanted.name is None else _text(wanted.name),
        _MTU: None if wanted.mtu is None else pack_number(wanted.mtu),
        _MAC: None if wanted.mac is None else pack_mac(wanted.mac),
        _ALIAS: None if wanted.alias is None else wanted.alias.encode(),
        _MASTER: None if wanted.master is None else pack_number(wanted.master),
    }
    known = {number: value for number, value in attributes.items() if value is not None}
    _change(_NEW_LINK, wanted.index, known, up=wanted.up)


def mark_link(mark: Mark) -> None:
    """Give a link an alternative name, or take it away. Raises KernelRefused."""
    named = pack({_ALTERNATIVE_NAME: _text(mark.name)})
    if mark.present:
        _change(_NEW_PROPERTY, mark.index, {_PROPERTIES: named}, flags=CREATE)
    else:
        _change(_DEL_PROPERTY, mark.index, {_PROPERTIES: named})


def remove_link(operation: RemoveLink) -> None:
    """Remove a virtual link. Raises KernelRefused."""
    _change(_DEL_LINK, operation.index, {})


def set_parameter(operation: SetParameter) -> None:
    """Set one of a link's `gso_sizes_and_sysctls`. Raises KernelRefused."""
    index, name, value = operation.index, operation.name, pack_number(operation.value)
    if name == "flags":
        change(_SET_LINK, 0, _LINK.pack(0, 0, index, operation.value, FLAGS))
    elif name in ATTRIBUTES:
        _change(_SET_LINK, index, {ATTRIBUTES[name]: value})
    else:
        of_inet = pack({_INET_CONF: pack({IPV4[name]: value})})
        _change(_SET_LINK, index, {_FAMILIES: pack({_INET: of_inet})})


def _change(kind: int, index: int, attributes: Mapping[int, bytes], *, flags: int = 0, up: bool | None = None) -> None:
    changed = _LINK.pack(0, 0, index, _UP if up else 0, 0 if up is None else _UP)
    change(kind, flags, changed + pack(attributes))


def pack_mac(mac: str) -> bytes:
    """A MAC address, of whatever length."""
    return bytes.fromhex(mac.replace(":", ""))


def _text(text: str) -> bytes:
    return text.encode() + b"\0"
