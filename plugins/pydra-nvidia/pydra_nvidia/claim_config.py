"""What claims and DeviceClasses may configure: NVIDIA's own kinds, field for field.

    apiVersion: resource.nvidia.com/v1beta1
    kind: GpuConfig
    sharing:
      strategy: MPS
      mpsConfig: {defaultActiveThreadPercentage: 50, defaultPinnedDeviceMemoryLimit: 10Gi}

Decoded strictly, in the backend and in the webhook alike; what needs the hardware is checked in `sharing.plan_sharing`
and `vfio.plan_passthrough`. All that is wrong across fields is reported at once. Absent and null mean the same.
Source: kubernetes-sigs/dra-driver-nvidia-gpu, api/nvidia.com/resource/v1beta1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec

from pydra import Quantity, parse_quantity
from pydra_nvidia.settings import Settings

Interval = Literal["Default", "Short", "Medium", "Long"]
Strategy = Literal["TimeSlicing", "MPS"]
Percentage = Annotated[int, msgspec.Meta(ge=0, le=100)]

MIB = 1 << 20
MOST_MIB = 1 << 43
_INDEX = re.compile(r"0|[1-9]\d{0,3}", re.ASCII)
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]+", re.ASCII)


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Unknown fields are refused everywhere."""


class TimeSlicingConfig(_Part, frozen=True):
    """How long a process may compute before the next one; `interval` absent is Default."""

    interval: Interval | None = None


class MpsConfig(_Part, frozen=True):
    """Limits of the MPS control daemon for all its clients.

    The memory limits count for each client; those of single devices, by index (in the order of the devices' UUIDs) or
    by UUID, come before the default. `multi_user`: clients with different user ids may compute at the same time.
    """

    default_active_thread_percentage: Percentage | None = None
    default_pinned_device_memory_limit: Quantity | None = None
    default_per_device_pinned_memory_limit: Mapping[str, Quantity] | None = None
    multi_user: bool | None = None


class GpuSharing(_Part, frozen=True):
    """How the processes that have a GPU share it."""

    strategy: Strategy
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None

    @property
    def interval(self) -> Interval:
        """The time slice, for the strategy TimeSlicing."""
        return (self.time_slicing_config.interval if self.time_slicing_config else None) or "Default"


class MigDeviceSharing(_Part, frozen=True):
    """How the processes that have a partition share it. Its time slice cannot be set: TimeSlicing changes nothing."""

    strategy: Strategy
    mps_config: MpsConfig | None = None


class GpuConfig(_Part, frozen=True):
    """For whole GPUs; without `sharing` nothing is set."""

    sharing: GpuSharing | None = None

    def __post_init__(self) -> None:
        _refuse(self.sharing)


class MigDeviceConfig(_Part, frozen=True):
    """For partitions; without `sharing` nothing is set."""

    sharing: MigDeviceSharing | None = None

    def __post_init__(self) -> None:
        _refuse(self.sharing)


class Iommu(_Part, frozen=True):
    """Which interface to the IOMMU a guest's monitor uses, and whether it gets the interface's own device node."""

    backend_policy: Literal["LegacyOnly", "PreferIommuFD"] = "LegacyOnly"
    enable_api_device: bool | None = msgspec.field(name="enableAPIDevice", default=None)


class VfioDeviceConfig(_Part, frozen=True):
    """For GPUs that are passed through."""

    iommu: Iommu | None = None


GROUP_VERSION = "resource.nvidia.com/v1beta1"
CONFIG_TYPES: Mapping[str, type] = {
    f"{GROUP_VERSION}/{kind.__name__}": kind for kind in (GpuConfig, MigDeviceConfig, VfioDeviceConfig)
}


def check_config(config: GpuConfig | MigDeviceConfig | VfioDeviceConfig, settings: Settings) -> Iterator[str]:
    """What the admin's settings switch off."""
    if isinstance(config, VfioDeviceConfig) or config.sharing is None:
        return
    strategy = config.sharing.strategy
    is_on, variable = {
        "MPS": (settings.mps, "PYDRA_NVIDIA_MPS"),
        "TimeSlicing": (settings.time_slicing, "PYDRA_NVIDIA_TIME_SLICING"),
    }[strategy]
    if not is_on:
        yield f'sharing.strategy: found "{strategy}", which is switched off; the admin can set {variable}=true'


def _refuse(sharing: GpuSharing | MigDeviceSharing | None) -> None:
    """One error for all: the decoder stops at the first that is raised."""
    if sharing is not None and (problems := [*_find_unused(sharing), *_find_limit_problems(sharing.mps_config)]):
        raise ValueError("; ".join(problems))


def _find_unused(sharing: GpuSharing | MigDeviceSharing) -> Iterator[str]:
    if sharing.strategy != "MPS" and sharing.mps_config is not None:
        yield f'sharing.mpsConfig: only for strategy "MPS", the strategy here is "{sharing.strategy}"'
    if isinstance(sharing, GpuSharing) and sharing.strategy == "MPS" and sharing.time_slicing_config is not None:
        yield 'sharing.timeSlicingConfig: only for strategy "TimeSlicing", the strategy here is "MPS"'


def _find_limit_problems(config: MpsConfig | None) -> Iterator[str]:
    if config is None:
        return
    limits: list[tuple[str, Quantity]] = []
    if config.default_pinned_device_memory_limit is not None:
        limits.append(("defaultPinnedDeviceMemoryLimit", config.default_pinned_device_memory_limit))
    for key, quantity in (config.default_per_device_pinned_memory_limit or {}).items():
        path = f'defaultPerDevicePinnedMemoryLimit["{key}"]'
        limits.append((path, quantity))
        if not is_selector(key):
            yield (
                f"sharing.mpsConfig.{path}: no device has this name, allowed: the index of a device of the claim"
                ' ("0" is the first), or a UUID ("GPU-..." or "MIG-...")'
            )
    for path, quantity in limits:
        try:
            parse_limit(quantity)
        except ValueError as error:
            yield f"sharing.mpsConfig.{path}: {error}"


def parse_limit(quantity: Quantity) -> int:
    """A memory limit of MPS in whole MiB: bytes are rounded up, MiB down, as by NVIDIA's driver, and at least one.

    Raises ValueError, saying what was found and what is allowed.
    """
    try:
        limit = math.ceil(parse_quantity(quantity)) // MIB
    except ValueError:
        raise ValueError(f'found "{quantity}", allowed: a quantity such as 512Mi, 10Gi or 1e9') from None
    if limit < 1:
        raise ValueError(f'found "{quantity}", allowed: at least 1Mi, as limits are set in whole MiB')
    if limit > MOST_MIB:  # a quantity can have thousands of digits, which neither a plan nor the driver takes
        raise ValueError(f'found "{str(quantity)[:32]}", allowed: at most 8Ei')
    return limit


def is_selector(key: str) -> bool:
    """Whether the key can mean a device: an index, or a UUID of a GPU or a partition."""
    return _INDEX.fullmatch(key) is not None or _UUID.fullmatch(key) is not None


def parse_index(key: str) -> int | None:
    """The index that the key is; None when it is a UUID."""
    return int(key) if _INDEX.fullmatch(key) else None
