"""The GPUs that the driver amdgpu has: files of each PCI function, and the nodes in /dev/dri of each partition.

Source: the kernel's Documentation/gpu/amdgpu/driver-misc.rst, and drivers/gpu/drm/amd/amdgpu/amdgpu_gfx.c and
amdgpu_gmc.c for the files of partition modes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from pydra_amd.hardware_types import Gpu, Mode, Partition
from pydra_amd.host.kfd import KfdNode, count_hidden, read_neighbours
from pydra_amd.models import BY_DEVICE, PARTITIONS, name_product
from pydra_pci import Tree, read_numa_node, read_root

BOUND = "bus/pci/drivers/amdgpu"
COMPUTE, MEMORY = "current_compute_partition", "current_memory_partition"
"""Files of a function; what is written to the first is the mode that it gets."""

KFD_NODE = "/dev/kfd"

_GONE = b"\xff" * 4
"""Vendor and device id of a function that does not answer."""

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_MODE = re.compile(r"([sdtqc]px) (nps\d)")
_CARD = re.compile(r"card(\d+)")
_RENDER = re.compile(r"renderD(\d+)")


def list_nodes(partition: Partition) -> tuple[str, str, str]:
    """The device nodes that a process needs to use the partition."""
    return KFD_NODE, f"/dev/dri/card{partition.card}", f"/dev/dri/renderD{partition.render}"


def read_mode(tree: Tree, address: str) -> Mode | None:
    """The mode that the GPU has now; None when it cannot be partitioned, or the driver does not report it."""
    match = _MODE.fullmatch(" ".join(_read_modes(tree, address)).lower())
    return Mode(match[1], match[2]) if match else None


def read_memory_modes(tree: Tree, address: str) -> tuple[str, ...]:
    """The memory modes that the driver offers for the GPU."""
    return _split(tree.read(tree.sys(f"{BOUND}/{address}/available_memory_partition")))


def is_on_bus(tree: Tree, address: str) -> bool:
    """Whether the machine has the function, bound to whatever driver."""
    return tree.exists(tree.sys(f"bus/pci/devices/{address}"))


def is_asleep(tree: Tree, address: str) -> bool:
    """Whether the kernel has switched the GPU off because nobody uses it; reading much of it would wake it."""
    return tree.read(tree.sys(f"{BOUND}/{address}/power/runtime_status")) == "suspended"


def has_fallen(tree: Tree, address: str) -> bool:
    """Whether the function is there in name only: all that is read from it is ones. One that sleeps is let sleep."""
    if is_asleep(tree, address):
        return False
    return tree.read_bytes(tree.sys(f"{BOUND}/{address}/config"), len(_GONE)) == _GONE


def _read_modes(tree: Tree, address: str) -> list[str]:
    return [tree.read(tree.sys(f"{BOUND}/{address}/{name}")) for name in (COMPUTE, MEMORY)]


def list_functions(tree: Tree) -> Iterator[str]:
    """The PCI addresses of the functions that are bound to the driver."""
    return (name for name in tree.names(tree.sys(BOUND)) if _ADDRESS.fullmatch(name))


def read_cards(tree: Tree) -> Iterator[tuple[int, int]]:
    """The number of each render node and of the card node beside it. Partitions but the first are platform devices.

    They are `amdgpu_xcp_0`; in kernels before the change of April 2024 to amdgpu_xcp_drv.c `amdgpu_xcp.0`.
    """
    platform = (name for name in tree.names(tree.sys("devices/platform")) if re.match(r"amdgpu_xcp[._]", name))
    functions = (f"{BOUND}/{address}" for address in list_functions(tree))
    for folder in (*functions, *(f"devices/platform/{name}" for name in platform)):
        if numbers := read_numbers(tree, folder):
            card, render = numbers
            yield render, card


def read_numbers(tree: Tree, folder: str) -> tuple[int, int] | None:
    """The numbers of a device's card and render node; None where it has not both."""
    names = tree.names(tree.sys(f"{folder}/drm"))
    card, render = (
        next((int(match[1]) for name in names if (match := pattern.fullmatch(name))), None)
        for pattern in (_CARD, _RENDER)
    )
    return None if card is None or render is None else (card, render)


def read_gpu(
    tree: Tree,
    address: str,
    nodes: Sequence[KfdNode],
    cards: Mapping[int, int],
    places: Mapping[int, str],
) -> Gpu | str:
    """The GPU, whose nodes of KFD these are; or what it lacks to be used. `places` has the addresses of all nodes."""
    if has_fallen(tree, address):
        return "it does not answer on the PCI bus"
    mode = read_mode(tree, address)
    if mode is None and len(nodes) > 1:
        modes = " and ".join(repr(text) for text in _read_modes(tree, address))
        return f"it has {len(nodes)} partitions, and the driver does not report its mode ({modes})"
    numbers = read_numbers(tree, f"{BOUND}/{address}")
    if numbers is None:
        return "it has no nodes in /dev/dri"
    partitions = tuple(_build_partition(node, cards[node.render]) for node in nodes if node.render in cards)
    if not partitions:
        return _explain_no_node(tree)

    def read(name: str) -> str:
        return tree.read(tree.sys(f"{BOUND}/{address}/{name}"))

    device, memory = read("device"), read("mem_info_vram_total")
    model = BY_DEVICE.get(device)
    xccs = model.xccs if model else sum(node.xccs for node in nodes)
    count = PARTITIONS.get(xccs, {}).get(mode.compute, 0) if mode else 0
    if count and (len(nodes) > count or any(node.xccs not in (0, xccs // count) for node in nodes)):
        return _explain_contradiction(f"{mode} has partitions: {count} (XCCs of each: {xccs // count})", nodes)
    card, render = numbers
    return Gpu(
        address=address,
        card=card,
        render=render,
        device=device,
        product=read("product_name") or name_product(device),
        gfx=nodes[0].gfx,
        unique_id=nodes[0].unique_id,
        hive=nodes[0].hive,
        neighbours=_read_neighbours(tree, nodes[0], places),
        numa_node=read_numa_node(tree, address),
        pcie_root=read_root(tree, address),
        mode=mode,
        # Without the file, as in a guest, the mode cannot change: see amdgpu_gfx_sysfs_xcp_init.
        compute_modes=_split(read("available_compute_partition")) or ((mode.compute,) if mode else ()),
        memory_modes=read_memory_modes(tree, address),
        # The driver reports 0 where all memory is the node's, as a MI300A's; KFD says how much of that it can have.
        memory=(int(memory) if memory.isdecimal() else 0) or sum(one.memory for one in partitions),
        partitions=partitions,
        hidden=max(count - len(partitions), 0),
    )


def _explain_no_node(tree: Tree) -> str:
    hidden = count_hidden(tree)
    if not hidden:
        return "KFD has no node for it"
    return (
        f"KFD shows no node for it, and this process may not read {hidden} of KFD's nodes: the kernel shows those of "
        "GPUs only to containers that may open the GPUs; run the agent's privileged (in the chart "
        "backends.amd.privileged)"
    )


def _explain_contradiction(mode: str, nodes: Sequence[KfdNode]) -> str:
    """Fewer partitions than the mode has are no contradiction: each is what its mode says."""
    found = ", ".join(str(number) for number in sorted({node.xccs for node in nodes}))
    return f"its mode {mode}, and KFD shows {len(nodes)} (XCCs of each: {found})"


def _read_neighbours(tree: Tree, node: KfdNode, places: Mapping[int, str]) -> tuple[str, ...]:
    """A GPU's links are reported for each of its partitions alike."""
    if not node.hive:
        return ()
    found = {places[other] for other in read_neighbours(tree, node.number) if other in places}
    return tuple(sorted(found - {node.address}))


def _build_partition(node: KfdNode, card: int) -> Partition:
    return Partition(
        index=node.index,
        card=card,
        render=node.render,
        kfd_node=node.number,
        compute_units=node.simds // node.simds_per_unit,
        simds=node.simds,
        xccs=node.xccs or 1,
        memory=node.memory,
    )


def _split(modes: str) -> tuple[str, ...]:
    """`SPX, DPX, CPX`, as the driver lists modes."""
    return tuple(re.findall(r"\w+", modes.lower()))
