"""Builds what is published: devices, with the attributes of Kubernetes' own CPU driver and more.

Source: kubernetes-sigs/dra-driver-cpu, its attributes and capacities.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from pydra import AttributeValue, Capacity, CapacityRange, Device, HeldClaim, Inventory, NodeAllocatable, RequestPolicy
from pydra_cpu.cpu_list import format_cpu_list
from pydra_cpu.devices import CAPACITY, DRIVER, find_common, list_devices
from pydra_cpu.hardware_faults import Faults
from pydra_cpu.hardware_types import Cpu, Topology, by_core, by_node, by_socket, group
from pydra_cpu.health import diagnose
from pydra_cpu.settings import GroupBy, Settings

NUMA_NODE = "resource.kubernetes.io/numaNode"
PCIE_ROOT = "resource.kubernetes.io/pcieRoot"
MOST_ROOTS = 36
"""A device has at most 48 values of attributes, elements of lists counted; the others need 12 at most."""

_NOTHING_UNLESS_ASKED = RequestPolicy(default=0, valid_range=CapacityRange(min=0))
_NO_FAULTS = Faults()
_WITH_MEMORY = (GroupBy.NUMA_NODE, GroupBy.SOCKET, GroupBy.MACHINE)


def build_inventory(
    topology: Topology,
    settings: Settings,
    held: Sequence[HeldClaim] = (),
    problem: str = "",
    faults: Faults = _NO_FAULTS,
) -> Inventory:
    """Return the devices of the node. With a problem, no container can be restricted to CPUs now."""
    devices: list[Device] = []
    listed = list_devices(topology, settings)
    for name, cpus in listed.items():
        found = diagnose(
            name,
            cpus,
            held=held,
            online=topology.online,
            faults=faults,
            problem=problem,
            signals=settings.signals,
        )
        devices.append(replace(_build_device(name, cpus, topology, settings), health=found.health, taints=found.taints))
    left_out = _explain_left_out(topology, settings, {cpu.id for cpus in listed.values() for cpu in cpus})
    return Inventory(devices=tuple(devices), unreadable=(*topology.unreadable, *left_out))


def _explain_left_out(topology: Topology, settings: Settings, listed: Collection[int]) -> Iterator[str]:
    """Yield why CPUs that are online are in no device, other than that the admin has reserved them."""
    if lost := topology.online - settings.reserved - set(listed):
        yield (
            f"CPU {format_cpu_list(lost)} is not offered: the kernel does not say which {settings.group_by.value} "
            "(groupBy) it is of; another groupBy, such as numaNode, offers it"
        )


def _build_device(name: str, cpus: tuple[Cpu, ...], topology: Topology, settings: Settings) -> Device:
    attributes = dict(_build_attributes(cpus, settings))
    if settings.pcie_roots:
        attributes |= _build_roots(cpus, topology)
    if settings.group_by is GroupBy.CPU:
        resources = {"cpu": NodeAllocatable(multiplier=1)} if settings.node_allocatable else {}
        return Device(name=name, attributes=attributes, node_allocatable=resources)
    capacity = {CAPACITY: Capacity(len(cpus))}
    if settings.group_by in _WITH_MEMORY:
        capacity |= dict(_build_memory(cpus, topology))
    return Device(
        name=name,
        attributes=attributes,
        capacity=capacity,
        allow_multiple_allocations=True,
        node_allocatable=_map_to_node(capacity) if settings.node_allocatable else {},
    )


def _map_to_node(capacity: Iterable[str]) -> Mapping[str, NodeAllocatable]:
    """The node's resource that each capacity is: `hugepages-2Mi` for `dra.cpu/hugepages2Mi`, else that of its name."""
    names = {name: name.removeprefix(f"{DRIVER}/").replace("hugepages", "hugepages-") for name in capacity}
    return {resource: NodeAllocatable(capacity=name) for name, resource in names.items()}


def _build_attributes(cpus: tuple[Cpu, ...], settings: Settings) -> Iterator[tuple[str, AttributeValue]]:
    """Yield what all the CPUs have in common, and their number."""
    node, socket = find_common(cpus, by_node), find_common(cpus, by_socket)
    cache, kind = find_common(cpus, lambda cpu: cpu.cache), find_common(cpus, lambda cpu: cpu.core_type)
    if node is not None:
        yield NUMA_NODE, node
        yield "numaNodeID", node
        yield "dra.net/numaNode", node
    if socket is not None:
        yield "socketID", socket
    if cache is not None:
        yield "cacheL3ID", cache
    if kind is not None:
        yield "coreType", kind
    yield "smtEnabled", len(group(cpus, by_core)) < len(cpus)
    if settings.group_by is GroupBy.CPU:
        yield "cpuID", cpus[0].id
        yield "coreID", cpus[0].core_id
    else:
        yield "numCPUs", len(cpus)


def _build_roots(cpus: tuple[Cpu, ...], topology: Topology) -> Mapping[str, AttributeValue]:
    """The PCIe roots near any of the CPUs; one alone is not a list, which older clusters do not have."""
    own = {cpu.id for cpu in cpus}
    roots = sorted(name for name, near in topology.roots.items() if not own.isdisjoint(near))[:MOST_ROOTS]
    if not roots:
        return {}
    return {PCIE_ROOT: roots[0] if len(roots) == 1 else tuple(roots)}


def _build_memory(cpus: tuple[Cpu, ...], topology: Topology) -> Iterator[tuple[str, Capacity]]:
    """Yield the memory of the CPUs' NUMA nodes, and their huge pages by size; a claim that asks for none gets none."""
    nodes = [topology.nodes[number] for number in topology.find_memory_nodes(cpus)]
    if memory := sum(node.memory for node in nodes):
        yield f"{DRIVER}/memory", Capacity(memory, _NOTHING_UNLESS_ASKED)
    for size in sorted({size for node in nodes for size in node.hugepages}):
        if pages := sum(node.hugepages.get(size, 0) for node in nodes):
            yield f"{DRIVER}/hugepages{_name_size(size)}", Capacity(pages * size, _NOTHING_UNLESS_ASKED)


def _name_size(size: int) -> str:
    for shift, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if not size % (1 << shift):
            return f"{size >> shift}{unit}"
    return str(size)
