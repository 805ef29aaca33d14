"""The settings of this backend: its SETTINGS_TYPE.

`group_by` is `PYDRA_CPU_GROUP_BY`, or `backendSettings.cpu.groupBy` in the agent's settings file. The text below a
field is its description in docs/settings.md and in the chart's schema, which are generated (`make docs chart`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from typing import Annotated

import msgspec

from pydra_cpu.cpu_list import parse_cpu_list
from pydra_pci import AbsolutePath, Reaction, RootSettings

PREFIX = "PYDRA_CPU_"


class GroupBy(Enum):
    """Which CPUs are one device."""

    NUMA_NODE = "numaNode"
    """Those of a NUMA node."""
    SOCKET = "socket"
    """Those of a socket."""
    MACHINE = "machine"
    """All CPUs of the node."""
    CACHE = "cache"
    """Those that share a level 3 cache."""
    CPU = "cpu"
    """Each CPU is a device of its own."""


class KubeletManagers(Enum):
    """What happens while the kubelet's own CPU or memory manager restricts containers, too."""

    REFUSE = "refuse"
    """Claims fail, and devices are unhealthy."""
    IGNORE = "ignore"
    """Claims get CPUs all the same: the admin sees to it that the kubelet restricts no container beside them."""


class Signal(Enum):
    """What can be wrong with a CPU; its value is the taint's name below `dra.cpu/`."""

    MACHINE_CHECK = "machine-check"
    """A CPU of the device has had a machine check since the node's start: an error, of the CPU or its memory, that
    hardware could not correct. Counted on x86, where some processors raise it on all their CPUs, and read from the
    database of rasdaemon, if there is one."""
    THROTTLING = "throttling"
    """A CPU of the device is slowed down because of heat, or was within the last five minutes. Counted on Intel's
    processors."""


class Settings(RootSettings, frozen=True, kw_only=True):
    """All settings."""

    scenario: str = ""
    """A simulated machine instead of the node, such as `server`, or `this-machine`: its own CPUs, with a simulated
    container runtime."""
    state: AbsolutePath = "/run/pydra-cpu"
    """The directory with the files of a simulated machine."""
    kubelet_root: AbsolutePath = msgspec.field(
        default_factory=lambda: os.environ.get("PYDRA_KUBELET_ROOT", "/var/lib/kubelet")
    )
    """The kubelet's directory on the host, which says whether its CPU and memory managers restrict containers, too.
    Default: `PYDRA_KUBELET_ROOT`, if that is set."""
    kubelet_managers: KubeletManagers = KubeletManagers.REFUSE
    """What happens while the kubelet's CPU manager has the policy `static`, or its memory manager `Static`."""
    nri_socket: AbsolutePath = "/var/run/nri/nri.sock"
    """The socket of the container runtime's NRI."""
    poll_period: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """Seconds between two checks for CPUs that came or went, and for their health."""
    signals: Mapping[Signal, Reaction] = {}
    """Reactions to signals other than the defaults: `machine-check=NoExecute,throttling=Ignore`; see below."""

    group_by: GroupBy = GroupBy.NUMA_NODE
    """Which CPUs are one device, of which claims get a number of CPUs (`cpu`: each CPU is a device)."""
    reserved_cpus: str = ""
    """CPUs that neither claims nor other containers get, such as `0,32`: for the system. The number should be that of
    the kubelet's `systemReserved` and `kubeReserved` together. On a node that has no others, containers run on all, and
    claims get none."""
    pcie_roots: bool = True
    """Whether devices have the attribute `resource.kubernetes.io/pcieRoot`, by which a claim has CPUs near a GPU or a
    network interface. Near several PCIe roots it is a list, which needs the feature gate DRAListTypeAttributes."""
    node_allocatable: bool = False
    """Whether the scheduler counts the CPUs, memory and huge pages of claims as used ones of the node, which needs the
    feature gate DRANodeAllocatableResources. Pods must not repeat them in `requests` then: they would count twice."""

    def __post_init__(self) -> None:
        """Refuse a list of CPUs that cannot be read."""
        try:
            parse_cpu_list(self.reserved_cpus)
        except ValueError as error:
            raise ValueError(f"reservedCpus: {error}") from error

    @property
    def reserved(self) -> frozenset[int]:
        """The reserved CPUs."""
        return parse_cpu_list(self.reserved_cpus)
