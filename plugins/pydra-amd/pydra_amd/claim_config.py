"""What claims and DeviceClasses may configure: AMD's kinds. `GpuConfig` has no fields yet.

    apiVersion: gpu.resource.amd.com/v1alpha1
    kind: VfioDeviceConfig
    iommu: {backendPolicy: PreferIommuFD}

Decoded strictly, in the backend and in the webhook alike.
Source: ROCm/k8s-gpu-dra-driver, api/amd.com/resource/gpu/v1alpha1.
"""

from __future__ import annotations

from typing import Literal

import msgspec

GROUP_VERSION = "gpu.resource.amd.com/v1alpha1"


class GpuConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """For GPUs and partitions of containers."""


class Iommu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Which interface to the IOMMU a guest's monitor uses."""

    backend_policy: Literal["LegacyOnly", "PreferIommuFD", "RequireIommuFD"] = "LegacyOnly"


class VfioDeviceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """For GPUs that are passed through."""

    iommu: Iommu | None = None


CONFIG_TYPES = {f"{GROUP_VERSION}/{kind.__name__}": kind for kind in (GpuConfig, VfioDeviceConfig)}
