"""Who reads and changes network namespaces: the kernel (`netlink.kernel`), or a simulation (`simulation.kernel`)."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import Protocol

from pydra import ClaimError
from pydra_net.network_change_types import NewLink, Operation
from pydra_net.network_types import Ethtool, Link, Programs, RdmaDevice, Reading, VirtualFunctionState


class Namespace(Protocol):
    """A network namespace that is kept from ending until it is closed."""

    path: str

    def is_same(self, other: Namespace) -> bool:
        """Whether both are one namespace."""
        ...

    def close(self) -> None:
        """Let it end, if nobody else uses it."""
        ...


class Events(Protocol):
    """Events of a namespace, as hints to look again."""

    async def wait(self) -> None:
        """Return when something has changed since the last call."""
        ...

    def close(self) -> None:
        """Receive no more."""
        ...


class Packets(Protocol):
    """Sockets of a DHCP client on a link. What fails raises OSError."""

    async def send(self, message: bytes, server: str, /) -> None:
        """Send a message to the server, or to all."""
        ...

    async def receive(self) -> bytes:
        """The next message to a client."""
        ...

    def close(self) -> None:
        """Receive no more."""
        ...


_PASSING = frozenset(
    {
        *(errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM),
        *(errno.EIO, errno.ENETDOWN, errno.ETIMEDOUT),
    }
)
"""Something is short or busy; hardware, or the link below, does not work."""


class KernelRefused(ClaimError):
    """The kernel refused a change. `code` is its error number, 0 if it gave none.

    `taken`: a link has that name already. `passes`: it may do the same later; other errors are for ever, such as
    that of a route whose gateway is not reached any more.
    """

    reason = "KernelRefused"

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.taken = code == errno.EEXIST
        self.passes = code in _PASSING


class NamespaceGone(ClaimError):
    """There is no network namespace at a path."""

    reason = "NamespaceGone"


class Kernel(Protocol):
    """Reads and changes network namespaces. Blocks: call it in a thread."""

    def open(self, path: str) -> Namespace:
        """The namespace at this path. Raises NamespaceGone."""
        ...

    def watch(self, where: Namespace) -> Events:
        """Events of links, addresses and routes from now on."""
        ...

    def list_paths(self) -> Sequence[str]:
        """The paths of all namespaces of pods that can be seen."""
        ...

    def read(self, where: Namespace) -> Reading:
        """Everything in the namespace."""
        ...

    def read_links(self, where: Namespace) -> Reading:
        """The links only, which is faster."""
        ...

    def read_link(self, where: Namespace, index: int) -> Link | None:
        """One link, which takes as long on a node with a thousand of them."""
        ...

    def read_ethtool(self, where: Namespace, index: int) -> Ethtool:
        """What ethtool can set of a link."""
        ...

    def read_changed_sysctls(self, where: Namespace, link: Link) -> Mapping[str, int | str]:
        """The sysctls of a link that are not as those of the namespace's default, by names as `ipv6/conf/accept_ra`."""
        ...

    def read_token(self, where: Namespace, index: int) -> str:
        """The part of a link's IPv6 addresses that is not a router's, as `::5`; empty if none is set."""
        ...

    def read_programs(self, where: Namespace, indexes: Sequence[int]) -> Mapping[int, Programs]:
        """The eBPF programs of links, of those that have some."""
        ...

    def open_packets(self, where: Namespace, index: int, address: str) -> Packets:
        """Sockets for DHCP on a link, which uses this address, or none yet. Raises OSError."""
        ...

    def find_user(self, where: Namespace, link: Link, address: str) -> str:
        """The MAC address of somebody else on a link's network who has an IPv4 address, or empty. Raises OSError."""
        ...

    def read_function(self, where: Namespace, index: int, number: int) -> VirtualFunctionState | None:
        """What a card, whose link this is, does with a virtual function; None if it cannot tell."""
        ...

    def read_rdma(self, where: Namespace) -> Sequence[RdmaDevice]:
        """The RDMA devices only."""
        ...

    def move_rdma(self, where: Namespace, index: int, to: Namespace) -> None:
        """Move an RDMA device to another namespace. Raises KernelRefused."""
        ...

    def move(self, where: Namespace, index: int, to: Namespace, name: str) -> Link:
        """Move a link to another namespace, with another name, and return it. It arrives down and without addresses.

        Raises KernelRefused.
        """
        ...

    def make(self, where: Namespace, index: int, link: NewLink, to: Namespace) -> None:
        """Make a virtual link on the one of this index, in another namespace at once. Raises KernelRefused."""
        ...

    def apply(self, where: Namespace, operations: Sequence[Operation]) -> Sequence[KernelRefused]:
        """Do all of it, in order; what is so already stays. Returns what was refused, each with the operation.

        Raises KernelRefused: nothing was done.
        """
        ...
