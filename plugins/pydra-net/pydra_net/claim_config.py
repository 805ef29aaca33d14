"""What claims and DeviceClasses may configure: the form of DRANET, and its names.

    interface: {name: net1, addresses: [10.0.0.5/24], mtu: 9000}
    routes: [{destination: 10.9.0.0/16, gateway: 10.0.0.1}]

Decoded strictly, in the backend and in the webhook alike. Source: kubernetes-sigs/dranet, its NetworkConfig.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

import msgspec

ParsedT = TypeVar("ParsedT")

GROUP_VERSION = "net.pydra.dev/v1alpha1"

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,15}$")]
Cidr = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Fa-f:.]{2,45}/[0-9]{1,3}$")]
Ip = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Fa-f:.]{2,45}$")]
Mac = Annotated[str, msgspec.Meta(pattern=r"^([0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}$")]
Table = Annotated[int, msgspec.Meta(ge=0, le=0xFFFFFFFF)]

_MAC = re.compile(r"[0-9a-f][02468ace]:.*")


class InterfaceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The interface in the pod."""

    name: Name | None = None
    """Its name in the pod; without one, as on the node."""
    addresses: Annotated[tuple[Cidr, ...], msgspec.Meta(max_length=64)] = ()
    """Its addresses in the pod, instead of those that it has on the node."""
    mtu: Annotated[int, msgspec.Meta(ge=68, le=65535)] | None = None
    """Its MTU in the pod."""
    hardware_addr: Mac | None = None
    """Its MAC address in the pod."""

    def __post_init__(self) -> None:
        """Refuse names and addresses that the kernel would refuse."""
        if self.name in (".", ".."):
            raise ValueError("name: must not be . or ..")
        if self.hardware_addr is not None and not _MAC.fullmatch(self.hardware_addr.lower()):
            raise ValueError(f'hardwareAddr: found "{self.hardware_addr}", which is a multicast address')
        for place, address in enumerate(self.addresses):
            _check(f"addresses[{place}]", address, ipaddress.ip_interface)


class RouteConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A route by the interface; `scope` 0 (with a gateway) or 253 (without)."""

    destination: Cidr
    gateway: Ip | None = None
    source: Ip | None = None
    scope: Literal[0, 253] = 0
    table: Table = 0
    """0: the main table."""

    def __post_init__(self) -> None:
        """Refuse routes that the kernel would refuse."""
        network = _check("destination", self.destination, ipaddress.ip_network)
        for name, address in (("gateway", self.gateway), ("source", self.source)):
            if address is not None and _check(name, address, ipaddress.ip_address).version != network.version:
                raise ValueError(f'{name}: found "{address}", which is not of the family of {self.destination}')
        if self.gateway is None and self.scope == 0:
            raise ValueError("gateway: is required, unless scope is 253")
        if self.gateway is not None and self.scope:
            raise ValueError("gateway: excludes scope 253, which is for networks of the interface itself")


class RuleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A rule that chooses a table by the source or destination of packets."""

    priority: Annotated[int, msgspec.Meta(ge=0, le=32767)] = 0
    source: Cidr | None = None
    destination: Cidr | None = None
    table: Table

    def __post_init__(self) -> None:
        """Refuse rules that the kernel would refuse."""
        named = (("source", self.source), ("destination", self.destination))
        families = {_check(name, one, ipaddress.ip_network).version for name, one in named if one is not None}
        if len(families) != 1:
            raise ValueError("source, destination: one is required, and both must be of one family")


class NeighborConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A permanent neighbour."""

    destination: Ip
    hardware_addr: Mac

    def __post_init__(self) -> None:
        """Refuse addresses that are none."""
        _check("destination", self.destination, ipaddress.ip_address)


class NetworkConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How an interface is in the pod."""

    interface: InterfaceConfig = InterfaceConfig()
    routes: Annotated[tuple[RouteConfig, ...], msgspec.Meta(max_length=256)] = ()
    """Beside those that it has on the node, unless its addresses are replaced."""
    rules: Annotated[tuple[RuleConfig, ...], msgspec.Meta(max_length=256)] = ()
    neighbors: Annotated[tuple[NeighborConfig, ...], msgspec.Meta(max_length=256)] = ()


CONFIG_TYPES: dict[str, type] = {"": NetworkConfig, f"{GROUP_VERSION}/NetworkConfig": NetworkConfig}
"""DRANET's configurations have neither apiVersion nor kind."""


def _check(name: str, text: str, parse: Callable[[str], ParsedT]) -> ParsedT:
    """The parsed text. Raises ValueError with the field's name."""
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f'{name}: found "{text}": {error}') from error
