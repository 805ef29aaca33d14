"""What changes in the simulated machine, as its file has it, and a view of it all. Values; `machine_store` keeps them.

They may be changed within `Machine.change` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from pydra_nvidia.simulation.call_faults import FaultPlan
from pydra_nvidia.simulation.scenario import Scenario
from pydra_nvidia.simulation.scenario_gpus import Board

ProcessKind: TypeAlias = Literal["compute", "graphics", "mps"]


class Process(msgspec.Struct, kw_only=True):
    """A process that uses the GPU, or its GPU instance `gi` and compute instance `ci`. Memory in MiB."""

    pid: int
    name: str = "python3"
    memory: int = 512
    kind: ProcessKind = "compute"
    gi: int | None = None
    ci: int | None = None


class ComputeState(msgspec.Struct, kw_only=True):
    """A compute instance. `profile` is the hardware's id; it has the `slices` compute slices from `start` on."""

    id: int
    profile: int
    start: int
    slices: int
    uuid: str


class InstanceState(msgspec.Struct, kw_only=True):
    """A GPU instance at the memory slices `start` to `start + size - 1`. `serial` is that of no other, ever."""

    id: int
    profile: int
    start: int
    size: int
    serial: int
    compute: list[ComputeState] = []


class Counters(msgspec.Struct, kw_only=True):
    """Errors counted. Those named volatile are forgotten when the driver is reloaded; the others never."""

    ecc_corrected: int = 0
    ecc_uncorrected: int = 0
    ecc_corrected_volatile: int = 0
    ecc_uncorrected_volatile: int = 0
    remapped_corrected: int = 0
    remapped_uncorrected: int = 0
    remap_pending: bool = False
    remap_failed: bool = False
    retired_single: int = 0
    retired_double: int = 0
    retirement_pending: bool = False
    pcie_replays: int = 0
    nvlink_replays: int = 0
    nvlink_recoveries: int = 0
    nvlink_crc: int = 0


class Gauges(msgspec.Struct, kw_only=True):
    """What is measured; degrees Celsius, milliwatts, percent, MiB used apart from what the processes have."""

    temperature: int = 34
    power: int = 72000
    utilization: int = 0
    memory_utilization: int = 0
    memory_used: int = 0


class GpuState(msgspec.Struct, kw_only=True):
    """One GPU. `driver` is the kernel driver that has it: `nvidia`, `vfio-pci`, another, or empty.

    `override` is what its driver_override says. `epoch` counts the changes of its MIG mode: handles and registrations
    for events from before one are of no use. `time_slice` 0 default, 1 short, 2 medium, 3 long; `compute_mode` and
    `recovery` as NVML has them. `links_down` are the NVLinks that are inactive, whatever the scenario says.
    `has_unhealthy_file`: it was lost by one (`inject.UnhealthyFiles`).
    """

    plugged: bool = True
    driver: str = "nvidia"
    override: str = ""
    lost: bool = False
    has_unhealthy_file: bool = False
    mig: bool = False
    mig_pending: bool = False
    epoch: int = 0
    instances: list[InstanceState] = []
    compute_mode: int = 0
    time_slice: int = 0
    persistence: bool = True
    recovery: int = 0
    processes: list[Process] = []
    links_down: list[int] = []
    counters: Counters = msgspec.field(default_factory=Counters)
    gauges: Gauges = msgspec.field(default_factory=Gauges)


class Event(msgspec.Struct, kw_only=True, frozen=True):
    """Something that happened to the GPU `uuid`: NVML's event type (0x8: an XID, which is `data`)."""

    number: int
    uuid: str
    type: int
    data: int = 0
    gi: int | None = None
    ci: int | None = None


class State(msgspec.Struct, kw_only=True):
    """The machine. `gpus` by UUID.

    `boot` counts reboots, `loaded` how often the driver was loaded: handles are of no use after either. `driver` is as
    in the scenario; `version` empty: the scenario's. `made` counts what was ever created, `happened` the events.
    `fabric` are Fabric Manager's active partitions, `fabric_starts` is how often it was started again. `fabric_phase`:
    it was started normally, in its restart mode and waits for the list of active partitions, or has that list.
    """

    boot: int = 1
    loaded: int = 1
    driver: Literal["loaded", "unloaded", "absent"] = "loaded"
    version: str = ""
    made: int = 0
    happened: int = 0
    gpus: dict[str, GpuState] = {}
    events: list[Event] = []
    fabric: list[int] = []
    fabric_starts: int = 0
    fabric_phase: Literal["normal", "waiting", "resumed"] = "normal"


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The machine at one moment. `boards` are all of the scenario's GPUs, by UUID in the order of their PCI addresses.

    A GPU is there for NVML when it is plugged and bound to `nvidia`: `attached`.
    """

    scenario: Scenario
    boards: Mapping[str, Board]
    faults: FaultPlan
    state: State

    def attached(self) -> tuple[str, ...]:
        """The UUIDs of the GPUs that the NVIDIA driver has, in NVML's order."""
        gpus = self.state.gpus
        return tuple(uuid for uuid in self.boards if gpus[uuid].plugged and gpus[uuid].driver == "nvidia")

    def is_lost(self, uuid: str) -> bool:
        """Whether the GPU has fallen off the bus."""
        return self.state.gpus[uuid].lost

    def driver_version(self) -> str:
        """Of the kernel module."""
        return self.state.version or self.scenario.driver.version
