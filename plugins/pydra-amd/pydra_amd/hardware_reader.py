"""One reading of the whole machine, from the kernel's files, and whether something has changed since.

What is read of one GPU is in `host.amdgpu`, of KFD's topology in `host.kfd`; which GPUs are lost is decided by
`health.lost_gpus`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from pydra_amd.hardware_types import Gpu, Reading
from pydra_amd.health.lost_gpus import add_lost
from pydra_amd.host.amdgpu import (
    BOUND,
    KFD_NODE,
    has_fallen,
    is_on_bus,
    list_functions,
    list_nodes,
    read_cards,
    read_gpu,
    read_mode,
    read_numbers,
)
from pydra_amd.host.kfd import GENERATION, NODES, KfdNode, read_nodes
from pydra_amd.models import CLASSES, VENDOR
from pydra_pci import PciBus, Tree, VfioDrivers, read_vfio_host

_READINGS = 10
"""At most, while the topology changes: the end of a change is noticed, and read then."""


class HardwareReader:
    """The node's GPUs. One reading at a time, each in a thread, since the kernel may take long for a file."""

    def __init__(self, tree: Tree, *, vfio: bool = False) -> None:
        """With `vfio` functions are read too, whatever driver has them."""
        self._tree = tree
        self._bus = PciBus(tree, VENDOR, CLASSES) if vfio else None
        self._vfio_drivers = VfioDrivers(tree)
        self._lock = threading.Lock()
        self.last = Reading()
        """What was read last; nothing before the first reading."""
        self._published = Reading()
        self._signature: object = None

    async def read(self, changing: Collection[str] = ()) -> Reading:
        """Read the whole machine as it is now, except GPUs that are being changed.

        GPUs at the addresses of `changing` are returned as they were last published: their state is not final. What
        that contains when the reading begins counts, and when it ends.
        """
        reading, _ = await self._read_except(changing)
        return reading

    async def read_to_publish(self, changing: Collection[str] = ()) -> Reading:
        """The same; from now on `has_changed` says whether it still holds."""
        signature = await asyncio.to_thread(self._read_signature)  # what changes after it is noticed later
        self._published, kept = await self._read_except(changing)
        self._signature = None if kept else signature
        return self._published

    async def _read_except(self, changing: Collection[str]) -> tuple[Reading, set[str]]:
        """A reading, and the addresses of which it has what was published before."""
        kept = set(changing)
        reading = await asyncio.to_thread(self.read_here)
        kept.update(changing)
        return _keep(reading, [gpu for gpu in self._published.gpus if gpu.address in kept]), kept

    def read_here(self) -> Reading:
        """As `read`, in this thread."""
        with self._lock:
            found = self._add_functions(read_machine(self._tree))
            self.last = add_lost(found, self.last, partial(is_on_bus, self._tree))
            return self.last

    async def has_changed(self) -> bool:
        """Whether something differs from what was last published, as far as a cheap look shows."""
        return await asyncio.to_thread(self._read_signature) != self._signature

    def _read_signature(self) -> object:
        return read_signature(self._tree), self._bus and self._bus.drivers()

    def _add_functions(self, reading: Reading) -> Reading:
        if self._bus is None:
            return reading
        choose, present = self._vfio_drivers.choose, self._bus.functions()
        functions = (replace(one, vfio_driver=choose(one.modalias)) for one in present.values())
        gone = (one for one in (*self.last.functions, *self.last.gone) if one.address not in present)
        return replace(reading, functions=tuple(functions), gone=tuple(gone), vfio=read_vfio_host(self._tree))


def read_machine(tree: Tree) -> Reading:
    """The machine as it is now. Reads files of the kernel only, and never fails: it says what cannot be used.

    KFD renumbers its nodes when a GPU's mode changes, and counts that; they are read again then, as AMD's library
    does (topology_take_snapshot in libhsakmt's topology.c), or a GPU would seem to have none.
    """
    for _ in range(_READINGS):
        generation = tree.read(tree.sys(GENERATION))
        reading = _read_once(tree)
        if tree.read(tree.sys(GENERATION)) == generation:
            break
    return reading


def _read_once(tree: Tree) -> Reading:
    nodes, cards = read_nodes(tree), dict(read_cards(tree))
    places = {node.number: node.address for node in nodes}
    numbers = {address: read_numbers(tree, f"{BOUND}/{address}") for address in list_functions(tree)}
    owners = {pair[1]: address for address, pair in numbers.items() if pair}
    gpus: list[Gpu] = []
    problems: dict[str, str] = {}
    for address in list_functions(tree):
        own = sorted((node for node in nodes if node.address == address), key=lambda node: node.index)
        found = read_gpu(tree, address, own, cards, places)
        problem = found if isinstance(found, str) else _find_foreign_node(own, nodes, owners)
        if problem or isinstance(found, str):
            problems[address] = problem
        else:
            gpus.append(found)
    wanted = (node for gpu in gpus for one in gpu.partitions for node in list_nodes(one))
    return Reading(
        gpus=tuple(gpus),
        driver_version=tree.read(tree.sys("module/amdgpu/version")),
        source_version=tree.read(tree.sys("module/amdgpu/srcversion")),
        missing=tuple(sorted({node for node in wanted if not tree.has_node(node)})),
        problems=problems,
    )


def read_signature(tree: Tree) -> object:
    """Differs when GPUs, partitions, modes, nodes in /dev or the driver have changed. Cheap: four files a GPU."""
    functions = tuple(list_functions(tree))
    return (
        tree.read(tree.sys("module/amdgpu/version")),
        tree.read(tree.sys(GENERATION)),
        tree.names(tree.sys(NODES)),
        tuple((address, read_mode(tree, address), has_fallen(tree, address)) for address in functions),
        tree.has_node(KFD_NODE),
        tree.names(tree.here(tree.host_node("/dev/dri"))),
    )


def _find_foreign_node(own: Sequence[KfdNode], nodes: Sequence[KfdNode], owners: Mapping[int, str]) -> str:
    """Which render node of these partitions is another's too; empty for none. `owners` are functions that have one."""
    for node in own:
        owner = owners.get(node.render, node.address)
        if owner != node.address:
            return f"KFD says that its render node is renderD{node.render}, which is the one of GPU {owner}"
        twins = [one for one in nodes if one.render == node.render and one != node]
        others = [one for one in twins if node.render not in owners or one.address == owner]
        if others:
            return f"KFD says that renderD{node.render} is its render node, and another one of GPU {others[0].address}"
    return ""


def _keep(reading: Reading, gpus: Collection[Gpu]) -> Reading:
    """With these GPUs in the place of what was read of them."""
    addresses = {gpu.address for gpu in gpus}
    others = (gpu for gpu in reading.gpus if gpu.address not in addresses)
    return replace(
        reading,
        gpus=tuple(sorted((*others, *gpus), key=lambda gpu: gpu.address)),
        lost=tuple(one for one in reading.lost if one.gpu.address not in addresses),
    )
