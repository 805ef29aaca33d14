"""Which devices of a claim are shared together: those that one config is for. Pure.

A config that reaches a device of another kind, as one without requests does, does nothing there: whole GPUs have a
GpuConfig, partitions a MigDeviceConfig. pydra decodes a config once however many devices it is for, so one config is
one object; equal configs that were written twice stay two.

Source: kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/device_state.go.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pydra_nvidia.claim_config import GpuConfig, GpuSharing, MigDeviceConfig, MigDeviceSharing, MpsConfig
from pydra_nvidia.devices import Partition, Target, WholeGpu
from pydra_nvidia.settings import Settings

Shared = WholeGpu | Partition


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one config, in the order in which its limits count them."""

    sharing: GpuSharing | MigDeviceSharing
    members: tuple[Shared, ...]

    @property
    def mps(self) -> MpsConfig:
        """The settings of MPS; the defaults where none were given."""
        return self.sharing.mps_config or MpsConfig()

    @property
    def where(self) -> str:
        """The start of the path in an error: whose config, and where in it."""
        kind = "MigDeviceConfig" if isinstance(self.sharing, MigDeviceSharing) else "GpuConfig"
        names = ", ".join(one.allocated.device for one in self.members)
        return f"{kind} of {names}: sharing"


def find_groups(targets: Sequence[Target], settings: Settings) -> tuple[Group, ...]:
    """The groups that are configured to be shared. Devices with admin access only look, and are in none."""
    found: dict[int, tuple[GpuSharing | MigDeviceSharing, dict[str, Shared]]] = {}
    for target in targets:
        config = _config_of(target)
        if config is not None and config.sharing is not None and isinstance(target, Shared):
            _, members = found.setdefault(id(config), (config.sharing, {}))
            members.setdefault(_order(target, settings), target)
    return tuple(
        Group(sharing=sharing, members=tuple(members[key] for key in sorted(members)))
        for sharing, members in found.values()
    )


def is_created(partition: Partition, settings: Settings) -> bool:
    """Whether the partition is made for its claim, so that its UUID is not known beforehand."""
    return settings.dynamic_mig or not partition.uuid


def _config_of(target: Target) -> GpuConfig | MigDeviceConfig | None:
    if target.allocated.admin_access:
        return None
    match target:
        case WholeGpu():
            return target.allocated.config(GpuConfig)
        case Partition():
            return target.allocated.config(MigDeviceConfig)
    return None


def _order(target: Shared, settings: Settings) -> str:
    """By UUID, as the vendor counts; partitions that do not exist yet by their GPU and place."""
    if isinstance(target, WholeGpu):
        return target.gpu.uuid
    if not is_created(target, settings):
        return target.uuid
    return f"{target.gpu.uuid}/{target.placement.start:03}+{target.placement.size}"
