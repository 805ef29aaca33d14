"""What claims and DeviceClasses may configure: AMD's kind `GpuConfig`, which has no fields yet.

    apiVersion: gpu.resource.amd.com/v1alpha1
    kind: GpuConfig

Decoded strictly, in the backend and in the webhook alike.
Source: ROCm/k8s-gpu-dra-driver, api/amd.com/resource/gpu/v1alpha1.
"""

from __future__ import annotations

import msgspec

GROUP_VERSION = "gpu.resource.amd.com/v1alpha1"


class GpuConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """For GPUs and partitions of containers."""


CONFIG_TYPES = {f"{GROUP_VERSION}/GpuConfig": GpuConfig}
