"""The scenario: the driver, the host, the GPUs and what happens to them. Values; `scenario_file` reads them.

driver: {version: 580.105.08, cuda: 13000}
settings: {dynamic_mig: true}
gpus:
- {model: h100-80gb, count: 8, numaNodes: 2}
faults:
- {op: nvmlDeviceGetMigMode, device: 3, do: raise, code: GPU_IS_LOST, after: 10}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from pydra import PydraError
from pydra_nvidia.simulation.call_faults import Fault
from pydra_nvidia.simulation.gpu_model import FabricModel, Model

Natural = Annotated[int, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1, le=64)]
PciAddress = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$")]


class ScenarioError(PydraError):
    """The scenario cannot be read, or says something impossible."""

    retryable = True
    reason = "InvalidScenario"

    def __init__(self, source: str, problem: str) -> None:
        self.source = source
        self.problem = problem
        super().__init__(f"scenario {source}: {problem}")


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Strict, and in camel case."""


class DriverPart(_Part, frozen=True, kw_only=True):
    """The NVIDIA driver. `cuda` as NVML counts: 13000 is 13.0.

    `state`: `loaded`, `unloaded` (the library is there, the module is not), or `absent` (neither); what it is later is
    the machine's. `missing` lists C symbols (`*` allowed) that this driver's library lacks. `privileged` False: this
    process is not root, so whatever changes the hardware answers NO_PERMISSION. `named_profiles_when_off` False: the
    second version of profiles, with names, is available in MIG mode only, as nvml.h says; the first always is.
    `counts_lost` False: a session that begins while a GPU is lost does not count it, instead of failing to reach it.
    `fabric_mode` is Fabric Manager's; None: it does not run. `fabric_first` is the ID of its first partition.
    """

    version: Annotated[str, msgspec.Meta(pattern=r"^\d+(\.\d+){1,2}$")] = "580.105.08"
    cuda: Natural = 13000
    state: Literal["loaded", "unloaded", "absent"] = "loaded"
    missing: tuple[str, ...] = ()
    privileged: bool = True
    named_profiles_when_off: bool = True
    counts_lost: bool = True
    fabric_mode: Annotated[int, msgspec.Meta(ge=0, le=1)] | None = 0
    fabric_first: Annotated[int, msgspec.Meta(ge=0, le=32)] = 0


class HostPart(_Part, frozen=True, kw_only=True):
    """The node around the GPUs; where `simulation.tree` puts what. Memory in MiB.

    `driver_root` is where the driver's files are on the host: `/`, or that of a containerised driver. `cdi_hook` is
    the path of nvidia-cdi-hook on the host, empty for none. `vfio_variants` maps modaliases (`*` allowed) to variant
    drivers of vfio-pci. `only_gpus`: the PCI bus has no bridges, switches, network cards or disks besides, of which no
    device of ours is made. `files` are further files of the host, by path, with their text.
    """

    iommu: bool = True
    iommufd: bool = True
    driver_root: str = "/"
    cdi_hook: str = "/usr/bin/nvidia-cdi-hook"
    vfio_variants: Mapping[str, str] = {}
    memory: Annotated[int, msgspec.Meta(ge=1)] = msgspec.field(name="memoryMiB", default=1 << 20)
    imex_channels: Natural = 0
    kernel: str = "6.8.0"
    only_gpus: bool = False
    files: Mapping[str, str] = {}


class ComputePreset(_Part, frozen=True, kw_only=True):
    """A compute instance of a `Preset`: `slices` compute slices. What is left out is made up."""

    slices: Count
    id: Natural | None = None
    start: Natural | None = None
    uuid: str = ""


class Preset(_Part, frozen=True, kw_only=True):
    """A GPU instance that is there when the machine is new: its profile's name and first memory slice.

    `compute` lists its compute instances, or only their slices; without it, one fills it. `id` is made up if left out.
    """

    profile: str
    start: Natural
    id: Natural | None = None
    compute: tuple[Count | ComputePreset, ...] | None = None

    def compute_parts(self, slices: int) -> tuple[ComputePreset, ...]:
        """Its compute instances, where a whole GPU instance has so many slices."""
        given = (slices,) if self.compute is None else self.compute
        return tuple(one if isinstance(one, ComputePreset) else ComputePreset(slices=one) for one in given)

    def has_uuids(self) -> bool:
        """Whether a compute instance brings its UUID."""
        return any(isinstance(one, ComputePreset) and one.uuid for one in self.compute or ())


class ConditionPart(_Part, frozen=True, kw_only=True):
    """How a GPU is when the machine is new: fields of `machine_state.GpuState` and `.Counters`, which explain them."""

    lost: bool = False
    recovery: Natural = 0
    ecc_corrected: Natural = 0
    ecc_uncorrected: Natural = 0
    ecc_corrected_volatile: Natural = 0
    ecc_uncorrected_volatile: Natural = 0
    remapped_corrected: Natural = 0
    remapped_uncorrected: Natural = 0
    remap_pending: bool = False
    remap_failed: bool = False
    retirement_pending: bool = False


class LinkPart(_Part, frozen=True, kw_only=True):
    """One NVLink of a GPU. `state` 0 inactive, 1 active, 2 sleep; `remote` 0 GPU, 1 NPU, 2 switch, 255 unknown."""

    state: Annotated[int, msgspec.Meta(ge=0, le=2)] = 1
    remote: Natural = 255
    address: str = ""


class GroupPart(_Part, frozen=True, kw_only=True):
    """`count` GPUs of one model, by its name in `models` or of a bundled one.

    The lists have one value for each GPU, or are empty: made up then. `numa_nodes`: spread evenly over so many, unless
    `numa` says for each. `bridges` are the PCI bridges above each, from the root down. `mig` and `instances` are the
    state of a machine that is new, `mig_pending` is what the mode is to be (default: as it is). `driver` is the kernel
    driver that has the GPUs, empty for none; `condition` is how they are. `plugged` False: not there until plugged in.
    """

    model: str
    count: Count = 1
    numa_nodes: Count = 1
    uuids: tuple[str, ...] = ()
    serials: tuple[str, ...] = ()
    minors: tuple[Natural, ...] = ()
    addresses: tuple[PciAddress, ...] = ()
    roots: tuple[str, ...] = ()
    bridges: tuple[tuple[PciAddress, ...], ...] = ()
    numa: tuple[int, ...] = ()
    modules: tuple[Natural, ...] = ()
    links: tuple[tuple[LinkPart, ...], ...] = ()
    fabric: FabricModel | None = None
    mig: bool = False
    mig_pending: bool | None = None
    instances: tuple[Preset, ...] = ()
    driver: str = "nvidia"
    condition: ConditionPart = ConditionPart()
    plugged: bool = True
    persistence: bool = True

    def __post_init__(self) -> None:
        for field in LISTS:
            if (given := len(getattr(self, field))) not in (0, self.count):
                raise ValueError(f"{field} must have {self.count} values, as count says, not {given}")
        if self.instances and not self.mig:
            raise ValueError("instances need mig: true")
        if self.instances and self.count > 1 and any(one.has_uuids() for one in self.instances):
            raise ValueError("instances with UUIDs are those of one GPU: count must be 1")


LISTS = (
    "uuids",
    "serials",
    "minors",
    "addresses",
    "roots",
    "bridges",
    "numa",
    "modules",
    "links",
)
"""Fields of a group that have a value for each GPU."""


class Scenario(_Part, frozen=True, kw_only=True):
    """A machine. `seed` makes its UUIDs and serials."""

    seed: str = "pydra"
    driver: DriverPart = DriverPart()
    host: HostPart = HostPart()
    settings: Mapping[str, Any] = {}
    models: Mapping[str, Model] = {}
    gpus: tuple[GroupPart, ...] = ()
    faults: tuple[Fault, ...] = ()
