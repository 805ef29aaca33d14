"""The settings of this backend: its SETTINGS_TYPE.

`poll_period` is `PYDRA_NET_POLL_PERIOD`, or `backendSettings.net.pollPeriod` in the agent's settings file. The text
below a field is its description in docs/settings.md and in the chart's schema, which are generated (`make docs chart`).
"""

from __future__ import annotations

import ipaddress
from typing import Annotated

import msgspec

from pydra_pci import AbsolutePath

PREFIX = "PYDRA_NET_"

_OF_NETWORKS = "docker*,cni*,cbr*,cilium*,lxc*,cali*,flannel*,weave*,kube-*,nodelocaldns,antrea*,ovs-*,ovn*,genev_sys*"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings."""

    scenario: str = ""
    """A simulated machine instead of the node: `server`."""
    state: AbsolutePath = "/run/pydra-net"
    """The directory with the files of a simulated machine."""
    sys_root: AbsolutePath = "/sys"
    """Where the host's `/sys` is mounted."""
    dev_root: AbsolutePath = "/dev"
    """The host's directory of device nodes, of which containers get those of RDMA devices."""
    network_namespace: AbsolutePath = "/proc/self/ns/net"
    """The node's network namespace. The default is that of this process, for an agent with `hostNetwork`; with
    `hostPID` it can be `/proc/1/ns/net`."""
    pod_namespaces: AbsolutePath = "/var/run/netns"
    """The directory in which the container runtime mounts the network namespaces of pods."""
    nri_socket: AbsolutePath = "/var/run/nri/nri.sock"
    """The socket of the container runtime's NRI."""
    poll_period: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """Seconds after which the interfaces are read even if the kernel reported no change."""

    interfaces: str = "*"
    """The names of interfaces that are offered, such as `eth*,ib0`; `*` stands for any characters. The interfaces that
    the node itself needs are never offered."""
    exclude: str = _OF_NETWORKS
    """The names of interfaces that are not offered, such as those of the pod network."""
    exclude_types: str = "veth"
    """The types of interfaces that are not offered, such as `veth,dummy`; hardware has the type `device`."""
    filter: str = ""
    """A CEL expression over the attributes of `device`, as in a DeviceClass, such as
    `device.attributes["dra.net"].?linkSpeedMbps.orValue(0) >= 10000`. Interfaces for which it is not true are not
    offered, nor those that the settings above exclude."""
    shared: str = ""
    """The names of interfaces that stay on the node and are offered in shares, such as `eth1,bond*`: each claim gets a
    virtual interface (macvlan, ipvlan or VLAN) on one. An interface that the node itself needs, or that is excluded, is
    shared only if it is named without `*`."""
    virtual_functions: str = ""
    """How many virtual functions (SR-IOV) cards get that have none, such as `eth1=8,ens*=4`, by the names of their
    interfaces. A card that the node itself needs gets some only if it is named without `*`. Cards are written to
    below `sysRoot`, and the chart mounts what is needed for that."""
    node_addresses: str = ""
    """The addresses of the Node object: an interface that has one is not offered. The chart sets it."""

    def __post_init__(self) -> None:
        """Refuse addresses and numbers that cannot be read, and expressions that cannot be compiled."""
        for entry in split(self.virtual_functions):
            name, _, count = entry.rpartition("=")
            if not name or not count.isdecimal() or not int(count):
                raise ValueError(
                    f'virtualFunctions: found "{entry}"; it must be a name, =, and a number, such as eth1=8'
                )
        if self.filter:
            # 6 MB, which most nodes do not need.
            from pydra_net.cel_filter import DeviceFilter, InvalidFilter  # noqa: PLC0415

            try:
                DeviceFilter(self.filter)
            except InvalidFilter as error:
                raise ValueError(f"filter: {error}") from error
        for address in split(self.node_addresses):
            try:
                ipaddress.ip_address(address)
            except ValueError as error:
                raise ValueError(f"nodeAddresses: {error}") from error


def list_counts(text: str) -> tuple[tuple[str, int], ...]:
    """The entries of a list such as `eth1=8,ens*=4`."""
    return tuple((entry.rpartition("=")[0], int(entry.rpartition("=")[2])) for entry in split(text))


def split(text: str) -> tuple[str, ...]:
    """The entries of a list with commas."""
    return tuple(one for entry in text.split(",") if (one := entry.strip()))
