"""GPUs, partitions and targets of claims, for the tests of container edits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from gpu_values import find_profile, make_instance
from gpu_values import gpu as h100
from pydra import AllocatedDevice, ContainerEdits
from pydra_nvidia.cdi.edits import DeviceEdits
from pydra_nvidia.claim_targets import Target, find_targets
from pydra_nvidia.hardware_types import Driver, Gpu, Mig, Reading
from pydra_nvidia.steps import Step
from pydra_pci import PciFunction, VfioHost

V = "580.105.08"
LIB = "/usr/lib/x86_64-linux-gnu"
HOOK = "/usr/bin/nvidia-cdi-hook"
MIG = "gpu-1-mig-1g10gb-19-3"


def gpu(minor: int, mig: Mig | None = None) -> Gpu:
    return h100(minor, str(minor), f"0000:{minor:02x}:00.0", mig=mig)


def partitioned(compute: int = 1) -> Mig:
    profile = find_profile("1g.10gb")
    part = make_instance(profile, 3, number=7, compute=[1] * compute)
    return Mig(enabled=True, pending=True, resetless=True, profiles=(profile,), instances=(part,))


def reading(*gpus: Gpu, version: str = V, iommufd: bool = False, group: str = "11") -> Reading:
    function = PciFunction(address="0000:65:00.0", vendor="0x10de", device="0x2330", pci_class="0x030200", group=group)
    return Reading(
        driver=Driver(version=version, cuda=13000),
        gpus=gpus or (gpu(0), gpu(1, partitioned()), gpu(2)),
        functions={function.address: function},
        vfio=VfioHost(iommu=True, iommufd=iommufd),
    )


def target(device: str, seen: Reading, *configs: Any) -> Target:
    (found,) = find_targets([AllocatedDevice(request="r", pool="n", device=device, configs=configs)], seen)
    return found


def settle(node: Any) -> None:
    """As if nothing had changed for years."""
    for folder, _, _ in os.walk(node.path):
        os.utime(folder, (1_000_000_000, 1_000_000_000))


def nodes(edits: ContainerEdits) -> list[str]:
    return [one.path for one in edits.device_nodes]


def edits_of(edits: DeviceEdits, one: Target, seen: Reading, steps: Sequence[Step] = ()) -> ContainerEdits:
    """What a container gets with one device."""
    (found,) = edits.build((one,), seen, steps)
    return found
