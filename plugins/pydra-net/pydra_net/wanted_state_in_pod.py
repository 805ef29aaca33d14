"""How an interface should be in a pod: as it is on the node, with what the claim configures. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address, ip_interface, ip_network

from msgspec.structs import replace

from pydra_net.claim_config import EthtoolConfig, InterfaceConfig, NetworkConfig, RouteConfig, RuleConfig
from pydra_net.interface_state import InterfaceState, by_dependency
from pydra_net.network_types import MAIN_TABLE, Address, Interface, Neighbour, Route, Rule

_STATIC = 4
_PRIORITY_OF_IPV6 = 1024
"""What the kernel gives to routes without one."""
_NO_DETECTION = 0x2


def find_state_in_pod(
    interface: Interface, config: NetworkConfig, ethtool: EthtoolConfig | None = None
) -> InterfaceState:
    """How it is in the pod: as it is on the node, with what the claim configures; `ethtool` has the kernel's names.

    Addresses, or DHCP, replace those of the node, and with these the routes, which may need them.
    """
    wanted = config.interface
    if wanted.disable_ipv6:
        interface = _without_ipv6(interface)
    keeps = not (wanted.addresses or wanted.uses_dhcp or wanted.addressing == "SLAAC")
    table = wanted.vrf.number if wanted.vrf else 0
    addresses = (
        interface.addresses if keeps else tuple(Address(address=str(ip_interface(one))) for one in wanted.addresses)
    )
    routes = (*(interface.routes if keeps else ()), *map(_build_route, config.routes))
    if table:
        routes = tuple(replace(one, table=table) for one in routes)
    return InterfaceState(
        name=wanted.name or interface.link.name,
        mtu=wanted.mtu or interface.link.mtu,
        mac=(wanted.hardware_addr or interface.link.mac).lower(),
        alias=interface.link.alias,
        parameters=wanted.list_parameters(),
        addresses=tuple(map(_without_detection, addresses)),
        routes=tuple(sorted(routes, key=by_dependency)),
        neighbours=(
            *interface.neighbours,
            *(
                Neighbour(destination=_format(one.destination, ip_address), mac=one.hardware_addr.lower())
                for one in config.neighbors
            ),
        ),
        rules=(*(interface.rules if keeps and not table else ()), *map(_build_rule, config.rules)),
        features=ethtool.features if ethtool else {},
        private_flags=ethtool.private_flags if ethtool else {},
        vrf=wanted.vrf.name if wanted.vrf else "",
        vrf_table=table,
        without_programs=bool(wanted.disable_ebpf_programs),
        dhcp=wanted.uses_dhcp,
        slaac=wanted.addressing == "SLAAC",
        sysctls=_list_sysctls(
            wanted, uses_ipv6=6 in {*(one.family for one in addresses), *(one.family for one in routes)}
        ),
    )


def _without_ipv6(interface: Interface) -> Interface:
    return replace(
        interface,
        addresses=tuple(one for one in interface.addresses if one.family == 4),
        routes=tuple(one for one in interface.routes if one.family == 4),
        neighbours=tuple(one for one in interface.neighbours if ip_address(one.destination).version == 4),
        rules=tuple(one for one in interface.rules if one.family == 4),
    )


def _list_sysctls(wanted: InterfaceConfig, *, uses_ipv6: bool) -> dict[str, int]:
    """Those of IPv6. What uses it has it, also in a pod whose interfaces have none; the node's kernel may lack it."""
    found = ({"disable_ipv6": 0} if uses_ipv6 else {}) | wanted.list_sysctls()
    if wanted.forwarding is not None and found:
        found["forwarding"] = int(wanted.forwarding)
    return {f"ipv6/conf/{name}": value for name, value in found.items()}


def _without_detection(address: Address) -> Address:
    """Without the detection of duplicates, for which an address of IPv6 could not be used for a second."""
    return replace(address, label="", flags=address.flags | _NO_DETECTION if address.family == 6 else address.flags)


def _build_route(config: RouteConfig) -> Route:
    """As the kernel reports it."""
    destination = ip_network(config.destination)
    return Route(
        destination=str(destination),
        gateway=_format(config.gateway, ip_address),
        source=_format(config.source, ip_address),
        scope=config.scope if destination.version == 4 else 0,
        table=config.table or MAIN_TABLE,
        protocol=_STATIC,
        priority=0 if destination.version == 4 else _PRIORITY_OF_IPV6,
    )


def _build_rule(config: RuleConfig) -> Rule:
    return Rule(
        family=ip_network(config.source or config.destination or "").version,
        table=config.table,
        priority=config.priority,
        source=_format(config.source, ip_network),
        destination=_format(config.destination, ip_network),
    )


def _format(text: str | None, parse: Callable[[str], object]) -> str:
    """The address as the kernel has it: in small letters, and as short as possible."""
    return str(parse(text)) if text else ""
