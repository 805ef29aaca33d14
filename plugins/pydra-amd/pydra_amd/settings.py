"""What the admin decides for this backend: its SETTINGS_TYPE.

`poll_period` is `PYDRA_AMD_POLL_PERIOD`, or `backendSettings.amd.pollPeriod` in the agent's settings file. What stands
below a field is its text in docs/settings.md and in the chart's schema, which are generated (`make docs chart`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum
from typing import Annotated

import msgspec

PREFIX = "PYDRA_AMD_"

AbsolutePath = Annotated[str, msgspec.Meta(pattern="^/")]


class Partitioning(Enum):
    """Which partitions of GPUs claims can have."""

    EXISTING = "existing"
    """What is there: whole GPUs, or the partitions that the admin made. Modes are left as they are."""
    COMPUTE = "compute"
    """The whole GPU and each partition of each compute mode that goes with the present memory mode. The mode is set
    when a claim gets one, and set back when the last of a GPU's claims has ended."""
    MEMORY = "memory"
    """As `compute`, in all memory modes that the model has. All GPUs of the node have one memory mode, and the driver
    is loaded anew when it changes: only while no claim has any of them and no process uses one; see
    [memory modes](memory-modes.md)."""


class Signal(Enum):
    """What can be wrong with a GPU; its value is the taint's name below `gpu.amd.com/`."""

    GPU_LOST = "gpu-lost"
    """It was usable, and is gone from the PCI bus, does not answer there, or has lost its nodes."""
    NODE_GONE = "node-gone"
    """A device node that its containers need is not there."""
    RESET = "reset"
    """It is being reset. Told by amdsmi."""
    ECC = "ecc"
    """A block of it counts errors that could not be corrected, since the driver was loaded; the taint's value names
    the blocks."""
    XGMI_ERROR = "xgmi-error"
    """The same for its xGMI links."""
    XGMI_LINK = "xgmi-link"
    """An xGMI link of it is down. Told by amdsmi."""
    BAD_PAGES = "bad-pages"
    """More pages of its memory are out of use than the threshold allows."""
    THROTTLING = "throttling"
    """Its clocks are held down for heat, or were within the last five minutes. Told by amdsmi."""


class Reaction(Enum):
    """What follows from a signal."""

    UNHEALTHY = "Unhealthy"
    """The device is unhealthy; its taint has the agent's effect (`--health-taint`)."""
    NO_SCHEDULE = "NoSchedule"
    """The device is unhealthy; its taint keeps new pods away."""
    NO_EXECUTE = "NoExecute"
    """The device is unhealthy; its taint also evicts the pods that have it."""
    NONE = "None"
    """The device is healthy; a taint with the effect `None` tells of it."""
    IGNORE = "Ignore"
    """Nothing."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings."""

    scenario: str = ""
    """A simulated machine in the place of the node's hardware: the name of a bundled scenario, such as `mi300x-8`."""
    state: AbsolutePath = "/run/pydra-amd"
    """Where a simulated machine has its files."""
    host_root: AbsolutePath = msgspec.field(default_factory=lambda: os.environ.get("PYDRA_HOST_ROOT", "/"))
    """Where the host's `/` is seen from here. Default: `PYDRA_HOST_ROOT`, where that is set."""
    sys_root: AbsolutePath = "/sys"
    """Where the host's `/sys` is seen from here; changes of partition modes are written to it."""
    dev_root: AbsolutePath = "/dev"
    """Where the device nodes are, as the host sees it."""
    proc_root: AbsolutePath = "/proc"
    """Where the host's `/proc` is seen from here; passthrough looks there for who uses a GPU."""

    partitioning: Partitioning = Partitioning.EXISTING
    """Which partitions of GPUs claims can have. `compute` and `memory` need the feature gate DRAPartitionableDevices;
    without it, only whole GPUs are published."""
    reload_deadline: Annotated[float, msgspec.Meta(gt=0)] = 180.0
    """With `partitioning: memory`, how many seconds preparing or ending a claim may take, since the driver may be
    loaded anew for it."""
    sharing: bool = False
    """Whether several claims can share a whole GPU, or a partition that exists, with compute units and memory of their
    own; see [sharing](sharing.md). Needs `partitioning: existing` and the feature gate DRAConsumableCapacity."""
    vfio: bool = False
    """Whether GPUs, and virtual functions that exist, are also offered to virtual machines; see
    [passthrough](passthrough.md). Needs the feature gate DRAPartitionableDevices."""
    vfio_idle_deadline: Annotated[float, msgspec.Meta(gt=0)] = 25.0
    """How many seconds passthrough waits for the users of a GPU to end."""
    health: bool = True
    """Whether to watch how GPUs are. Off: all devices are healthy, whatever happens."""
    amdsmi: bool = True
    """Whether to use AMD's library amdsmi where it is installed: it tells of resets, xGMI links and throttling. While
    it is used nobody else can change partition modes, or unload the driver."""
    signals: Mapping[Signal, Reaction] = {}
    """What follows from which signal where it is not the default: `ecc=NoExecute,bad-pages=Ignore`; see below."""
    bad_page_threshold: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many pages of a GPU's memory may be out of use. 0: as many as the driver tolerates by default, one for each
    100 MiB of memory."""
    poll_period: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """Seconds between two looks for GPUs, partitions and device nodes that have come or gone."""

    def __post_init__(self) -> None:
        """Refuse what cannot be together: a scheduler does not count what shared devices draw from counters."""
        if self.sharing and self.partitioning is not Partitioning.EXISTING:
            raise ValueError(f"sharing needs partitioning existing, not {self.partitioning.value}")
        if self.sharing and self.vfio:
            raise ValueError("sharing and vfio exclude each other")
