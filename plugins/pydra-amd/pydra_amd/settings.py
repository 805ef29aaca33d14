"""What the admin decides for this backend: its SETTINGS_TYPE.

`poll_period` is `PYDRA_AMD_POLL_PERIOD`, or `backendSettings.amd.pollPeriod` in the agent's settings file. What stands
below a field is its text in docs/settings.md and in the chart's schema, which are generated (`make docs chart`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Annotated

import msgspec

from pydra_pci import AbsolutePath, Reaction, RootSettings

PREFIX = "PYDRA_AMD_"


class Partitioning(Enum):
    """Which partitions of GPUs claims can have."""

    EXISTING = "existing"
    """Existing devices: whole GPUs, or the partitions that the admin created. Modes are not changed."""
    COMPUTE = "compute"
    """The whole GPU and each partition of each compute mode that the current memory mode allows. The mode is set when a
    claim gets one, and restored when the last of a GPU's claims has ended."""
    MEMORY = "memory"
    """As `compute`, in all memory modes of the model. All GPUs of the node have one memory mode, and the driver is
    reloaded when it changes: only while no claim has any of them and no process uses one; see [memory
    modes](memory-modes.md)."""


class Signal(Enum):
    """What can be wrong with a GPU; its value is the taint's name below `gpu.amd.com/`."""

    GPU_LOST = "gpu-lost"
    """It was usable, but is gone from the PCI bus, does not answer there, or has lost its nodes."""
    NODE_GONE = "node-gone"
    """A device node that its containers need is missing."""
    RESET = "reset"
    """It is being reset. Reported by amdsmi."""
    ECC = "ecc"
    """One of its blocks has counted uncorrectable errors since the driver was loaded; the taint's value names the
    blocks."""
    XGMI_ERROR = "xgmi-error"
    """The same for its xGMI links."""
    XGMI_LINK = "xgmi-link"
    """One of its xGMI links is down. Reported by amdsmi."""
    BAD_PAGES = "bad-pages"
    """More pages of its memory are retired than the threshold allows."""
    THROTTLING = "throttling"
    """Its clocks are throttled because of heat, or were within the last five minutes. Reported by amdsmi."""


class Settings(RootSettings, frozen=True, kw_only=True):
    """All settings."""

    scenario: str = ""
    """A simulated machine instead of the node's hardware: the name of a bundled scenario, such as `mi300x-8`."""
    state: AbsolutePath = "/run/pydra-amd"
    """The directory with the files of a simulated machine."""
    dev_root: AbsolutePath = "/dev"
    """The directory of the device nodes on the host."""

    partitioning: Partitioning = Partitioning.EXISTING
    """Which partitions of GPUs claims can have. `compute` and `memory` need the feature gate DRAPartitionableDevices;
    without it, only whole GPUs are published."""
    reload_deadline: Annotated[float, msgspec.Meta(gt=0)] = 180.0
    """With `partitioning: memory`, how many seconds preparing or ending a claim may take, since that may reload the
    driver."""
    sharing: bool = False
    """Whether several claims can share a whole GPU, or an existing partition, each with its own compute units and
    memory; see [sharing](sharing.md). Needs `partitioning: existing` and the feature gate DRAConsumableCapacity."""
    vfio: bool = False
    """Whether GPUs, and existing virtual functions, are also offered to virtual machines; see
    [passthrough](passthrough.md). Needs the feature gate DRAPartitionableDevices."""
    vfio_idle_deadline: Annotated[float, msgspec.Meta(gt=0)] = 25.0
    """How many seconds passthrough waits for the users of a GPU to end."""
    health: bool = True
    """Whether to monitor the health of GPUs. Off: all devices always count as healthy."""
    amdsmi: bool = True
    """Whether to use AMD's library amdsmi if it is installed: it reports resets, xGMI links and throttling. While it is
    in use, nothing else can change partition modes, or unload the driver."""
    signals: Mapping[Signal, Reaction] = {}
    """Reactions to signals other than the defaults: `ecc=NoExecute,bad-pages=Ignore`; see below."""
    bad_page_threshold: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many pages of a GPU's memory may be retired. 0: as many as the driver tolerates: by its parameter
    `bad_page_threshold`, without one 127 of MI200, MI300 and MI350 (255 of some), as since Linux 6.15."""
    poll_period: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """Seconds between two checks for GPUs, partitions and device nodes that were added or removed."""

    def __post_init__(self) -> None:
        """Refuse settings that exclude each other: a scheduler does not count the counters that shared devices
        consume."""
        if self.sharing and self.partitioning is not Partitioning.EXISTING:
            raise ValueError(f"sharing needs partitioning existing, not {self.partitioning.value}")
        if self.sharing and self.vfio:
            raise ValueError("sharing and vfio exclude each other")
