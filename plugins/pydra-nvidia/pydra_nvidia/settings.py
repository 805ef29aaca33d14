"""What the admin decides for this backend: its SETTINGS_TYPE.

`dynamic_mig` is `PYDRA_NVIDIA_DYNAMIC_MIG`, or `backendSettings.nvidia.dynamicMig` in the agent's settings file. A
scenario may bring other defaults.
What stands below a field, a signal or a reaction is its text in docs/settings.md, which is generated (`make docs`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

import msgspec

from pydra import read_settings
from pydra_pci import AbsolutePath, Reaction, RootSettings

PREFIX = "PYDRA_NVIDIA_"

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
    """An XID error of the GPU, or of the partition that it names."""
    IGNORED_XID = "ignored-xid"
    """An XID error that applications cause, or in `PYDRA_NVIDIA_XIDS_IGNORED`; its taint has the key of `xid`."""
    GPU_LOST = "gpu-lost"
    """NVML lists the GPU but cannot reach it, or no longer lists it although the driver still has it."""
    UNREADABLE = "unreadable"
    """The partitions of the GPU have not been readable since the backend started."""
    PARTITION_GONE = "partition-gone"
    """Somebody else removed the partition of a prepared claim, or Fabric Manager deactivated it."""
    RECOVERY_ACTION = "recovery-action"
    """The driver requests a reset, a reboot or another recovery action."""
    ROW_REMAP_FAILED = "row-remap-failed"
    """A broken row of memory could not be replaced by a spare one."""
    ROW_REMAP_PENDING = "row-remap-pending"
    """A row of memory is replaced at the next reset."""
    PAGE_RETIREMENT = "page-retirement"
    """A page of memory is retired at the next reboot (GPUs before Ampere)."""
    ECC = "ecc"
    """Uncorrectable memory errors have been counted since the driver was loaded."""
    FABRIC = "fabric"
    """The NVLink fabric of the GPU is unhealthy."""
    UNMONITORED = "unmonitored"
    """The driver reports no XIDs of this GPU."""
    UVM_NOT_LOADED = "uvm-not-loaded"
    """The kernel module `nvidia_uvm` is not loaded, without which CUDA fails in containers."""


class DriverSettings(RootSettings, frozen=True, kw_only=True):
    """The settings that say where NVIDIA's driver is: those of this backend and of `nvidia-compute-domain`."""

    scenario: str = ""
    """A simulated machine instead of the node's hardware: the path of a scenario, or the name of a bundled one."""
    driver_root: NoPathOrAbsolute = ""
    """The driver's root directory on the host. Empty: searched for (see [containers](containers.md))."""
    dev_root: NoPathOrAbsolute = ""
    """The directory on the host in which `dev` has the device nodes. Empty: the driver's root, or `/`."""
    cdi_hook: NoPathOrAbsolute = ""
    """The path of `nvidia-cdi-hook` on the host. Empty: searched for (see [containers](containers.md))."""


class Settings(DriverSettings, frozen=True, kw_only=True):
    """All settings."""

    state: AbsolutePath = "/run/pydra-nvidia"
    """The directory of MPS daemons, past faults of GPUs and requests for maintenance. A reboot must empty it. MPS needs
    it at the same path on the host, of at most 36 bytes. Change it on drained nodes only: daemons of claims stay where
    they are, and nobody ends them."""

    dynamic_mig: bool = False
    """Offer every partition that a GPU could have, and create it when a claim gets it (see [MIG](mig.md))."""
    orphans: Orphans = Orphans.ADOPT
    """What to do at start with partitions and MPS daemons that belong to no claim: keep them (and publish the
    partitions), or remove them. Partitions are removed only with dynamic MIG."""
    time_slicing: bool = True
    """Whether claims may set a time slice (see [sharing](sharing.md))."""
    mps: bool = True
    """Whether claims may use MPS."""
    mps_launcher: MpsLauncher = MpsLauncher.DIRECT
    """Where MPS control daemons run: beside the agent (`direct`), or on the host, outside of its container (`host`)."""
    consumable_shares: Shares | Annotated[int, msgspec.Meta(ge=1, le=1024)] = Shares.DISABLED
    """How several claims may share one GPU: by memory, without limit, or up to this number of claims."""
    vfio: bool = False
    """Offer GPUs for passthrough to virtual machines (see [passthrough](passthrough.md))."""
    fabric_partitions: bool = False
    """On machines with NVSwitches whose Fabric Manager runs with `FABRIC_MODE=1`: publish its partitions, and activate
    the one of a claim's GPUs (see [Fabric Manager](fabric-manager.md)). Other machines are not affected."""
    fabric_manager_socket: AbsolutePath = "/run/nvidia-fabricmanager/socket"
    """Fabric Manager's socket on the host, its `FM_CMD_UNIX_SOCKET_PATH`."""

    health: bool = True
    """Whether to monitor the health of GPUs (see [health](health.md)). Off: all devices always count as healthy."""
    xids_ignored: tuple[int, ...] = ()
    """XIDs to ignore, in addition to those that applications cause."""
    xids_fatal: tuple[int, ...] = ()
    """XIDs that count although they would otherwise be ignored."""
    signals: Mapping[Signal, Reaction] = {}
    """Reactions to signals other than the defaults: `xid=NoExecute,ecc=Ignore`; see below."""
    quiet_period: Annotated[float, msgspec.Meta(gt=0)] = 300.0
    """Seconds that must pass without the same XID before it may stop counting."""

    poll_period: Annotated[float, msgspec.Meta(gt=0)] = 5.0
    """Seconds between two checks for external changes, and for MPS daemons that have died."""
    mps_shared_memory: Annotated[str, msgspec.Meta(pattern="^([1-9][0-9]{0,5}(Mi|Gi))?$")] = ""
    """The most memory that the clients of one MPS daemon can exchange, such as `2Gi`. What a pod leaves there counts
    towards no pod's limit, until the claim ends. Empty: half of the node's memory."""
    mps_ready_deadline: Annotated[float, msgspec.Meta(gt=0)] = 25.0
    """Seconds within which an MPS control daemon must be ready. All work for a claim may take at most two thirds of the
    agent's `prepareDeadline`: 26 of 40."""
    vfio_idle_deadline: Annotated[float, msgspec.Meta(gt=0)] = 25.0
    """Seconds to wait for the GPUs of a claim that are still in use before they are bound for passthrough, or back to
    their driver. All work for a claim may take at most two thirds of the agent's `prepareDeadline`: 26 of 40."""


def list_changed(settings: Settings) -> dict[str, Any]:
    """The fields that differ from their defaults, with their values."""
    values = {name: getattr(settings, name) for name in Settings.__struct_fields__}
    return {name: value for name, value in values.items() if value != getattr(Settings(), name)}


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
