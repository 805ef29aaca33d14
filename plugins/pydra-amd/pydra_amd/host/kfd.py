"""KFD's topology: one node for each GPU, or for each of its partitions.

Source: the kernel's drivers/gpu/drm/amd/amdkfd/kfd_topology.c.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import msgspec

from pydra_amd.models import count_simds_per_unit
from pydra_pci import Tree

NODES = "class/kfd/kfd/topology/nodes"
GENERATION = "class/kfd/kfd/topology/generation_id"
"""Grows with each change of the topology."""

PROCESSES = "class/kfd/kfd/proc"
"""An entry for each process that has the driver open."""

XGMI = 11
"""The type of a link between GPUs of a hive."""

_VRAM = (1, 2)
"""The heap types of a GPU's own memory, which the host's processors can or cannot address."""


class KfdNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that computes. `address` is the PCI address of its GPU, `index` the number of its partition there.

    `memory` is in bytes; 0 where it is not known, as `xccs`.
    """

    number: int
    address: str
    index: int
    render: int
    gfx: int
    simds: int
    simds_per_unit: int
    xccs: int
    unique_id: int
    hive: int
    memory: int


def read_processes(tree: Tree) -> tuple[int, ...]:
    """The host's pids of the processes that have the driver open, sorted."""
    folder = tree.sys(PROCESSES)
    return tuple(sorted(int(one) for one in tree.names(folder) if one.isdecimal() and tree.exists(f"{folder}/{one}")))


def read_users(tree: Tree, numbers: Collection[int]) -> tuple[int, ...]:
    """The host's pids of the processes that compute on the GPUs of these nodes: KFD has a file for each such pair."""
    ids = {tree.read(tree.sys(f"{NODES}/{number}/gpu_id")) for number in numbers} - {"", "0"}
    found = (pid for pid in read_processes(tree) if not ids.isdisjoint(_list_gpu_ids(tree, pid)))
    return tuple(found)


def _list_gpu_ids(tree: Tree, pid: int) -> Iterator[str]:
    names = tree.names(tree.sys(f"{PROCESSES}/{pid}"))
    return (name.removeprefix("vram_") for name in names if name.startswith("vram_"))


def read_nodes(tree: Tree) -> tuple[KfdNode, ...]:
    """The nodes of GPUs, in the order of their numbers; processors have nodes too, and are left out."""
    numbers = sorted(int(name) for name in tree.names(tree.sys(NODES)) if name.isdecimal())
    found = (_read_node(tree, number) for number in numbers)
    return tuple(node for node in found if node is not None)


def count_hidden(tree: Tree) -> int:
    """How many nodes this process may not read: the kernel shows a GPU's only where the device cgroup allows its nodes.

    Source: kfd_devcgroup_check_permission in the kernel's drivers/gpu/drm/amd/amdkfd/kfd_topology.c.
    """
    return sum(not tree.read(tree.sys(f"{NODES}/{name}/properties")) for name in tree.names(tree.sys(NODES)))


def read_neighbours(tree: Tree, number: int) -> frozenset[int]:
    """The numbers of the nodes that this one has an xGMI link to."""
    links = f"{NODES}/{number}/io_links"
    found = (_read_properties(tree, f"{links}/{name}/properties") for name in tree.names(tree.sys(links)))
    return frozenset(link["node_to"] for link in found if link.get("type") == XGMI and "node_to" in link)


def _read_node(tree: Tree, number: int) -> KfdNode | None:
    properties = _read_properties(tree, f"{NODES}/{number}/properties")
    if not properties.get("simd_count") or not properties.get("drm_render_minor"):
        return None
    location, gfx = properties.get("location_id", 0), properties.get("gfx_target_version", 0)
    return KfdNode(
        number=number,
        address=f"{properties.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.0",
        # A GPU is function 0 of its slot, and where the function would be is the partition's number; kernels before
        # 6.6 have it in the highest bits.
        index=location >> 28 or location & 0x7,
        render=properties["drm_render_minor"],
        gfx=gfx,
        simds=properties["simd_count"],
        simds_per_unit=properties.get("simd_per_cu", 0) or count_simds_per_unit(gfx),
        xccs=properties.get("num_xcc", 0),
        unique_id=properties.get("unique_id", 0),
        hive=properties.get("hive_id", 0),
        memory=sum(_read_banks(tree, number)),
    )


def _read_banks(tree: Tree, number: int) -> Iterator[int]:
    banks = f"{NODES}/{number}/mem_banks"
    for name in tree.names(tree.sys(banks)):
        bank = _read_properties(tree, f"{banks}/{name}/properties")
        if bank.get("heap_type") in _VRAM:
            yield bank.get("size_in_bytes", 0)


def _read_properties(tree: Tree, path: str) -> Mapping[str, int]:
    """Lines `name number`; what is not a number is left out."""
    pairs = (line.split(None, 1) for line in tree.read(tree.sys(path)).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
