"""What is done to a network namespace, as values, and who does it: the kernel, or a simulation of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from pydra import ClaimError
from pydra_net.hardware_types import (
    Address,
    Ethtool,
    FunctionState,
    Link,
    Neighbour,
    Programs,
    RdmaDevice,
    Reading,
    Route,
    Rule,
)


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


class SetLink(msgspec.Struct, frozen=True, kw_only=True):
    """Change a link; None leaves a setting as it is. `master` is an index, 0 releases the link."""

    index: int
    name: str | None = None
    up: bool | None = None
    mtu: int | None = None
    mac: str | None = None
    alias: str | None = None
    master: int | None = None

    def __str__(self) -> str:
        return "set " + ", ".join(f"{name} {value}" for name, value in self._list_changes().items())

    def split(self) -> list[SetLink]:
        """The same, as one change each."""
        return [SetLink(index=self.index, **{name: value}) for name, value in self._list_changes().items()]

    def _list_changes(self) -> dict[str, Any]:
        changes = {name: getattr(self, name) for name in self.__struct_fields__[1:]}
        return {name: value for name, value in changes.items() if value is not None}


class SetParameter(msgspec.Struct, frozen=True, kw_only=True):
    """Set one of a link's `link_parameters`."""

    index: int
    name: str
    value: int

    def __str__(self) -> str:
        return f"set {self.name} {self.value}"


class SetSysctls(msgspec.Struct, frozen=True, kw_only=True):
    """Set sysctls of net/ipv6/conf for a link."""

    index: int
    values: Mapping[str, int]

    def __str__(self) -> str:
        return "set " + ", ".join(f"{name} {value}" for name, value in self.values.items())


class SetEthtool(msgspec.Struct, frozen=True, kw_only=True):
    """Set features and private flags of a link, by the kernel's names."""

    index: int
    features: Mapping[str, bool] = {}
    private_flags: Mapping[str, bool] = {}

    def __str__(self) -> str:
        changes = {**self.features, **self.private_flags}
        return "set " + ", ".join(f"{name} {'on' if value else 'off'}" for name, value in changes.items())


class DetachPrograms(msgspec.Struct, frozen=True, kw_only=True):
    """Detach all eBPF programs of a link."""

    index: int

    def __str__(self) -> str:
        return "detach eBPF programs"


class JoinVrf(msgspec.Struct, frozen=True, kw_only=True):
    """Put a link into the VRF of this name, which is made if there is none."""

    index: int
    name: str
    table: int

    def __str__(self) -> str:
        return f"join the VRF {self.name} with table {self.table}"


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """Give a link an alternative name, or take it away."""

    index: int
    name: str
    present: bool = True

    def __str__(self) -> str:
        return f"{'add' if self.present else 'remove'} the alternative name {self.name}"


class AddAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Add an address."""

    index: int
    address: Address

    def __str__(self) -> str:
        return f"add address {self.address.address}"


class RemoveAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Remove an address."""

    index: int
    address: Address

    def __str__(self) -> str:
        return f"remove address {self.address.address}"


class AddRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Add a route by this link."""

    index: int
    route: Route

    def __str__(self) -> str:
        gateway = f" via {self.route.gateway}" if self.route.gateway else ""
        return f"add route {self.route.destination}{gateway} to table {self.route.table}"


class RemoveRoute(msgspec.Struct, frozen=True, kw_only=True):
    """Remove a route by this link."""

    index: int
    route: Route

    def __str__(self) -> str:
        return f"remove route {self.route.destination} from table {self.route.table}"


class AddNeighbour(msgspec.Struct, frozen=True, kw_only=True):
    """Add a permanent neighbour."""

    index: int
    neighbour: Neighbour

    def __str__(self) -> str:
        return f"add neighbour {self.neighbour.destination}"


class AddRule(msgspec.Struct, frozen=True, kw_only=True):
    """Add a rule."""

    rule: Rule

    def __str__(self) -> str:
        return f"add the rule with priority {self.rule.priority} for table {self.rule.table}"


class SetFunction(msgspec.Struct, frozen=True, kw_only=True):
    """Change what a card, whose link this is, does with a virtual function; None leaves a setting as it is."""

    index: int
    number: int
    state: FunctionState

    def __str__(self) -> str:
        return "set " + ", ".join(f"{name} {value}" for name, value in self.state.list_known().items())


class RemoveLink(msgspec.Struct, frozen=True, kw_only=True):
    """Remove a virtual link."""

    index: int

    def __str__(self) -> str:
        return "remove the interface"


Operation: TypeAlias = (
    SetLink
    | SetParameter
    | SetSysctls
    | SetEthtool
    | DetachPrograms
    | JoinVrf
    | Mark
    | AddAddress
    | RemoveAddress
    | AddRoute
    | RemoveRoute
    | AddNeighbour
    | AddRule
    | RemoveLink
    | SetFunction
)


class NewLink(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A virtual link on another one. `mode` is that of a macvlan or ipvlan, `vlan` the ID of a VLAN.

    Without a MAC address or an MTU it gets one from the kernel.
    """

    kind: str
    name: str
    mode: str = ""
    vlan: int = 0
    mac: str = ""
    mtu: int = 0


class KernelRefused(ClaimError):
    """The kernel refused a change; `taken`: a link has that name already."""

    reason = "KernelRefused"

    def __init__(self, message: str, *, taken: bool = False) -> None:
        super().__init__(message)
        self.taken = taken


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

    def read_programs(self, where: Namespace, indexes: Sequence[int]) -> Mapping[int, Programs]:
        """The eBPF programs of links, of those that have some."""
        ...

    def open_packets(self, where: Namespace, index: int, address: str) -> Packets:
        """Sockets for DHCP on a link, which uses this address, or none yet. Raises OSError."""
        ...

    def find_user(self, where: Namespace, link: Link, address: str) -> str:
        """The MAC address of somebody else on a link's network who has an IPv4 address, or empty. Raises OSError."""
        ...

    def read_function(self, where: Namespace, index: int, number: int) -> FunctionState | None:
        """What a card, whose link this is, does with a virtual function; None if it cannot tell."""
        ...

    def read_rdma(self, where: Namespace) -> Sequence[RdmaDevice]:
        """The RDMA devices only."""
        ...

    def move_rdma(self, where: Namespace, index: int, to: Namespace) -> None:
        """Move an RDMA device to another namespace. Raises KernelRefused."""
        ...

    def move(self, where: Namespace, index: int, to: Namespace, name: str) -> int:
        """Move a link to another namespace, with another name. It arrives down and without addresses.

        Returns its index there. Raises KernelRefused.
        """
        ...

    def make(self, where: Namespace, index: int, link: NewLink, to: Namespace) -> None:
        """Make a virtual link on the one of this index, in another namespace at once. Raises KernelRefused."""
        ...

    def apply(self, where: Namespace, operations: Sequence[Operation]) -> Sequence[str]:
        """Do all of it, in order; what is so already stays. Returns what was refused, each with the kernel's words."""
        ...
