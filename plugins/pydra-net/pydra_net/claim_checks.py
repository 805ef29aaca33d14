"""Finds, when a claim is planned, what the kernel would refuse when the pod begins. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TypeAlias

from pydra import Claim, ClaimError, HeldClaim, TerminalError
from pydra_net.claim_config import NetworkConfig, find_gateway_problem, get_field_name
from pydra_net.interface_state import InterfaceState
from pydra_net.network_types import LEAST_MTU_OF_IPV6, Link, Reading
from pydra_net.steps import InterfaceStep, ShareInterface
from pydra_net.steps_of_held_claims import list_holders

Ip: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

POD_INTERFACE = "eth0"
"""The name that container runtimes give to the interface of the pod network."""

_ETHERNET = 1
"""The kernel's number for links of this type; others, as those of InfiniBand, have longer addresses, or none."""

_EXCLUSIVE = frozenset({"macvlan", "ipvlan"})
"""An interface has only those of one of these kinds."""


class InterfaceBusy(ClaimError):
    """Another claim's share of the interface excludes this one."""

    reason = "InterfaceBusy"


def check_parameters(config: NetworkConfig, link: Link, target: InterfaceState) -> None:
    """Raise TerminalError for parameters that the link cannot have, and for DHCP where its messages have no place."""
    if config.interface.uses_dhcp and link.hardware != _ETHERNET:
        raise TerminalError(f"interface.dhcp: {link.name} is not an Ethernet interface; set addresses instead")
    if config.interface.mtu:
        _check_mtu(config.interface.mtu, link, target)
    for name, value in config.interface.list_parameters().items():
        field = get_field_name(name)
        if name not in link.parameters:
            raise TerminalError(f"interface.{field}: the node's kernel cannot set it for {link.name}; remove it")
        if name.startswith("gso") and value > link.most_gso:
            raise TerminalError(f"interface.{field}: found {value}, but {link.name} can have {link.most_gso} at most")


def _check_mtu(mtu: int, link: Link, target: InterfaceState) -> None:
    if link.most_mtu and mtu > link.most_mtu:
        raise TerminalError(f"interface.mtu: found {mtu}, but {link.name} can have {link.most_mtu} at most")
    if mtu < LEAST_MTU_OF_IPV6 and (kept := [one.address for one in target.addresses if one.family == 6]):
        raise TerminalError(
            f"interface.mtu: found {mtu}, less than the {LEAST_MTU_OF_IPV6} that IPv6 needs, but {link.name} has "
            f"{kept[0]}; set a larger one, or disableIPv6"
        )


def check_gateways(config: NetworkConfig, target: InterfaceState) -> None:
    """Raise TerminalError for a gateway that no address and no route without one leads to: the pod could not start."""
    given = {4: target.dhcp, 6: target.slaac}
    problem = find_gateway_problem(
        config.routes,
        [one.address for one in target.addresses],
        [one.destination for one in target.routes if not one.gateway],
        [family for family, is_given in given.items() if is_given],
    )
    if problem:
        raise TerminalError(problem)


def check_addresses(target: InterfaceState, reading: Reading, index: int = 0) -> None:
    """Raise TerminalError for an address that the node itself has, on another link than that of this index."""
    elsewhere = [one for link, found in reading.addresses.items() if link != index for one in found]
    own = {ipaddress.ip_interface(one.address).ip for one in elsewhere}
    if taken := sorted(map(str, _list_ips(target) & own)):
        raise TerminalError(f"interface.addresses: the node itself has {taken[0]}; give the pod an address of its own")


def check_share(share: ShareInterface, reading: Reading, others: Sequence[tuple[InterfaceStep, str]]) -> None:
    """Check what a share may not have beside the node's interfaces and other shares.

    Raises:
        TerminalError: the node has one of its addresses, or an interface that excludes it, it is larger than the
            interface, or excludes another share of the same claim.
        InterfaceBusy: another claim's share has its VLAN, its address, or is of a kind or mode that excludes it.
    """
    parent, target = share.parent, share.target
    if target.mtu > parent.mtu:
        raise TerminalError(f"interface.mtu: found {target.mtu}, but {parent.name} has {parent.mtu}")
    check_addresses(target, reading)
    for link in reading.links:
        if link.lower == parent.index and (problem := _find_exclusion(share, link.kind, link.vlan, link.ipvlan_mode)):
            raise TerminalError(
                f"{share.name} ({share.device}) {problem.format(holder=f'the node itself ({link.name})')}"
            )
    for other, holder in others:
        if not isinstance(other, ShareInterface) or other.device != share.device or other.key == share.key:
            continue
        if problem := _find_conflict(share, other):
            text = f"{share.name} ({share.device}) {problem.format(holder=holder)}"
            raise TerminalError(text) if holder == "the same claim" else InterfaceBusy(text)


def check_pod(claim: Claim, steps: Sequence[InterfaceStep], held: Sequence[HeldClaim]) -> None:
    """Raise TerminalError for names of interfaces and VRFs that cannot be together in the claim's pod."""
    of_pod = [one for one in held if one.claim.pod == claim.pod and not one.left_over]
    names = {POD_INTERFACE: "the interface of the pod network"}
    vrfs: dict[str, int] = {}
    addresses: dict[tuple[str, Ip], str] = {}
    for step, holder in list_holders(of_pod, steps):
        target = step.target
        if target.name in names:
            raise TerminalError(
                f"{step.device} would have the name {target.name} in the pod, which {names[target.name]} has; set "
                "another interface.name in the claim's configuration"
            )
        if target.vrf and vrfs.setdefault(target.vrf, target.vrf_table) != target.vrf_table:
            raise TerminalError(
                f"{step.device} would be in the VRF {target.vrf} with table {target.vrf_table}, which has table "
                f"{vrfs[target.vrf]} for another interface of the pod; set the same interface.vrf.table in both"
            )
        for one in _list_ips(target):
            if taken := addresses.get((target.vrf, one)):
                raise TerminalError(f"interface.addresses: {step.device} would have {one} in the pod, as {taken}")
            addresses[target.vrf, one] = step.device if holder == "the same claim" else f"{step.device} of {holder}"
        names[target.name] = f"{step.device} of {holder}" if holder == "the same claim" else f"an interface of {holder}"
    if both := sorted(names.keys() & vrfs.keys()):
        raise TerminalError(f"interface.vrf.name: found {both[0]}, but {names[both[0]]} has this name in the pod")


def _find_conflict(share: ShareInterface, other: ShareInterface) -> str:
    """Return why both cannot be; `{holder}` stands for the other's claim."""
    if problem := _find_exclusion(share, other.kind, other.vlan, other.mode):
        return problem
    mine, theirs = _list_ips(share.target), _list_ips(other.target)
    if mine & theirs and share.vlan == other.vlan:
        return f"has a share with the address {min(map(str, mine & theirs))} for {{holder}} already"
    return ""


def _find_exclusion(share: ShareInterface, kind: str, vlan: int, ipvlan_mode: str) -> str:
    """Return why the share cannot be beside an interface on the same one; `{holder}` stands for who has that."""
    if share.kind == kind == "vlan" and share.vlan == vlan:
        return f"has VLAN {share.vlan} for {{holder}} already; it is free when that has ended"
    if share.kind != kind and {share.kind, kind} <= _EXCLUSIVE:
        return f"has {kind} interfaces, for {{holder}}, so the kernel makes no {share.kind} interface on it"
    if share.kind == kind == "ipvlan" and ipvlan_mode not in ("", share.mode):
        return (
            f"has ipvlan interfaces of mode {ipvlan_mode}, for {{holder}}, which would get the mode {share.mode}, too; "
            "set the same ipvlan.mode"
        )
    return ""


def _list_ips(target: InterfaceState) -> set[Ip]:
    """Without those that each link may have: link-local ones of IPv6."""
    found = {ipaddress.ip_interface(one.address).ip for one in target.addresses}
    return {one for one in found if one.version == 4 or not one.is_link_local}
