"""What claims and DeviceClasses may configure: NVIDIA's own kinds, field for field.

    apiVersion: resource.nvidia.com/v1beta1
    kind: ComputeDomainChannelConfig
    domainID: 0f4a1c5e-7d0b-4f38-9d3a-5a0c4f7e2b11
    allocationMode: Single

The ComputeDomain's controller writes them into the templates that it makes. Decoded strictly, in the backend and in the
webhook alike. Absent, null and empty mean the same for the mode.
Source: kubernetes-sigs/dra-driver-nvidia-gpu, api/nvidia.com/resource/v1beta1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec

from pydra import AllocatedDevice, InvalidConfig
from pydra_nvidia.claim_config import GROUP_VERSION

DomainId = Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$")]
"""The UID of a ComputeDomain, which becomes the name of a directory."""


class ComputeDomainChannelConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """For channels: the ComputeDomain whose memory the claim may import, and whether by one channel or by all."""

    domain: DomainId = msgspec.field(name="domainID")
    mode: Literal["", "Single", "All"] | None = msgspec.field(name="allocationMode", default=None)


class ComputeDomainDaemonConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """For daemons: the ComputeDomain that the IMEX daemon serves on its node."""

    domain: DomainId = msgspec.field(name="domainID")


Config: TypeAlias = ComputeDomainChannelConfig | ComputeDomainDaemonConfig

CONFIG_TYPES: Mapping[str, type] = {
    f"{GROUP_VERSION}/{kind.__name__}": kind for kind in (ComputeDomainChannelConfig, ComputeDomainDaemonConfig)
}

KINDS: Mapping[str, type[Config]] = {"channel": ComputeDomainChannelConfig, "daemon": ComputeDomainDaemonConfig}
"""The kind of configuration for each kind of device."""


def find_config(device: AllocatedDevice) -> Config:
    """What the claim says for this device, `channel-0` or `daemon-0`. Raises InvalidConfig."""
    kind = KINDS[device.device.partition("-")[0]]
    problems = [
        f"{device.position(other)}: found a {type(other).__name__}, allowed for {device.device}: a {kind.__name__}"
        for other in device.misplaced(kind)
    ]
    config = device.config(kind)
    if config is None:
        problems.append(
            f"request {device.request}: {device.device} needs a {kind.__name__} with the domainID of its ComputeDomain;"
            " use the ResourceClaimTemplate that the ComputeDomain names in spec.channel.resourceClaimTemplate"
        )
    if problems or config is None:
        raise InvalidConfig(problems)
    return config
