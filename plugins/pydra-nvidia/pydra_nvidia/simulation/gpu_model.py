"""What a kind of GPU is: all that NVML and sysfs report about it that never changes. Values, from YAML.

A scenario may bring its own models; those of the bundled scenarios are in `models/`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Natural = Annotated[int, msgspec.Meta(ge=0)]
HexId = Annotated[str, msgspec.Meta(pattern="^0x[0-9a-f]{4}$")]

SLICE_ENUMS = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}
"""NVML_GPU_INSTANCE_PROFILE_n_SLICE and NVML_COMPUTE_INSTANCE_PROFILE_n_SLICE, by n; of the latter the ids, too."""


class Strict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Strict, and in camel case."""


class ComputeProfile(Strict, frozen=True, kw_only=True):
    """A kind of compute instance within a GPU instance. `id` is NVML's constant and the hardware's id alike."""

    id: Natural
    slices: Natural
    most: Natural
    starts: tuple[Natural, ...]


class GpuProfile(Strict, frozen=True, kw_only=True):
    """A kind of GPU instance. `enum` is NVML's constant, `id` the hardware's; `name` lacks the prefix `MIG `.

    It can be at the memory slices `starts`, and takes `size` of them.
    """

    enum: Natural
    id: Natural
    name: str
    slices: Natural
    most: Natural
    memory: Natural = msgspec.field(name="memoryMiB")
    multiprocessors: Natural
    starts: tuple[Natural, ...]
    size: Annotated[int, msgspec.Meta(ge=1)]
    copy_engines: Natural = 0
    decoders: Natural = 0
    encoders: Natural = 0
    jpeg_engines: Natural = 0
    ofa_engines: Natural = 0

    def compute_profiles(self) -> tuple[ComputeProfile, ...]:
        """Kinds of compute instances.

        Source: nvidia-smi mig -lcip of A100 and H100: n slices offer 1c, 2c, and 3c, 4c, 7c where they fit.
        """
        return tuple(
            ComputeProfile(
                id=id_,
                slices=slices,
                most=self.slices // slices,
                starts=tuple(range(0, self.slices - slices + 1, slices)),
            )
            for slices, id_ in SLICE_ENUMS.items()
            if slices == self.slices or (slices in (1, 2, 3, 4) and slices < self.slices)
        )


class MigModel(Strict, frozen=True, kw_only=True):
    """How the GPU can be partitioned: `memory_slices` places, of which instances use `compute_slices` at most.

    `resetless`: the mode changes without a reset (Hopper and newer). `persistent`: it outlives a reboot (Ampere).
    `reports_profiles_when_off`: profiles can be asked for with the mode off (not on Ampere).
    """

    profiles: tuple[GpuProfile, ...]
    memory_slices: Annotated[int, msgspec.Meta(ge=1, le=32)] = 8
    compute_slices: Annotated[int, msgspec.Meta(ge=1, le=32)] = 7
    most_devices: Annotated[int, msgspec.Meta(ge=1, le=32)] = 7
    resetless: bool = True
    persistent: bool = False
    reports_profiles_when_off: bool = True

    def profile(self, id_: int) -> GpuProfile | None:
        """By the hardware's id."""
        return next((one for one in self.profiles if one.id == id_), None)

    def named(self, name: str) -> GpuProfile | None:
        """By name, such as `1g.10gb+me`."""
        return next((one for one in self.profiles if one.name == name), None)


class NvLinkModel(Strict, frozen=True, kw_only=True):
    """`links` of NVLink `version`; `switched`: they end at NVSwitches, else at the other GPUs."""

    links: Annotated[int, msgspec.Meta(ge=1, le=36)]
    version: Natural = 4
    switched: bool = True


class FabricModel(Strict, frozen=True, kw_only=True):
    """What nvmlDeviceGetGpuFabricInfoV says: `state` 0 not supported, 1 not started, 2 in progress, 3 completed.

    `cluster` is a UUID; `summary` 0 not supported, 1 healthy, 2 unhealthy, 3 limited capacity.
    """

    state: Annotated[int, msgspec.Meta(ge=0, le=3)] = 3
    status: Natural = 0
    cluster: str = "00000000-0000-0000-0000-000000000000"
    clique: Natural = 0
    health_mask: Natural = 0
    summary: Annotated[int, msgspec.Meta(ge=0, le=3)] = 1


class PciModel(Strict, frozen=True, kw_only=True):
    """The PCI function. `regions` are its memory regions in MiB (BAR 0, 1 and 3)."""

    device: HexId
    vendor: HexId = "0x10de"
    subsystem_device: HexId = "0x0000"
    subsystem_vendor: HexId = "0x10de"
    pci_class: str = msgspec.field(name="class", default="0x030200")
    generation: Natural = 5
    width: Natural = 16
    regions: tuple[Natural, ...] = msgspec.field(name="regionsMiB", default=())


class ClockModel(Strict, frozen=True, kw_only=True):
    """Highest clocks in MHz."""

    graphics: Natural = 1980
    sm: Natural = 1980
    memory: Natural = 2619
    video: Natural = 1545


class Model(Strict, frozen=True, kw_only=True):
    """A kind of GPU.

    `compute` is its CUDA capability, `power_limit` in watts, `addressing` NVML's mode (0 none, 1 HMM, 2 ATS; None: not
    reported). `events` is the mask of supported event types. What else a GPU lacks, a fault of the scenario refuses.
    """

    name: str
    brand: Natural = 2
    architecture: Natural
    compute: tuple[Natural, Natural]
    memory: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name="memoryMiB")
    reserved: Natural = msgspec.field(name="reservedMiB", default=0)
    bar1: Natural = msgspec.field(name="bar1MiB", default=0)
    pci: PciModel
    mig: MigModel | None = None
    nvlink: NvLinkModel | None = None
    fabric: FabricModel | None = None
    clocks: ClockModel = ClockModel()
    power_limit: Natural = msgspec.field(name="powerLimitWatts", default=300)
    ecc: bool = True
    row_remapping: bool = True
    page_retirement: bool = False
    addressing: Annotated[int, msgspec.Meta(ge=0, le=2)] | None = 0
    virtualization: Annotated[int, msgspec.Meta(ge=0, le=4)] = 0
    module: bool = True
    serial: bool = True
    events: Natural = 0x01FF
