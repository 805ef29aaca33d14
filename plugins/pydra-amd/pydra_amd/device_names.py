"""The names of devices, of counter sets and of counters. Pure.

    gpu-0-128               a whole GPU, or a partition that the admin made, by the numbers of its nodes in /dev/dri
    gpu-0-128-cpx-nps1-3    a partition that is made when a claim gets it: of the GPU gpu-0-128, its mode, its number
    gpu-vfio-0              a GPU or a virtual function for guests, by its place among AMD's functions on the PCI bus
    gpu-0-128-partitions    what the partitions of a GPU draw from

Source of the first and the third: ROCm/k8s-gpu-dra-driver, so that allocations made for it mean the same here.
"""

from __future__ import annotations

from pydra_amd.hardware_types import Gpu, Mode

DRIVER = "gpu.amd.com"


def name_device(card: int, render: int) -> str:
    """The device name of what has these nodes."""
    return f"gpu-{card}-{render}"


def name_partition(gpu: Gpu, mode: Mode, index: int) -> str:
    """The device name of a partition that is made on demand."""
    return f"{name_gpu(gpu)}-{mode.compute}-{mode.memory}-{index}"


def name_function(index: int) -> str:
    """The device name of a function that is passed through."""
    return f"gpu-vfio-{index}"


def name_gpu(gpu: Gpu) -> str:
    """The device name of the whole GPU."""
    return name_device(gpu.card, gpu.render)


def name_counter_set(gpu: Gpu) -> str:
    """The counter set of a GPU."""
    return f"{name_gpu(gpu)}-partitions"


def name_counter(mode: Mode | None, index: int) -> str:
    """The counter of one partition of a mode; None: of what there is."""
    return f"{mode.compute}-{mode.memory}-{index}" if mode else f"existing-{index}"
