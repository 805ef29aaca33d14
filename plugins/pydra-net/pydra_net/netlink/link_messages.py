"""Messages about single links by hand: pyroute2 lacks some, and needs a millisecond more while a runtime waits.

Source: rtnetlink(7), linux/if_link.h.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Mapping

from pydra_net.link_parameters import ATTRIBUTES, FLAGS, IPV4
from pydra_net.netlink import rtnetlink_constants as rt
from pydra_net.netlink.link_reading import decode_name, read_alternative_names
from pydra_net.netlink.messages import CREATE, change, pack, pack_number
from pydra_net.network_change_types import KeepNames, Mark, NewLink, RemoveLink, SetLink, SetParameter, SetToken
from pydra_net.network_types import IPVLAN_MODES

_NEW_LINK, _DEL_LINK, _SET_LINK, _NEW_PROPERTY, _DEL_PROPERTY = 16, 17, 19, 108, 109
_NAMESPACE, _MODE_OR_ID = 28, 1
_MACVLAN_MODES = {"private": 1, "vepa": 2, "bridge": 4}
_NESTED = 0x8000


def set_token(operation: SetToken) -> None:
    """Set the token of a link's IPv6 addresses. Raises KernelRefused."""
    of_inet6 = pack({rt.IFLA_INET6_TOKEN: ipaddress.IPv6Address(operation.token).packed})
    _change(_SET_LINK, operation.index, {rt.IFLA_AF_SPEC: pack({socket.AF_INET6: of_inet6})})


def make_link(index: int, link: NewLink, namespace: int) -> None:
    """Make a virtual link on the one of this index in a namespace, given as an open file. Raises KernelRefused."""
    if link.kind == "macvlan":
        mode_or_id = pack_number(_MACVLAN_MODES[link.mode])
    else:
        mode_or_id = struct.pack("=H", link.vlan if link.kind == "vlan" else IPVLAN_MODES.index(link.mode))
    attributes = {
        rt.IFLA_LINK: pack_number(index),
        _NAMESPACE: pack_number(namespace),
        rt.IFLA_IFNAME: _text(link.name),
        rt.IFLA_ADDRESS: pack_mac(link.mac),
        rt.IFLA_MTU: pack_number(link.mtu) if link.mtu else b"",
        rt.IFLA_LINKINFO: pack(
            {rt.IFLA_INFO_KIND: _text(link.kind), rt.IFLA_INFO_DATA: pack({_MODE_OR_ID: mode_or_id})}
        ),
    }
    _change(_NEW_LINK, 0, {number: value for number, value in attributes.items() if value}, flags=CREATE)


def move_link(index: int, namespace: int, name: str) -> None:
    """Move a link to a namespace, given as an open file, and rename it. Raises KernelRefused."""
    _change(_NEW_LINK, index, {_NAMESPACE: pack_number(namespace), rt.IFLA_IFNAME: _text(name)})


def set_link(wanted: SetLink) -> None:
    """Change a link. Raises KernelRefused."""
    attributes = {
        rt.IFLA_IFNAME: None if wanted.name is None else _text(wanted.name),
        rt.IFLA_MTU: None if wanted.mtu is None else pack_number(wanted.mtu),
        rt.IFLA_ADDRESS: None if wanted.mac is None else pack_mac(wanted.mac),
        rt.IFLA_IFALIAS: None if wanted.alias is None else wanted.alias.encode(),
        rt.IFLA_MASTER: None if wanted.master is None else pack_number(wanted.master),
    }
    known = {number: value for number, value in attributes.items() if value is not None}
    _change(_NEW_LINK, wanted.index, known, up=wanted.up)


def mark_link(mark: Mark) -> None:
    """Give a link an alternative name, or take it away. Raises KernelRefused."""
    named = pack({rt.IFLA_ALT_IFNAME: _text(mark.name)})
    if mark.present:
        _change(_NEW_PROPERTY, mark.index, {rt.IFLA_PROP_LIST | _NESTED: named}, flags=CREATE)
    else:
        _change(_DEL_PROPERTY, mark.index, {rt.IFLA_PROP_LIST | _NESTED: named})


def keep_names(operation: KeepNames) -> None:
    """Take a link's other alternative names away, also those that are not UTF-8. Raises KernelRefused."""
    names = [name for name in read_alternative_names(operation.index) if decode_name(name) not in operation.kept]
    removed = b"".join(pack({rt.IFLA_ALT_IFNAME: name}) for name in names)
    if removed:
        _change(_DEL_PROPERTY, operation.index, {rt.IFLA_PROP_LIST | _NESTED: removed})


def remove_link(operation: RemoveLink) -> None:
    """Remove a virtual link. Raises KernelRefused."""
    _change(_DEL_LINK, operation.index, {})


def set_parameter(operation: SetParameter) -> None:
    """Set one of a link's `link_parameters`. Raises KernelRefused."""
    index, name, value = operation.index, operation.name, pack_number(operation.value)
    if name == "flags":
        change(_SET_LINK, 0, rt.IFINFOMSG.pack(0, 0, index, operation.value, FLAGS))
    elif name in ATTRIBUTES:
        _change(_SET_LINK, index, {ATTRIBUTES[name]: value})
    else:
        of_inet = pack({rt.IFLA_INET_CONF | _NESTED: pack({IPV4[name]: value})})
        _change(_SET_LINK, index, {rt.IFLA_AF_SPEC: pack({socket.AF_INET: of_inet})})


def _change(kind: int, index: int, attributes: Mapping[int, bytes], *, flags: int = 0, up: bool | None = None) -> None:
    changed = rt.IFINFOMSG.pack(0, 0, index, rt.IFF_UP if up else 0, 0 if up is None else rt.IFF_UP)
    change(kind, flags, changed + pack(attributes))


def pack_mac(mac: str) -> bytes:
    """A MAC address, of whatever length."""
    return bytes.fromhex(mac.replace(":", ""))


def _text(text: str) -> bytes:
    return text.encode() + b"\0"
