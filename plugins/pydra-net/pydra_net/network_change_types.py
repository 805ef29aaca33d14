"""What is done to a network namespace, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from pydra_net.network_types import Address, Neighbour, Route, Rule, VirtualFunctionState


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
    """Set sysctls of a link, by names such as `ipv6/conf/accept_ra`."""

    index: int
    values: Mapping[str, int | str]

    def __str__(self) -> str:
        return "set " + ", ".join(f"{name} {value}" for name, value in self.values.items())

    def split(self) -> list[SetSysctls]:
        """The same, as one change each."""
        return [SetSysctls(index=self.index, values={name: value}) for name, value in self.values.items()]


class SetToken(msgspec.Struct, frozen=True, kw_only=True):
    """Set the part of a link's IPv6 addresses that is not a router's, as `::5`."""

    index: int
    token: str

    def __str__(self) -> str:
        return f"set token {self.token}"


class SetEthtool(msgspec.Struct, frozen=True, kw_only=True):
    """Set features and private flags of a link, by the kernel's names."""

    index: int
    features: Mapping[str, bool] = {}
    private_flags: Mapping[str, bool] = {}

    def __str__(self) -> str:
        changes = {**self.features, **self.private_flags}
        return "set " + ", ".join(f"{name} {'on' if value else 'off'}" for name, value in changes.items())


class DetachPrograms(msgspec.Struct, frozen=True, kw_only=True):
    """Detach the eBPF programs of a link, but for those of tcx with these names, and for that of XDP."""

    index: int
    kept: tuple[str, ...] = ()
    keeps_xdp: bool = False

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


class KeepNames(msgspec.Struct, frozen=True, kw_only=True):
    """Take all alternative names of a link away but these."""

    index: int
    kept: tuple[str, ...]

    def __str__(self) -> str:
        return "remove the alternative names of its pod"


class Add(msgspec.Struct, frozen=True, kw_only=True):
    """Add what is configured on a link, or a rule, which is of no link; a route `beside` others to its destination."""

    index: int = 0
    item: Address | Route | Neighbour | Rule
    beside: bool = False

    def __str__(self) -> str:
        return f"add {self.item}"


class Remove(msgspec.Struct, frozen=True, kw_only=True):
    """Remove what is configured on a link."""

    index: int
    item: Address | Route

    def __str__(self) -> str:
        return f"remove {self.item}"


class SetFunction(msgspec.Struct, frozen=True, kw_only=True):
    """Change what a card, whose link this is, does with a virtual function; None leaves a setting as it is."""

    index: int
    number: int
    state: VirtualFunctionState

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
    | SetToken
    | SetEthtool
    | DetachPrograms
    | JoinVrf
    | Mark
    | KeepNames
    | Add
    | Remove
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
