"""What is read of a node: its links that can be offered, and what sysfs says of the hardware behind them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pydra_net.network_types import Ethtool, Link, Programs, RdmaDevice, Reading, VirtualFunctionState


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """What sysfs says of the PCI function of an interface; ids as `0x8086`, numbers -1 if it does not say."""

    address: str
    vendor: str = ""
    device: str = ""
    subsystem: str = ""
    driver: str = ""
    root: str = ""
    numa: int | None = None
    virtual_functions: int = -1
    """How many there are now; -1 for a function that cannot have any."""
    most_virtual_functions: int = 0
    is_virtual_function: bool = False


class VirtualFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A virtual function: its number on the card, the card's address and interface, and what the card does with it.

    There is no `link` if the card is not on the node, and no `state` if it cannot tell.
    """

    address: str
    card: str
    number: int
    link: Link | None
    state: VirtualFunctionState | None


class OfferedRdma(msgspec.Struct, frozen=True, kw_only=True):
    """The RDMA device of a device that is offered, or `alone`, of a PCI function without an interface.

    `nodes` are the paths of its device nodes in containers.
    """

    device: RdmaDevice
    pci_address: str = ""
    nodes: tuple[str, ...] = ()
    alone: bool = False


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of the node. `devices` are the links that can be offered, by the device's name.

    `protected` says why others are not, by index; `speeds` has those that are known, in Mbit/s. `shared` are the names
    of devices that are offered in shares, `programs` the eBPF programs of links by index. `ethtool`, `sysctls` and
    `tokens` have the settings of the devices that were asked for.
    """

    reading: Reading
    devices: Mapping[str, Link]
    protected: Mapping[int, str]
    names: Mapping[int, str]
    speeds: Mapping[int, int] = {}
    shared: frozenset[str] = frozenset()
    programs: Mapping[int, Programs] = {}
    ethtool: Mapping[str, Ethtool] = {}
    sysctls: Mapping[str, Mapping[str, int | str]] = {}
    tokens: Mapping[str, str] = {}
    rdma: Mapping[str, OfferedRdma] = {}
    """RDMA devices by the name of the device that has, or is, one."""
    functions: Mapping[str, VirtualFunction | None] = {}
    """The virtual functions among the devices that were asked for; None for others."""
    needed: frozenset[int] = frozenset()
    """The indexes of links that the node itself needs."""
