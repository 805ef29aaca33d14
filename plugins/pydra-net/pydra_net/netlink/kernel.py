"""The kernel itself. Every call opens a socket in a namespace, asks, and closes it: half a millisecond."""

from __future__ import annotations

import errno
import ipaddress
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from pyroute2.iproute.linux import IPRoute
from pyroute2.netlink.exceptions import NetlinkDumpInterrupted, NetlinkError

from pydra_net.hardware_types import FOREVER, Link, Reading
from pydra_net.netlink.events import LinkEvents
from pydra_net.netlink.namespaces import OpenNamespace
from pydra_net.netlink.parameters import set_parameter
from pydra_net.netlink.reading import read_all, read_link, read_links
from pydra_net.operations import (
    AddAddress,
    AddNeighbour,
    AddRoute,
    AddRule,
    KernelRefused,
    Mark,
    Namespace,
    NewLink,
    Operation,
    RemoveLink,
    SetLink,
    SetParameter,
)

T = TypeVar("T")
_ATTEMPTS = 4
_FAMILIES = {4: 2, 6: 10}
_IPVLAN_MODES = {"l2": 0, "l3": 1, "l3s": 2}


class NetlinkKernel:
    """Implements `operations.Kernel`. `directories` have the files of the namespaces of pods."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = directories

    def open(self, path: str) -> OpenNamespace:
        """The namespace at this path. Raises NamespaceGone."""
        return OpenNamespace(path)

    def watch(self, where: Namespace) -> LinkEvents:
        """Events of links, addresses and routes from now on."""
        assert isinstance(where, OpenNamespace)
        return LinkEvents(where)

    def list_paths(self) -> Sequence[str]:
        """The files in the directories."""
        return [path for directory in self._directories for path in _list(directory)]

    def read(self, where: Namespace) -> Reading:
        """Everything in the namespace."""
        return _ask(where, read_all)

    def read_links(self, where: Namespace) -> Reading:
        """The links only."""
        return _ask(where, read_links)

    def read_link(self, where: Namespace, index: int) -> Link | None:
        """One link."""

        def read_one(ip: Any) -> Link | None:
            try:
                return next(map(read_link, ip.get_links(index)), None)
            except NetlinkError as error:
                if error.code != errno.ENODEV:
                    raise
                return None

        return _ask(where, read_one)

    def move(self, where: Namespace, index: int, to: Namespace, name: str) -> None:
        """Move and rename in one message: the link has its own name, or the other one in the other namespace."""
        assert isinstance(to, OpenNamespace)
        _ask(where, lambda ip: _call(ip.link, "set", index=index, net_ns_fd=to.fd, ifname=name))

    def make(self, where: Namespace, index: int, link: NewLink, to: Namespace) -> None:
        """Make the link in the other namespace."""
        assert isinstance(to, OpenNamespace)
        optional = {"address": link.mac, "mtu": link.mtu}
        named: dict[str, Any] = {name: value for name, value in optional.items() if value}
        match link.kind:
            case "macvlan":
                named["macvlan_mode"] = link.mode
            case "ipvlan":
                named["ipvlan_mode"] = _IPVLAN_MODES[link.mode]
            case "vlan":
                named["vlan_id"] = link.vlan
        _ask(
            where,
            lambda ip: _call(ip.link, "add", kind=link.kind, link=index, net_ns_fd=to.fd, ifname=link.name, **named),
        )

    def apply(self, where: Namespace, operations: Sequence[Operation]) -> Sequence[str]:
        """Do all of it, in order; what is so already stays. Returns what was refused, each with the kernel's words."""

        def apply_all(ip: Any) -> list[str]:
            refused = []
            for operation in operations:
                try:
                    _apply(ip, operation)
                except KernelRefused as error:
                    if not (error.taken and isinstance(operation, AddRule | Mark)):
                        refused.append(f"{operation}: {error}")
            return refused

        return _ask(where, apply_all) if operations else ()


def _list(directory: str) -> list[str]:
    try:
        return [os.path.join(directory, name) for name in sorted(os.listdir(directory))]
    except OSError:
        return []


def _ask(where: Namespace, work: Callable[[Any], T]) -> T:
    assert isinstance(where, OpenNamespace)

    def open_and_work() -> T:
        with IPRoute() as ip:  # type: ignore[no-untyped-call]
            return work(ip)

    for _ in range(_ATTEMPTS - 1):
        with suppress(NetlinkDumpInterrupted):  # something changed meanwhile
            return where.run(open_and_work)
    return where.run(open_and_work)


def _call(function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Call, and wait for the kernel's answer. Raises KernelRefused."""
    try:
        function(*arguments, **named)
    except NetlinkError as error:
        text = error.args[1] if len(error.args) > 1 and error.args[1] else os.strerror(error.code)
        raise KernelRefused(text, taken=error.code == errno.EEXIST) from error


def _apply(ip: Any, operation: Operation) -> None:
    match operation:
        case SetLink():
            _call(ip.link, "set", **_build_link(operation))
        case SetParameter(index=index, name=name, value=value):
            _call(set_parameter, ip, index, name, value)
        case Mark(index=index, name=name, present=present):
            _call(ip.link, "property_add" if present else "property_del", index=index, altname=name)
        case RemoveLink(index=index):
            _call(ip.link, "del", index=index)
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
            _call(ip.addr, "replace", index=index, address=address, prefixlen=length, family=family, **local, **named)
        case AddRoute(index=index, route=route):
            optional = {
                "gateway": route.gateway,
                "prefsrc": route.source,
                "priority": route.priority,
                "flags": route.flags,
                "metrics": {name.removeprefix("RTAX_").lower(): value for name, value in route.metrics.items()},
            }
            _call(
                ip.route,
                "replace",
                family=_FAMILIES[route.family],
                dst=route.destination,
                oif=index,
                table=route.table,
                scope=route.scope,
                type=route.type,
                proto=route.protocol or 4,
                **{name: value for name, value in optional.items() if value},
            )
        case AddNeighbour(index=index, neighbour=neighbour):
            _call(
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
            _call(
                ip.rule,
                "add",
                family=_FAMILIES[rule.family],
                table=rule.table,
                priority=rule.priority,
                **{name: value for name, value in named.items() if value},
            )


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
