"""Reads the CPUs and NUMA nodes from /sys.

Source: Linux, Documentation/ABI: stable/sysfs-devices-node, testing/sysfs-devices-system-cpu and
stable/sysfs-devices-system-cpu. A kernel without NUMA has no directory of nodes, and counts as one node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pydra import PydraError
from pydra_cpu.cpu_list import parse_kernel_list
from pydra_cpu.hardware_types import Cpu, NumaNode, Topology
from pydra_pci import Tree

_CPUS = "devices/system/cpu"
_NODES = "devices/system/node"
_MEMORY = re.compile(r"MemTotal:\s+(\d+) kB")
_HUGEPAGES = re.compile(r"hugepages-(\d+)kB")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_CORE_TYPES = {"devices/cpu_core": "p-core", "devices/cpu_atom": "e-core"}


class CpusUnreadable(PydraError):
    """The kernel's list of CPUs cannot be read."""

    reason = "CpusUnreadable"


def read_topology(tree: Tree) -> Topology:
    """Read all of it. What cannot be read has a default, and CPUs of which nothing can be read are left out.

    Raises:
        CpusUnreadable: no CPU is online, which cannot be, since one runs this.
    """
    online = _read_list(tree, f"{_CPUS}/online")
    if not online:
        raise CpusUnreadable(
            f"{tree.sys(_CPUS)}/online cannot be read, or names no CPUs; the setting sysRoot must be where the host's "
            "/sys is mounted"
        )
    node_of, nodes = _read_nodes(tree)
    types = {cpu: name for path, name in _CORE_TYPES.items() for cpu in _read_list(tree, f"{path}/cpus")}
    cpus: list[Cpu] = []
    unreadable: list[str] = []
    for number in sorted(online):
        siblings = _read_siblings(tree, number)
        if not siblings:
            unreadable.append(f"CPU {number} is not offered: {_CPUS}/cpu{number}/topology names no CPUs of its core")
        elif number not in node_of and nodes:
            unreadable.append(f"CPU {number} is not offered: no NUMA node has it")
        else:
            cpus.append(
                Cpu(
                    id=number,
                    core=min(siblings),
                    core_id=_read_number(tree, number, "topology/core_id"),
                    socket=_read_number(tree, number, "topology/physical_package_id"),
                    node=node_of.get(number, 0),
                    cache=_read_cache(tree, number),
                    core_type=types.get(number, "standard"),
                )
            )
    return Topology(
        cpus=tuple(cpus),
        nodes=nodes or {0: _read_only_node(tree)},
        roots=_read_roots(tree, online),
        unreadable=tuple(unreadable),
    )


def _read_nodes(tree: Tree) -> tuple[Mapping[int, int], dict[int, NumaNode]]:
    """The NUMA node of each CPU, and the nodes."""
    node_of: dict[int, int] = {}
    nodes: dict[int, NumaNode] = {}
    online = sorted(_read_list(tree, f"{_NODES}/online"))
    for number in online:
        path = f"{_NODES}/node{number}"
        node_of |= dict.fromkeys(_read_list(tree, f"{path}/cpulist"), number)
        distances = tree.read(tree.sys(f"{path}/distance")).split()
        nodes[number] = NumaNode(
            id=number,
            memory=_read_memory(tree.read(tree.sys(f"{path}/meminfo"))),
            hugepages=dict(_read_hugepages(tree, f"{path}/hugepages")),
            distances={one: int(text) for one, text in zip(online, distances, strict=False) if text.isdecimal()},
        )
    return node_of, nodes


def _read_only_node(tree: Tree) -> NumaNode:
    return NumaNode(
        id=0,
        memory=_read_memory(tree.read(tree.proc("meminfo"))),
        hugepages=dict(_read_hugepages(tree, "kernel/mm/hugepages")),
        distances={0: 10},
    )


def _read_memory(text: str) -> int:
    found = _MEMORY.search(text)
    return int(found[1]) * 1024 if found else 0


def _read_hugepages(tree: Tree, path: str) -> Iterator[tuple[int, int]]:
    for name in tree.names(tree.sys(path)):
        found = _HUGEPAGES.fullmatch(name)
        number = tree.read(tree.sys(f"{path}/{name}/nr_hugepages"))
        if found and number.isdecimal():
            yield int(found[1]) * 1024, int(number)


def _read_siblings(tree: Tree, cpu: int) -> frozenset[int]:
    """The CPUs of the same core; the older name of the file is the only one before Linux 5.3."""
    path = f"{_CPUS}/cpu{cpu}/topology"
    return _read_list(tree, f"{path}/core_cpus_list") or _read_list(tree, f"{path}/thread_siblings_list")


def _read_cache(tree: Tree, cpu: int) -> int:
    """The id of the level 3 cache; where there is none in the file (Arm), the lowest of the CPUs that share it."""
    path = f"{_CPUS}/cpu{cpu}/cache"
    for name in tree.names(tree.sys(path)):
        if name.startswith("index") and tree.read(tree.sys(f"{path}/{name}/level")) == "3":
            number = tree.read(tree.sys(f"{path}/{name}/id"))
            if number.isdecimal():
                return int(number)
            return min(_read_list(tree, f"{path}/{name}/shared_cpu_list"), default=-1)
    return -1


def _read_roots(tree: Tree, online: frozenset[int]) -> Mapping[str, frozenset[int]]:
    """The CPUs near each PCIe root; roots without such a list are near none."""
    roots: dict[str, frozenset[int]] = {}
    for name in tree.names(tree.sys("devices")):
        if _ROOT.fullmatch(name):
            bus = name.removeprefix("pci")
            near = _read_list(tree, f"devices/{name}/pci_bus/{bus}/cpulistaffinity") & online
            if near:
                roots[name] = near
    return roots


def _read_number(tree: Tree, cpu: int, name: str) -> int:
    text = tree.read(tree.sys(f"{_CPUS}/cpu{cpu}/{name}"))
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else -1


def _read_list(tree: Tree, path: str) -> frozenset[int]:
    return parse_kernel_list(tree.read(tree.sys(path)))
