"""The devices of a machine: their names, and the hardware that each name stands for. Pure.

    gpu-0-128               a whole GPU, or a partition that the admin made, by the numbers of its nodes in /dev/dri
    gpu-0-128-cpx-nps1-3    a partition that is made when a claim gets it: of the GPU gpu-0-128, its mode, its number
    gpu-vfio-0              a GPU for guests, by its place on the PCI bus; behind the GPUs, a virtual function
    gpu-0-128-partitions    the counter set of a GPU, from which its partitions draw

What is published and what the devices of a claim mean both follow from this.
Source of the first and the third: ROCm/k8s-gpu-dra-driver, so that allocations made for it mean the same here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from pydra import DeviceStatus
from pydra_amd.hardware_types import Gpu, Mode, Partition, Reading
from pydra_amd.models import AMDGPU, WHOLE, list_modes
from pydra_amd.settings import Partitioning
from pydra_amd.sharing import is_shareable
from pydra_pci import PciFunction, is_vfio

DRIVER = "gpu.amd.com"


def name_device(card: int, render: int) -> str:
    """The device name of what has these nodes."""
    return f"gpu-{card}-{render}"


def name_gpu(gpu: Gpu) -> str:
    """The device name of the whole GPU."""
    return name_device(gpu.card, gpu.render)


def name_counter_set(gpu: Gpu) -> str:
    """The counter set of a GPU."""
    return f"{name_gpu(gpu)}-partitions"


def name_counter(mode: Mode | None, index: int) -> str:
    """The counter of one partition of a mode, whose name ends so; None: of what there is."""
    return f"{mode.compute}-{mode.memory}-{index}" if mode else f"existing-{index}"


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """One device: the partition `index` of the `count` that the GPU has in `mode`.

    `mode` is None for a GPU that cannot be partitioned. `chosen`: the mode is set when a claim gets the device; else
    it is the one that the GPU has. `shared`: several claims can have it.
    """

    name: str
    gpu: Gpu
    mode: Mode | None
    index: int = 0
    count: int = 1
    chosen: bool = False
    shared: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the GPU."""
        return self.mode is None or self.mode.compute == WHOLE

    @property
    def partition(self) -> Partition | None:
        """What exists of it now; None while the GPU has another mode."""
        if self.mode != self.gpu.mode:
            return None
        return next((one for one in self.gpu.partitions if one.index == self.index), None)


class OfferedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, or a virtual function of one, as a device for guests; `gpu` is what containers have of it, if anything."""

    name: str
    function: PciFunction
    gpu: Gpu | None


def identify(gpu: Gpu, partition: Partition) -> DeviceStatus:
    """What the claim's status says of it: which hardware it is, also when the node publishes it no more."""
    data: dict[str, str | int] = {"pciBusID": gpu.address}
    if gpu.unique_id:
        data["uniqueID"] = str(gpu.unique_id)
    if gpu.mode is not None:
        data["partitionProfile"] = str(gpu.mode)
    if gpu.count > 1:
        data["partition"] = partition.index
    return DeviceStatus(data={**data, "cardIndex": partition.card, "renderIndex": partition.render})


def list_functions(reading: Reading) -> Mapping[str, OfferedFunction]:
    """The functions that can be passed through, by device name: amdgpu has them, vfio-pci or a variant, or nothing.

    Those of other drivers are numbered too, and those that are gone, and virtual ones behind all others: which of the
    GPUs a name means depends neither on the driver that has it nor on how many virtual functions there are.
    """
    gpus = {gpu.address: gpu for gpu in reading.known}
    found: dict[str, OfferedFunction] = {}
    numbered = sorted((*reading.functions, *reading.gone), key=lambda one: (one.is_virtual, one.address))
    for index, one in enumerate(numbered):
        gpu = gpus.get(one.address)
        is_free = one.driver == "" or is_vfio(one.driver) or (one.driver == AMDGPU and gpu is not None)
        if is_free and one.group and not one.has_virtual and one not in reading.gone:
            name = f"gpu-vfio-{index}"
            found[name] = OfferedFunction(name=name, function=one, gpu=gpu)
    return found


def list_offered(reading: Reading, partitioning: Partitioning, *, sharing: bool = False) -> Mapping[str, Offered]:
    """The devices by name, each GPU's together: whole GPUs before partitions, and few partitions before many.

    With `sharing`, devices that exist are shared where they can be.
    """
    return {one.name: one for gpu in reading.known for one in _list_gpu(gpu, partitioning, sharing=sharing)}


def _list_gpu(gpu: Gpu, partitioning: Partitioning, *, sharing: bool) -> Iterator[Offered]:
    modes: Mapping[Mode, int] = {}
    if gpu.mode is not None and partitioning is not Partitioning.EXISTING:
        modes = list_modes(gpu, gpu.mode.memory if partitioning is Partitioning.COMPUTE else None)
    for mode, count in modes.items():
        for index in range(count):
            name = name_gpu(gpu) if mode.compute == WHOLE else f"{name_gpu(gpu)}-{name_counter(mode, index)}"
            offered = Offered(name=name, gpu=gpu, mode=mode, index=index, count=count, chosen=True)
            if mode != gpu.mode or offered.partition is not None:
                yield offered
    if not modes:
        for one in gpu.partitions:
            name = name_device(one.card, one.render)
            is_shared = sharing and is_shareable(gpu, one)
            yield Offered(name=name, gpu=gpu, mode=gpu.mode, index=one.index, count=gpu.count, shared=is_shared)
