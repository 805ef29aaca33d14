"""What is known of a node's NVIDIA hardware at one moment. Values only; who reads them is in `nvml` and `host`.

A `Reading` is the whole of it: `inventory` decides from it what is published, `claim_plan` what a claim gets.
Sizes of memory are in bytes unless a name says MiB. `None` means that this driver or GPU does not report it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import msgspec

from pydra_pci import PciFunction, VfioHost

VGPU_GUEST = 2
"""NVML_GPU_VIRTUALIZATION_MODE_VGPU: the GPU is a share from a hypervisor, which decides on partitions."""


class Architecture(IntEnum):
    """NVML's device architectures, in the order of their generations."""

    KEPLER = 2
    MAXWELL = 3
    PASCAL = 4
    VOLTA = 5
    TURING = 6
    AMPERE = 7
    ADA = 8
    HOPPER = 9
    BLACKWELL = 10
    RUBIN = 13
    UNKNOWN = 0xFFFFFFFF


class Driver(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel driver: `version` such as `580.105.08`, `cuda` as NVML counts (13000 for 13.0)."""

    version: str
    cuda: int


class Placement(msgspec.Struct, frozen=True, order=True):
    """Memory slices `start` to `start + size - 1` of a GPU."""

    start: int
    size: int

    def overlaps(self, other: Placement) -> bool:
        """Whether both need the same memory slice."""
        return self.start < other.start + other.size and other.start < self.start + self.size


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of GPU instance that the live driver offers; figures are of one instance.

    `id` is the hardware's profile id (H100 1g: 19), which is not NVML's enumeration of profiles. `name` is without
    the prefix `MIG `: `1g.10gb+me`. `slices` are compute slices, `most` how many instances the GPU can hold.
    `placements` is empty where the driver does not report them, as to others than root.
    """

    id: int
    name: str
    slices: int
    most: int
    memory_mib: int
    multiprocessors: int
    copy_engines: int
    decoders: int
    encoders: int
    jpeg_engines: int
    ofa_engines: int
    placements: tuple[Placement, ...]


class ComputeInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A compute instance, the MIG device of CUDA; `slices` is how many compute slices of its GPU instance it has."""

    id: int
    uuid: str
    slices: int


class GpuInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU instance that exists, and what was created in it."""

    id: int
    profile: int
    placement: Placement
    compute: tuple[ComputeInstance, ...] = ()


class Mig(msgspec.Struct, frozen=True, kw_only=True):
    """The partitioning of a GPU that can be partitioned.

    `resetless`: the mode can be changed without resetting the GPU (Hopper and newer). `profiles` is empty where the
    driver reports none, as Ampere does with the mode off. `unseen` says why there may be further instances, which could
    not be read; empty where there are none.
    """

    enabled: bool
    pending: bool
    resetless: bool
    profiles: tuple[Profile, ...] = ()
    instances: tuple[GpuInstance, ...] = ()
    unseen: str = ""


class NvLinks(msgspec.Struct, frozen=True, kw_only=True):
    """NVLink of one GPU: `up` of `total` links carry traffic; `peers` are PCI addresses of GPUs linked directly.

    `switched`: the links end at NVSwitches, so every GPU of the node with switched links is a peer.
    """

    total: int
    up: int
    peers: tuple[str, ...] = ()
    switched: bool = False


class Fabric(msgspec.Struct, frozen=True, kw_only=True):
    """Membership in a multi-node NVLink fabric; `healthy` None where the driver does not say."""

    cluster: str
    clique: int
    healthy: bool | None = None


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver says now of a GPU's health. Field None: not known.

    `recovery` is NVML field 230: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, 5 recover the
    IMEX domain, 6 bus reset, 7 system reboot. `ecc_uncorrected` counts since the last reset of the driver or GPU.
    `silence` says why the GPU did not answer this time: all else is of the time before.
    """

    recovery: int | None = None
    ecc_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    retirement_pending: bool | None = None
    monitored: bool = True
    silence: str = ""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that the NVIDIA driver manages. `pci` is its address, the key of `Reading.functions`.

    `persistence`: the driver keeps it ready while nobody uses it. `unread` says why it is not known how the GPU is
    partitioned, empty where it is; `mig` is None then.
    """

    index: int
    minor: int
    uuid: str
    name: str
    brand: int
    architecture: int
    compute: tuple[int, int]
    pci: str
    memory: int | None
    serial: str = ""
    module: int | None = None
    addressing: int | None = None
    virtualization: int = 0
    persistence: bool | None = None
    mig: Mig | None = None
    unread: str = ""
    links: NvLinks | None = None
    fabric: Fabric | None = None
    condition: Condition = Condition()


class LostGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that is there and does not answer; `last` is what was known of it before, `code` NVML's error.

    `pci` is its address where that is known, `index` NVML's, -1 where NVML does not count the GPU.
    """

    index: int
    code: int
    message: str
    last: Gpu | None = None
    pci: str = ""


class FabricPartition(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs, by PCI address, that Fabric Manager connects by NVLink while the partition is active, sorted.

    `members` are their identities there.
    """

    id: int
    gpus: tuple[str, ...]
    members: tuple[str, ...] = ()
    active: bool = False


class SharedFabric(msgspec.Struct, frozen=True, kw_only=True):
    """Fabric Manager's partitions. `problem` says why they could not be read this time: they are of the time before."""

    partitions: tuple[FabricPartition, ...] = ()
    problem: str = ""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """All of the node's NVIDIA hardware at one moment. `functions` are PCI functions by address, sorted.

    A GPU that is bound to vfio-pci is in `functions` only. `driver` is None where no NVIDIA driver is needed: the node
    has no NVIDIA hardware, or all of it is passed through. `modules` are positions on the baseboard by PCI address,
    also of GPUs that NVML reported earlier. `fabric` is None where GPUs need no partition of Fabric Manager. `gone` are
    PCI addresses of functions, other than virtual ones, that earlier readings had and that are not on the bus any more.
    """

    driver: Driver | None = None
    gpus: tuple[Gpu, ...] = ()
    lost: tuple[LostGpu, ...] = ()
    functions: Mapping[str, PciFunction] = {}
    gone: frozenset[str] = frozenset()
    modules: Mapping[str, int] = {}
    vfio: VfioHost = VfioHost()
    fabric: SharedFabric | None = None
    lacks_uvm: bool = False
    """Whether the driver has GPUs and is loaded without nvidia_uvm, which CUDA needs."""

    def gpu(self, uuid: str) -> Gpu | None:
        """The GPU of this UUID."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
