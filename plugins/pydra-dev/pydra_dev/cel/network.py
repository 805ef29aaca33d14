"""IP addresses and CIDR blocks in CEL. Pure.

Values travel as maps of one entry, like quantities: see `functions`.
Source: `pkg/cel/library/{ip,cidr}.go` of k8s.io/apiserver, Kubernetes 1.36; `net/netip` of Go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_interface, ip_network
from typing import TypeAlias

IP, CIDR = "net.IP", "net.CIDR"

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
_Value: TypeAlias = Mapping[str, str]


# Addresses


def parse_ip(text: str) -> Address:
    """Parse an address as Kubernetes allows it; raises ValueError."""
    if "%" in text:
        raise ValueError(f"IP address {text!r} with zone value is not allowed")
    try:
        address = ip_address(text)
    except ValueError:
        raise ValueError(f"IP Address {text!r} parse error during conversion from string") from None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        raise ValueError(f"IPv4-mapped IPv6 address {text!r} is not allowed")
    return address


def build_ip(text: str) -> _Value:
    """The value of `ip(text)`; raises ValueError."""
    return {IP: str(parse_ip(text))}


def is_canonical(text: str) -> bool:
    """Whether the address is written as Kubernetes writes it; raises ValueError for what is not one."""
    return str(parse_ip(text)) == text


def is_link_local_multicast(value: _Value) -> bool:
    """Whether the address is in 224.0.0.0/24 or ff?2::/16."""
    address = ip_address(value[IP])
    if isinstance(address, IPv4Address):
        return address in ip_network("224.0.0.0/24")
    return int(address) >> 112 & 0xFF0F == 0xFF02


def is_global_unicast(value: _Value) -> bool:
    """As Go has it: private addresses are, too."""
    address = ip_address(value[IP])
    others = address.is_unspecified or address.is_loopback or address.is_multicast or is_link_local_unicast(value)
    return not others and address != IPv4Address("255.255.255.255")


def is_link_local_unicast(value: _Value) -> bool:
    """Whether the address is in 169.254.0.0/16 or fe80::/10."""
    return ip_address(value[IP]).is_link_local


# Blocks of addresses


def build_cidr(text: str) -> _Value:
    """The value of `cidr(text)`, which keeps the address; raises ValueError."""
    address, slash, length = text.partition("/")
    if not slash or not re.fullmatch(r"0|[1-9][0-9]{0,2}", length):
        raise ValueError(f"network address parse error during conversion from string: {text!r} is not a CIDR block")
    parsed = parse_ip(address)
    if int(length) > parsed.max_prefixlen:
        raise ValueError(
            f"network address parse error during conversion from string: {text!r}: prefix length is too long"
        )
    return {CIDR: f"{parsed}/{length}"}


def _network(value: _Value) -> Network:
    return ip_interface(value[CIDR]).network


def contains_ip(value: _Value, address: _Value | str) -> bool:
    """Whether the block has the address; raises ValueError for a string that is not one."""
    return (parse_ip(address) if isinstance(address, str) else ip_address(address[IP])) in _network(value)


def contains_cidr(value: _Value, other: _Value | str) -> bool:
    """Whether the block has all of another; raises ValueError for a string that is not one."""
    own, its = _network(value), _network(build_cidr(other) if isinstance(other, str) else other)
    return own.version == its.version and its.subnet_of(own)  # type: ignore[arg-type] # of one version


def mask(value: _Value) -> _Value:
    """The block without the bits of its address below the prefix."""
    return {CIDR: str(_network(value))}
