"""The names of devices and counter sets. Pure.

    gpu-0                       a whole GPU, by its minor number
    gpu-0-mig-1g10gb-me-20-3    a partition: profile, hardware profile id, first memory slice
    gpu-vfio-0                  a GPU to pass through, by its position among the node's NVIDIA functions
    gpu-0-counter-set           what the partitions of a GPU draw from

Source of the names: kubernetes-sigs/dra-driver-nvidia-gpu, so that allocations made for it mean the same here.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from pydra_nvidia.hardware_types import Reading
from pydra_pci import PciFunction

DRIVER = "gpu.nvidia.com"

_GPU = re.compile(r"gpu-(0|[1-9]\d{0,5})")
_MIG = re.compile(r"gpu-(0|[1-9]\d{0,5})-mig-[0-9a-z-]+-(\d{1,5})-(\d{1,3})")
_VFIO = re.compile(r"gpu-vfio-(0|[1-9]\d{0,5})")


class GpuName(msgspec.Struct, frozen=True):
    """A whole GPU."""

    minor: int


class MigName(msgspec.Struct, frozen=True):
    """A partition of the GPU `minor`; `profile` is the hardware's id of its profile."""

    minor: int
    profile: int
    start: int


class VfioName(msgspec.Struct, frozen=True):
    """A GPU to pass through."""

    index: int


def gpu_name(minor: int) -> str:
    """The device name of a whole GPU."""
    return f"gpu-{minor}"


def mig_name(minor: int, profile_name: str, profile_id: int, start: int) -> str:
    """The device name of a partition. `+me` and `-me` are spelt alike; the id tells them apart."""
    return f"gpu-{minor}-mig-{_spell(profile_name)}-{profile_id}-{start}"


@lru_cache(maxsize=256)
def _spell(profile_name: str) -> str:
    """As a device's name has it: `1g10gb-me`. A node has few profiles, and hundreds of places for them."""
    return re.sub(r"[^0-9a-z]+", "-", profile_name.lower().replace(".", "")).strip("-")


def vfio_name(index: int) -> str:
    """The device name of a GPU to pass through."""
    return f"gpu-vfio-{index}"


def counter_set_name(minor: int) -> str:
    """The counter set of a GPU."""
    return f"gpu-{minor}-counter-set"


def parse_name(device: str) -> GpuName | MigName | VfioName | None:
    """What kind of device the name means; None when it is none of ours."""
    if match := _GPU.fullmatch(device):
        return GpuName(int(match[1]))
    if match := _MIG.fullmatch(device):
        return MigName(int(match[1]), int(match[2]), int(match[3]))
    if match := _VFIO.fullmatch(device):
        return VfioName(int(match[1]))
    return None


def passthrough_candidates(reading: Reading) -> dict[int, PciFunction]:
    """The functions that can be passed through, by the indices in their names, which are in the order of PCI addresses.

    The index counts all of the node's NVIDIA functions but virtual ones, also those that are gone, so that a name keeps
    its meaning when another GPU is bound, gets virtual functions or leaves the bus. Source: NVIDIA's driver counts the
    same, once, when it starts.
    """
    present = {address: one for address, one in reading.functions.items() if not one.is_virtual}
    addresses = sorted({*present, *reading.gone}, key=lambda address: (len(address), address))  # long domains are last
    return {index: present[address] for index, address in enumerate(addresses) if address in present}
