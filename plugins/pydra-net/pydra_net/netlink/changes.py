"""Carries out operations, each by one message. Source: rtnetlink(7)."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pyroute2.iproute.linux import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from pydra_net.kernel import KernelRefused
from pydra_net.netlink.bpf_programs import detach_programs
from pydra_net.netlink.ethtool import set_ethtool
from pydra_net.netlink.ip_messages import add, remove
from pydra_net.netlink.link_messages import keep_names, mark_link, remove_link, set_link, set_parameter, set_token
from pydra_net.netlink.link_reading import WITHOUT_COUNTERS
from pydra_net.netlink.sysctls import set_sysctl
from pydra_net.network_change_types import (
    Add,
    DetachPrograms,
    JoinVrf,
    KeepNames,
    Mark,
    Operation,
    Remove,
    RemoveLink,
    SetEthtool,
    SetFunction,
    SetLink,
    SetParameter,
    SetSysctls,
    SetToken,
)
from pydra_net.network_types import VirtualFunctionState

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


def apply_change(operation: Operation) -> None:
    """Do it in this thread's namespace; what is so already stays. Raises KernelRefused."""
    _APPLIERS[type(operation)](operation)


def _join_vrf(operation: JoinVrf) -> None:
    """Make the VRF, unless the pod has it, and put the link into it. Raises KernelRefused."""
    with IPRoute() as ip:  # type: ignore[no-untyped-call]
        vrf = _find_or_make_vrf(ip, operation.name, operation.table)
    set_link(SetLink(index=vrf, up=True))
    set_link(SetLink(index=operation.index, master=vrf))
    try:
        for sysctl in _ANY_VRF:
            with suppress(FileNotFoundError):
                set_sysctl(f"net/ipv4/{sysctl}", 1)
    except OSError as error:
        raise KernelRefused(f"{sysctl} = 1 (net.ipv4): {error.strerror}") from error


def _find_or_make_vrf(ip: Any, name: str, table: int) -> int:
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
    return int(found["index"])


def _set_sysctls(operation: SetSysctls) -> None:
    """Set as many as possible. Raises KernelRefused."""
    refused = []
    for name, value in operation.values.items():
        folder, _, leaf = name.rpartition("/")
        try:
            set_sysctl(f"net/{folder}/{socket.if_indextoname(operation.index)}/{leaf}", value)
        except OSError as error:
            refused.append(f"{leaf} = {value} (net.{folder.replace('/', '.')}): {error.strerror}")
    if refused:
        raise KernelRefused("; ".join(refused))


def _set_function(operation: SetFunction) -> None:
    with IPRoute() as ip:  # type: ignore[no-untyped-call]
        call(ip.link, "set", index=operation.index, vf=_build_function(operation.number, operation.state))


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


_APPLIERS: Mapping[type, Callable[[Any], None]] = {
    SetLink: set_link,
    SetParameter: set_parameter,
    SetSysctls: _set_sysctls,
    SetToken: set_token,
    SetEthtool: set_ethtool,
    SetFunction: _set_function,
    DetachPrograms: detach_programs,
    JoinVrf: _join_vrf,
    Mark: mark_link,
    KeepNames: keep_names,
    RemoveLink: remove_link,
    Add: add,
    Remove: remove,
}
