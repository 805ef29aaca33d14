"""What the admin decides for this backend: its SETTINGS_TYPE.

`dynamic_mig` is `PYDRA_NVIDIA_DYNAMIC_MIG`, or `backendSettings.nvidia.dynamicMig` in the agent's settings file. A
scenario may bring other defaults.
What stands below a field, a signal or a reaction is its text in docs/settings.md, which is generated (`make docs`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

import msgspec

from pydra import read_settings

PREFIX = "PYDRA_NVIDIA_"

AbsolutePath = Annotated[str, msgspec.Meta(pattern="^/")]
NoPathOrAbsolute = Annotated[str, msgspec.Meta(pattern="^(/|$)")]


class Shares(Enum):
    """How claims may share one GPU through the scheduler; a number stands for that many shares."""

    DISABLED = "disabled"
    MEMORY = "memory"
    UNLIMITED = "unlimited"


class Orphans(Enum):
    """What to do with partitions that nobody here made: publish them as they are, or remove what is idle."""

    ADOPT = "adopt"
    REMOVE = "remove"


class MpsLauncher(Enum):
    """Where MPS control daemons run: as processes of this one's machine view, or of the host, past a container."""

    DIRECT = "direct"
    HOST = "host"


class Signal(Enum):
    """What can be wrong with a GPU; its value is the taint's name below `gpu.nvidia.com/`."""

    XID = "xid"
    """An XID error of the GPU, or of the partition it names."""
    IGNORED_XID = "ignored-xid"
    """An XID error that applications cause, or of `PYDRA_NVIDIA_XIDS_IGNORED`; its taint is called as that of `xid`."""
    GPU_LOST = "gpu-lost"
    """NVML counts the GPU and cannot reach it, or counts it no more although the driver still has it."""
    UNREADABLE = "unreadable"
    """It cannot be read how the GPU is partitioned, since the backend began."""
    PARTITION_GONE = "partition-gone"
    """A prepared claim has the partition, and somebody else removed it."""
    RECOVERY_ACTION = "recovery-action"
    """The driver asks for a reset, a reboot or another recovery action."""
    ROW_REMAP_FAILED = "row-remap-failed"
    """A broken row of memory could not be replaced by a spare one."""
    ROW_REMAP_PENDING = "row-remap-pending"
    """A row of memory is replaced at the next reset."""
    PAGE_RETIREMENT = "page-retirement"
    """A page of memory goes out of use at the next reboot (GPUs before Ampere)."""
    ECC = "ecc"
    """Memory errors that could not be corrected were counted since the driver was loaded."""
    FABRIC = "fabric"
    """The NVLink fabric of the GPU is unhealthy."""
    UNMONITORED = "unmonitored"
    """The driver reports no XIDs of this GPU."""


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
    """A simulated machine in the place of the node's hardware: the path of a scenario, or the name of a bundled one."""
    state: AbsolutePath = "/run/pydra-nvidia"
    """Where the directories of MPS daemons, past faults of GPUs and requests for maintenance are. A reboot must
    empty it. MPS needs it at the same path on the host, of 36 bytes at most."""
    host_root: AbsolutePath = msgspec.field(default_factory=lambda: os.environ.get("PYDRA_HOST_ROOT", "/"))
    """Where the host's `/` is seen from here. Default: `PYDRA_HOST_ROOT`, where that is set."""
    sys_root: AbsolutePath = "/sys"
    """Where the host's `/sys` is seen from here; passthrough writes to it."""
    proc_root: AbsolutePath = "/proc"
    """Where the host's `/proc` is seen from here."""
    driver_root: NoPathOrAbsolute = ""
    """Where the driver is installed, as the host sees it. Empty: looked for (see [containers](containers.md))."""
    dev_root: NoPathOrAbsolute = ""
    """The directory whose `dev` has the device nodes, as the host sees it. Empty: the driver's root, or `/`."""

    dynamic_mig: bool = False
    """Offer every partition that a GPU could have, and make it when a claim gets it (see [MIG](mig.md))."""
    orphans: Orphans = Orphans.ADOPT
    """What to do at start with partitions and MPS daemons that no claim has: leave them (and publish partitions), or
    remove them. Partitions are removed with dynamic MIG only."""
    time_slicing: bool = True
    """Whether claims may set a time slice (see [sharing](sharing.md))."""
    mps: bool = True
    """Whether claims may use MPS."""
    mps_launcher: MpsLauncher = MpsLauncher.DIRECT
    """Where MPS control daemons run: beside the agent (`direct`), or on the host, out of its container (`host`)."""
    consumable_shares: Shares | Annotated[int, msgspec.Meta(ge=1, le=1024)] = Shares.DISABLED
    """How several claims may have one GPU at once: by memory, without limit, or so many of them."""
    vfio: bool = False
    """Offer GPUs for passthrough to virtual machines (see [passthrough](passthrough.md))."""

    health: bool = True
    """Whether to watch how GPUs are (see [health](health.md)). Off: all devices are healthy, whatever happens."""
    xids_ignored: tuple[int, ...] = ()
    """XIDs that are ignored beside those that applications cause."""
    xids_fatal: tuple[int, ...] = ()
    """XIDs that count although they would be ignored."""
    signals: Mapping[Signal, Reaction] = {}
    """What follows from which signal where it is not the default: `xid=NoExecute,ecc=Ignore`; see below."""
    quiet_period: Annotated[float, msgspec.Meta(gt=0)] = 300.0
    """Seconds that must pass without the same XID before it may stop counting."""

    cdi_hook: NoPathOrAbsolute = ""
    """The program `nvidia-cdi-hook`, as the host sees it. Empty: looked for (see [containers](containers.md))."""
    poll_period: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    """Seconds between two looks for what changed from outside, and for MPS daemons that have died."""
    mps_ready_deadline: Annotated[float, msgspec.Meta(gt=0)] = 25.0
    """Seconds that an MPS control daemon has to be ready. All that is done for a claim has two thirds of the agent's
    `prepareDeadline` at most: 26 of 40."""
    vfio_idle_deadline: Annotated[float, msgspec.Meta(gt=0)] = 25.0
    """Seconds to wait for the GPUs of a claim that are still in use before they are bound for passthrough, or given
    back. All that is done for a claim has two thirds of the agent's `prepareDeadline` at most: 26 of 40."""


def parse_settings(environ: Mapping[str, str], defaults: Mapping[str, Any] = {}) -> Settings:
    """The settings as the agent reads them for the backend, over `defaults` (by field name) that a scenario brings.

    Raises:
        SettingsError: unknown variables with the prefix, values that are not allowed; all at once.
    """
    values = {re.sub(r"_(\w)", lambda match: match[1].upper(), name): value for name, value in defaults.items()}
    if "PYDRA_HOST_ROOT" in environ:
        values.setdefault("hostRoot", environ["PYDRA_HOST_ROOT"])
    settings: Settings = read_settings(Settings, "nvidia", PREFIX, environ, values)
    return settings
