"""Carries out operations, each by one message. Source: rtnetlink(7)."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError

from pydra_net.kernel import KernelRefused
from pydra_net.netlink.ethtool import set_ethtool
from pydra_net.netlink.link_messages import WITHOUT_COUNTERS, set_parameter
from pydra_net.netlink.programs import detach_programs
from pydra_net.netlink.sysctls import set_sysctl
from pydra_net.network_types import FOREVER, Route, VirtualFunctionState
from pydra_net.operations import (
    AddAddress,
    AddNeighbour,
    AddRoute,
    AddRule,
    DetachPrograms,
    JoinVrf,
    Mark,
    Operation,
    RemoveAddress,
    RemoveLink,
    RemoveRoute,
    SetEthtool,
    SetFunction,
    SetLink,
    SetParameter,
    SetSysctls,
)

_FAMILIES = {4: 2, 6: 10}
_ANY_VRF = ("tcp_l3mdev_accept", "udp_l3mdev_accept")
"""Let servers that listen on all addresses be reached in each VRF."""


def call(function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Call, and wait for the kernel's answer. Raises KernelRefused."""
    try:
        function(*arguments, **named)
    except NetlinkError as error:
        raise KernelRefused(explain(error), taken=error.code == errno.EEXIST) from error


def explain(error: NetlinkError) -> str:
    """What the kernel says."""
    return str(error.args[1]) if len(error.args) > 1 and error.args[1] else os.strerror(error.code)


def apply_change(ip: Any, operation: Operation) -> None:
    """Do it; what is so already stays. Raises KernelRefused."""
    match operation:
        case SetLink():
            call(ip.link, "set", **_build_link(operation))
        case SetParameter(index=index, name=name, value=value):
            set_parameter(index, name, value)
        case SetSysctls(index=index, values=values):
            _set_sysctls(index, values)
        case SetFunction():
            call(ip.link, "set", index=operation.index, vf=_build_function(operation.number, operation.state))
        case SetEthtool():
            set_ethtool(operation)
        case DetachPrograms(index=index):
            detach_programs(ip, index)
        case JoinVrf(index=index, name=name, table=table):
            _join_vrf(ip, index, name, table)
        case Mark(index=index, name=name, present=present):
            call(ip.link, "property_add" if present else "property_del", index=index, altname=name)
        case RemoveLink(index=index):
            call(ip.link, "del", index=index)
        case _:
            _add(ip, operation)


def _add(ip: Any, operation: Operation) -> None:
    match operation:
        case AddAddress(index=index, address=one):
            interface = ipaddress.ip_interface(one.address)
            optional = {
                "address": one.peer.partition("/")[0],
                "broadcast": one.broadcast,
                "label": one.label,
                "flags": one.flags,
                "scope": one.scope,
            }
            if one.valid != FOREVER:
                optional |= {"valid_lft": one.valid, "preferred_lft": one.preferred}
            named = {name: value for name, value in optional.items() if value}
            address = named.pop("address", str(interface.ip))
            local = {"local": str(interface.ip)} if interface.version == 4 or one.peer else {}
            family = _FAMILIES[interface.version]
            length = interface.network.prefixlen
            call(ip.addr, "replace", index=index, address=address, prefixlen=length, family=family, **local, **named)
        case RemoveAddress(index=index, address=one):
            interface = ipaddress.ip_interface(one.address)
            call(ip.addr, "del", index=index, address=str(interface.ip), prefixlen=interface.network.prefixlen)
        case AddRoute(index=index, route=route):
            call(ip.route, "replace", **_build_route(index, route))
        case RemoveRoute(index=index, route=route):
            call(ip.route, "del", **_build_route(index, route))
        case AddNeighbour(index=index, neighbour=neighbour):
            call(
                ip.neigh,
                "replace",
                ifindex=index,
                dst=neighbour.destination,
                lladdr=neighbour.mac,
                state="permanent",
                family=_FAMILIES[ipaddress.ip_address(neighbour.destination).version],
            )
        case AddRule(rule=rule):
            named = {"src": rule.source, "dst": rule.destination}
            call(
                ip.rule,
                "add",
                family=_FAMILIES[rule.family],
                table=rule.table,
                priority=rule.priority,
                **{name: value for name, value in named.items() if value},
            )


def _build_route(index: int, route: Route) -> dict[str, Any]:
    optional = {
        "gateway": route.gateway,
        "prefsrc": route.source,
        "priority": route.priority,
        "flags": route.flags,
        "metrics": {name.removeprefix("RTAX_").lower(): value for name, value in route.metrics.items()},
    }
    return {
        "family": _FAMILIES[route.family],
        "dst": route.destination,
        "oif": index,
        "table": route.table,
        "scope": route.scope,
        "type": route.type,
        "proto": route.protocol or 4,
        **{name: value for name, value in optional.items() if value},
    }


def _join_vrf(ip: Any, index: int, name: str, table: int) -> None:
    """Make the VRF, unless the pod has it, and put the link into it. Raises KernelRefused."""
    found = next((one for one in ip.get_links(ext_mask=WITHOUT_COUNTERS) if one.get_attr("IFLA_IFNAME") == name), None)
    if found is None:
        call(ip.link, "add", ifname=name, kind="vrf", vrf_table=table)
        (found,) = ip.get_links(ifname=name)
    info = found.get_attr("IFLA_LINKINFO")
    if info is None or info.get_attr("IFLA_INFO_KIND") != "vrf":
        raise KernelRefused("the pod has another interface of this name")
    its_table = info.get_attr("IFLA_INFO_DATA").get_attr("IFLA_VRF_TABLE")
    if its_table != table:
        raise KernelRefused(f"the pod has a VRF of this name with table {its_table}")
    call(ip.link, "set", index=found["index"], state="up")
    call(ip.link, "set", index=index, master=found["index"])
    try:
        for sysctl in _ANY_VRF:
            with suppress(FileNotFoundError):
                set_sysctl(f"net/ipv4/{sysctl}", 1)
    except OSError as error:
        raise KernelRefused(f"{sysctl} = 1 (net.ipv4): {error.strerror}") from error


def _set_sysctls(index: int, values: Mapping[str, int]) -> None:
    """Set those of IPv6. Raises KernelRefused."""
    for name, value in values.items():
        try:
            set_sysctl(f"net/ipv6/conf/{socket.if_indextoname(index)}/{name}", value)
        except OSError as error:
            raise KernelRefused(f"{name} = {value} (net.ipv6.conf): {error.strerror}") from error


def _build_function(number: int, wanted: VirtualFunctionState) -> dict[str, Any]:
    named: dict[str, Any] = {
        "mac": wanted.mac,
        "spoofchk": None if wanted.spoof_check is None else int(wanted.spoof_check),
        "trust": None if wanted.trust is None else int(wanted.trust),
        "link_state": wanted.link_state,
        "vlan": None if wanted.vlan is None else {"vlan": wanted.vlan, "qos": wanted.qos or 0},
    }
    if wanted.max_rate is not None:
        named["rate"] = {"min_tx_rate": wanted.min_rate or 0, "max_tx_rate": wanted.max_rate}
    return {"vf": number, **{name: value for name, value in named.items() if value is not None}}


def _build_link(wanted: SetLink) -> dict[str, Any]:
    named = {
        "index": wanted.index,
        "ifname": wanted.name,
        "mtu": wanted.mtu,
        "address": wanted.mac,
        "ifalias": wanted.alias,
        "master": wanted.master,
        "state": None if wanted.up is None else "up" if wanted.up else "down",
    }
    return {name: value for name, value in named.items() if value is not None}
