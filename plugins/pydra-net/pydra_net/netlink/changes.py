"""Carries out operations, each by one message. Source: rtnetlink(7)."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from pyroute2.iproute.linux import IPRoute
from pyroute2.netlink.exceptions import NetlinkDumpInterrupted, NetlinkError

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


def explain(error: NetlinkError | OSError) -> KernelRefused:
    """What the kernel says."""
    if isinstance(error, OSError):
        return KernelRefused(error.strerror or str(error), error.errno or 0)
    code = errno.EAGAIN if isinstance(error, NetlinkDumpInterrupted) else error.code
    return KernelRefused(str(error.args[1]), code)


def apply_change(operation: Operation) -> None:
    """Do it in this thread's namespace; what is so already stays. Raises KernelRefused."""
    try:
        _APPLIERS[type(operation)](operation)
    except NetlinkDumpInterrupted:
        raise
    except (NetlinkError, OSError) as error:  # no socket could be opened, or what pyroute2 asked for was refused
        raise explain(error) from error


def _join_vrf(operation: JoinVrf) -> None:
    """Make the VRF, unless the pod has it, and put the link into it. Raises KernelRefused."""
    with IPRoute() as ip:  # type: ignore[no-untyped-call]
        vrf = _find_or_make_vrf(ip, operation.name, operation.table)
    set_link(SetLink(index=vrf, up=True))
    set_link(SetLink(index=operation.index, master=vrf))
    for sysctl in _ANY_VRF:
        with suppress(FileNotFoundError):
            set_sysctl(f"net/ipv4/{sysctl}", 1)


def _find_or_make_vrf(ip: Any, name: str, table: int) -> int:
    found = next((one for one in ip.get_links(ext_mask=WITHOUT_COUNTERS) if one.get_attr("IFLA_IFNAME") == name), None)
    if found is None:
        ip.link("add", ifname=name, kind="vrf", vrf_table=table)
        (found,) = ip.get_links(ifname=name)
    info = found.get_attr("IFLA_LINKINFO")
    if info is None or info.get_attr("IFLA_INFO_KIND") != "vrf":
        raise KernelRefused("the pod has another interface of this name")
    its_table = info.get_attr("IFLA_INFO_DATA").get_attr("IFLA_VRF_TABLE")
    if its_table != table:
        raise KernelRefused(f"the pod has a VRF of this name with table {its_table}")
    return int(found["index"])


def _set_sysctls(operation: SetSysctls) -> None:
    for name, value in operation.values.items():
        folder, _, leaf = name.rpartition("/")
        set_sysctl(f"net/{folder}/{socket.if_indextoname(operation.index)}/{leaf}", value)


def _set_function(operation: SetFunction) -> None:
    with IPRoute() as ip:  # type: ignore[no-untyped-call]
        ip.link("set", index=operation.index, vf=_build_function(operation.number, operation.state))


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
