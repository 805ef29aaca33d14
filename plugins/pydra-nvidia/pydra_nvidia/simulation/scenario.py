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
from pydra_nvidia.simulation.gpu_model import FabricModel, Model, Natural, Strict

Count = Annotated[int, msgspec.Meta(ge=1, le=64)]
PciAddress = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]$")]


class ScenarioError(PydraError):
    """The scenario cannot be read, or says something impossible."""

    retryable = True
    reason = "InvalidScenario"

    def __init__(self, source: str, problem: str) -> None:
        super().__init__(f"scenario {source}: {problem}")


class DriverPart(Strict, frozen=True, kw_only=True):
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


class HostPart(Strict, frozen=True, kw_only=True):
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


class Preset(Strict, frozen=True, kw_only=True):
    """A GPU instance that is there when the machine is new: its profile's name and first memory slice.

    `compute` has the slices of each of its compute instances; without it, one fills it.
    """

    profile: str
    start: Natural
    compute: tuple[Count, ...] | None = None


class GroupPart(Strict, frozen=True, kw_only=True):
    """`count` GPUs of one model, by its name in `models` or of a bundled one.

    The lists have one value for each GPU, or are empty: made up then. `numa_nodes`: spread evenly over so many, unless
    `numa` says for each. `bridges` are the PCI bridges above each, from the root down. `mig`, `instances`, `lost`, and
    `driver`, the kernel driver that has the GPUs, empty for none, are the state of a machine that is new. `plugged`
    False: not there until plugged in.
    """

    model: str
    count: Count = 1
    numa_nodes: Count = 1
    minors: tuple[Natural, ...] = ()
    addresses: tuple[PciAddress, ...] = ()
    roots: tuple[str, ...] = ()
    bridges: tuple[tuple[PciAddress, ...], ...] = ()
    numa: tuple[int, ...] = ()
    modules: tuple[Natural, ...] = ()
    fabric: FabricModel | None = None
    mig: bool = False
    instances: tuple[Preset, ...] = ()
    driver: str = "nvidia"
    lost: bool = False
    plugged: bool = True

    def __post_init__(self) -> None:
        for field in ("minors", "addresses", "roots", "bridges", "numa", "modules"):
            if (given := len(getattr(self, field))) not in (0, self.count):
                raise ValueError(f"{field} must have {self.count} values, as count says, not {given}")
        if self.instances and not self.mig:
            raise ValueError("instances need mig: true")


class Scenario(Strict, frozen=True, kw_only=True):
    """A machine. `seed` makes its UUIDs and serials."""

    seed: str = "pydra"
    driver: DriverPart = DriverPart()
    host: HostPart = HostPart()
    settings: Mapping[str, Any] = {}
    models: Mapping[str, Model] = {}
    gpus: tuple[GroupPart, ...] = ()
    faults: tuple[Fault, ...] = ()
