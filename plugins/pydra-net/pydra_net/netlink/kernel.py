"""The kernel itself. Every call enters a namespace in a thread, opens sockets there, asks, and closes them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from pyroute2.netlink.exceptions import NetlinkDumpInterrupted, NetlinkError

from pydra_net.kernel import KernelRefused, Namespace
from pydra_net.netlink.arp import find_user
from pydra_net.netlink.bpf_programs import read_programs
from pydra_net.netlink.changes import apply_change, explain
from pydra_net.netlink.dhcp_sockets import DhcpPackets, open_packets
from pydra_net.netlink.ethtool import read_ethtool
from pydra_net.netlink.events import LinkEvents
from pydra_net.netlink.link_messages import make_link, move_link
from pydra_net.netlink.link_reading import read_link, read_links, read_token
from pydra_net.netlink.namespaces import OpenNamespace
from pydra_net.netlink.rdma import move_rdma, read_rdma
from pydra_net.netlink.reading import read_all
from pydra_net.netlink.sysctls import read_changed_sysctls
from pydra_net.network_change_types import Add, Mark, NewLink, Operation, SetLink, SetSysctls
from pydra_net.network_types import Ethtool, Link, Programs, RdmaDevice, Reading, Rule, VirtualFunctionState

T = TypeVar("T")
_ATTEMPTS = 4


class NetlinkKernel:
    """Implements `kernel.Kernel`. `directories` have the files of the namespaces of pods."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = directories

    def open(self, path: str) -> OpenNamespace:
        """The namespace at this path. Raises NamespaceGone."""
        return OpenNamespace(path)

    def watch(self, where: Namespace) -> LinkEvents:
        """Events of links, addresses and routes from now on."""
        return LinkEvents(_opened(where))

    def list_paths(self) -> Sequence[str]:
        """The files in the directories."""
        return [path for directory in self._directories for path in _list(directory)]

    def read(self, where: Namespace) -> Reading:
        """Everything in the namespace."""
        return _run(where, read_all)

    def read_links(self, where: Namespace) -> Reading:
        """The links only."""
        return _run(where, read_links)

    def read_link(self, where: Namespace, index: int) -> Link | None:
        """One link."""
        return _run(where, lambda: read_link(index))

    def read_ethtool(self, where: Namespace, index: int) -> Ethtool:
        """What ethtool can set of a link."""
        return _opened(where).run(lambda: read_ethtool(index))

    def read_changed_sysctls(self, where: Namespace, link: Link) -> Mapping[str, int | str]:
        """The sysctls of a link that are not as those of the namespace's default."""
        return _opened(where).run(lambda: read_changed_sysctls(link.name))

    def read_token(self, where: Namespace, index: int) -> str:
        """The part of a link's IPv6 addresses that is not a router's."""
        return _run(where, lambda: read_token(index))

    def read_programs(self, where: Namespace, indexes: Sequence[int]) -> Mapping[int, Programs]:
        """The eBPF programs of links, of those that have some."""
        return _run(where, lambda: read_programs(indexes))

    def open_packets(self, where: Namespace, index: int, address: str) -> DhcpPackets:
        """Sockets for DHCP on a link, which uses this address, or none yet. Raises OSError."""
        return _opened(where).run(lambda: open_packets(index, address))

    def find_user(self, where: Namespace, link: Link, address: str) -> str:
        """The MAC address of somebody else on a link's network who has an IPv4 address, or empty. Raises OSError."""
        return _opened(where).run(lambda: find_user(link.index, link.mac, address))

    def read_function(self, where: Namespace, index: int, number: int) -> VirtualFunctionState | None:
        """What a card, whose link this is, does with a virtual function; None if it cannot tell."""
        found = _run(where, lambda: read_link(index, functions=True))
        functions = () if found is None else found.functions
        return functions[number] if number < len(functions) else None

    def read_rdma(self, where: Namespace) -> Sequence[RdmaDevice]:
        """The RDMA devices only."""
        return _run(where, read_rdma)

    def move_rdma(self, where: Namespace, index: int, to: Namespace) -> None:
        """Move an RDMA device to another namespace. Raises KernelRefused."""
        file = _opened(to).fd
        _opened(where).run(lambda: move_rdma(index, file))

    def move(self, where: Namespace, index: int, to: Namespace, name: str) -> Link:
        """Move and rename in one message: the link has its own name, or the other one in the other namespace."""
        file = _opened(to).fd
        _run(where, lambda: move_link(index, file, name))
        found = _run(to, lambda: read_link(0, name=name))
        if found is None:
            raise KernelRefused(f"{name} vanished when it had been moved")
        return found

    def make(self, where: Namespace, index: int, link: NewLink, to: Namespace) -> None:
        """Make the link in the other namespace."""
        file = _opened(to).fd
        _run(where, lambda: make_link(index, link, file))

    def apply(self, where: Namespace, operations: Sequence[Operation]) -> Sequence[KernelRefused]:
        """Do all of it, in order; what is so already stays. Returns what was refused."""

        def apply_all() -> list[KernelRefused]:
            refused = []
            waiting = deque(operations)
            while waiting:
                operation = waiting.popleft()
                try:
                    apply_change(operation)
                except KernelRefused as error:
                    if isinstance(operation, SetLink | SetSysctls) and len(parts := operation.split()) > 1:
                        waiting.extendleft(reversed(parts))  # to know which
                    elif not (error.taken and (isinstance(operation, Mark) or _adds_beside(operation))):
                        refused.append(KernelRefused(f"{operation}: {error}", error.code))
            return refused

        return _run(where, apply_all) if operations else ()


def _adds_beside(operation: Operation) -> bool:
    return isinstance(operation, Add) and (operation.beside or isinstance(operation.item, Rule))


def _list(directory: str) -> list[str]:
    try:
        return [os.path.join(directory, name) for name in sorted(os.listdir(directory))]
    except OSError:
        return []


def _opened(namespace: Namespace) -> OpenNamespace:
    assert isinstance(namespace, OpenNamespace)
    return namespace


def _run(where: Namespace, work: Callable[[], T]) -> T:
    try:
        for _ in range(_ATTEMPTS - 1):
            with suppress(NetlinkDumpInterrupted):  # something changed meanwhile
                return _opened(where).run(work)
        return _opened(where).run(work)
    except (NetlinkError, OSError) as error:
        found = explain(error)
        text = f"the kernel did not list the interfaces of {where.path}: {found}; try again"
        raise KernelRefused(text, found.code) from error
