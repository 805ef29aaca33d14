"""The machine over time: what was read last, what has changed since, and GPUs that are lost meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator

from msgspec.structs import replace

from pydra_amd.hardware_types import Gpu, LostGpu, Reading
from pydra_amd.host.amdgpu import is_on_bus, read_machine, read_signature
from pydra_amd.models import CLASSES, VENDOR
from pydra_pci import PciBus, Tree, VfioDrivers, read_vfio_host


class HardwareReader:
    """The node's GPUs. One reading at a time, each in a thread, since the kernel may take long for a file."""

    def __init__(self, tree: Tree, *, vfio: bool = False) -> None:
        """With `vfio` functions are read too, whatever driver has them."""
        self._tree = tree
        self._bus = PciBus(tree, VENDOR, CLASSES) if vfio else None
        self._vfio_drivers = VfioDrivers(tree)
        self._lock = threading.Lock()
        self._last = Reading()
        self._published = Reading()
        self._signature: object = None

    @property
    def last(self) -> Reading:
        """What was read last; nothing before the first reading."""
        return self._last

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
            found = self._set_aside(self._add_functions(read_machine(self._tree)))
            self._last = _merge(found, tuple(self._find_lost(found)))
            return self._last

    async def has_changed(self) -> bool:
        """Whether something differs from what was last published, as far as a cheap look shows."""
        return await asyncio.to_thread(self._read_signature) != self._signature

    def _read_signature(self) -> object:
        return read_signature(self._tree), self._bus and self._bus.drivers()

    def _add_functions(self, reading: Reading) -> Reading:
        if self._bus is None:
            return reading
        choose = self._vfio_drivers.choose
        functions = (replace(one, vfio_driver=choose(one.modalias)) for one in self._bus.functions().values())
        return replace(reading, functions=tuple(functions), vfio=read_vfio_host(self._tree))

    def _set_aside(self, found: Reading) -> Reading:
        """Without GPUs that had a mode and report none now, as in a reset: they would seem to be of another kind."""
        had = {gpu.address for gpu in self._last.known if gpu.mode}
        silent = {gpu.address for gpu in found.gpus if gpu.mode is None and gpu.address in had}
        return replace(
            found,
            gpus=tuple(gpu for gpu in found.gpus if gpu.address not in silent),
            problems={
                **found.problems,
                **dict.fromkeys(silent, "the driver no longer reports its partition mode"),
            },
        )

    def _find_lost(self, found: Reading) -> Iterator[LostGpu]:
        """What was usable once. A function that is on the bus, and not the driver's any more, was taken away."""
        for gpu in self._last.known:
            if found.find(gpu.address) is not None:
                continue
            if gpu.address in found.problems:
                yield LostGpu(gpu=gpu, why=found.problems[gpu.address])
            elif not is_on_bus(self._tree, gpu.address):
                yield LostGpu(gpu=gpu, why="it is gone from the PCI bus")


def _keep(reading: Reading, gpus: Collection[Gpu]) -> Reading:
    """With these GPUs in the place of what was read of them."""
    addresses = {gpu.address for gpu in gpus}
    others = (gpu for gpu in reading.gpus if gpu.address not in addresses)
    return replace(
        reading,
        gpus=tuple(sorted((*others, *gpus), key=lambda gpu: gpu.address)),
        lost=tuple(one for one in reading.lost if one.gpu.address not in addresses),
    )


def _merge(found: Reading, lost: tuple[LostGpu, ...]) -> Reading:
    """With what is lost in its place: the others keep their numbers."""
    gone = {one.gpu.address for one in lost}
    merged = replace(
        found, lost=lost, problems={address: why for address, why in found.problems.items() if address not in gone}
    )
    places = {gpu.address: index for index, gpu in enumerate(merged.known)}
    return replace(
        merged,
        gpus=tuple(replace(gpu, index=places[gpu.address]) for gpu in merged.gpus),
        lost=tuple(replace(one, gpu=replace(one.gpu, index=places[one.gpu.address])) for one in lost),
    )
