"""The devices of a node: their names, which other versions and drivers know, and their CPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydra_cpu.hardware_types import Cpu, Topology, by_node, by_socket, group
from pydra_cpu.settings import GroupBy, Settings

DRIVER = "dra.cpu"
CAPACITY = f"{DRIVER}/cpu"
"""The capacity that claims ask for. Up to Kubernetes 1.37, schedulers compare names literally: it is published as
claims have it.
"""

_GROUPS: Mapping[GroupBy, tuple[str, Callable[[Cpu], int]]] = {
    GroupBy.NUMA_NODE: ("cpudevnuma{:03d}", by_node),
    GroupBy.SOCKET: ("cpudevsocket{:03d}", by_socket),
    GroupBy.MACHINE: ("cpudevmachine", lambda _: 0),
    GroupBy.CACHE: ("cpudevl3{:03d}", lambda cpu: cpu.cache),
    GroupBy.CPU: ("cpudev{:03d}", lambda cpu: cpu.id),
}
"""Names by the numbers that the kernel has for the hardware, which stay when something else comes or goes."""


def list_devices(topology: Topology, settings: Settings) -> dict[str, tuple[Cpu, ...]]:
    """Return the CPUs of each device that claims can get, by the device's name.

    CPUs without a level 3 cache, or a socket, are in no device by that.
    """
    pattern, of = _GROUPS[settings.group_by]
    offered = [cpu for cpu in topology.cpus if cpu.id not in settings.reserved]
    return {pattern.format(number): tuple(cpus) for number, cpus in sorted(group(offered, of).items()) if number >= 0}


def find_offered(online: frozenset[int], reserved: frozenset[int]) -> frozenset[int]:
    """Return the CPUs that claims and other containers can have; all if all are reserved: these must run somewhere."""
    return online - reserved or online


def find_common(cpus: tuple[Cpu, ...], of: Callable[[Cpu], Any]) -> Any:
    """Return what all these CPUs have in common, or None."""
    found = {of(cpu) for cpu in cpus}
    return found.pop() if len(found) == 1 else None
