"""The CPUs of a node, and what they share: cores, caches, NUMA nodes, sockets, PCIe roots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from operator import attrgetter
from typing import TypeVar

import msgspec

GroupT = TypeVar("GroupT")


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """One logical CPU that is online."""

    id: int
    """The number that the kernel has for it."""
    core: int
    """The lowest id of the CPUs of its core, itself included: unique on the node, unlike `core_id`."""
    core_id: int
    """The core's number, unique in the socket only."""
    socket: int
    """The number of its socket; -1 if the platform does not say."""
    node: int
    """The number of its NUMA node; 0 in a kernel without NUMA."""
    cache: int
    """The number of its level 3 cache; -1 without one."""
    core_type: str = "standard"
    """`p-core` or `e-core` on a hybrid processor."""


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """A NUMA node; it may have memory without CPUs, or CPUs without memory."""

    id: int
    memory: int = 0
    """In bytes."""
    hugepages: Mapping[int, int] = {}
    """How many huge pages there are, by size in bytes."""
    distances: Mapping[int, int] = {}
    """To each node that is online, itself included; 10 is local."""


class Topology(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The node's online CPUs in the order of their ids, and its NUMA nodes."""

    cpus: tuple[Cpu, ...]
    nodes: Mapping[int, NumaNode]
    roots: Mapping[str, frozenset[int]] = {}
    """The CPUs that are near each PCIe root."""
    unreadable: tuple[str, ...] = ()
    """A text for each CPU that cannot be offered since its place is not known."""

    @cached_property
    def online(self) -> frozenset[int]:
        """The ids of the CPUs."""
        return frozenset(cpu.id for cpu in self.cpus)

    def find_memory_nodes(self, cpus: Iterable[Cpu]) -> tuple[int, ...]:
        """Return the NUMA nodes with memory that are the nearest to these CPUs."""
        near: set[int] = set()
        for number in {cpu.node for cpu in cpus}:
            distances = self.nodes[number].distances
            with_memory = [other for other, node in sorted(self.nodes.items()) if node.memory]
            if with_memory:
                near.add(number if number in with_memory else min(with_memory, key=lambda one: distances.get(one, 255)))
        return tuple(sorted(near))


def group(cpus: Iterable[Cpu], of: Callable[[Cpu], GroupT]) -> dict[GroupT, list[Cpu]]:
    """Return the CPUs by what `of` says of each, in the order of the CPUs."""
    groups: dict[GroupT, list[Cpu]] = {}
    for cpu in cpus:
        groups.setdefault(of(cpu), []).append(cpu)
    return groups


by_socket: Callable[[Cpu], int] = attrgetter("socket")
by_node: Callable[[Cpu], int] = attrgetter("node")
by_core: Callable[[Cpu], int] = attrgetter("core")


def by_cache(cpu: Cpu) -> tuple[int, int]:
    """The level 3 cache; CPUs without one share their NUMA node."""
    return cpu.cache, cpu.node if cpu.cache < 0 else -1
