"""What containers get to be clients of their claim's MPS daemon. Pure.

The daemon's limits hold for all its clients, so no variable repeats them.
Source: kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/sharing.go.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydra import ContainerEdits
from pydra_nvidia.devices import Partition, Target, WholeGpu
from pydra_nvidia.settings import Settings
from pydra_nvidia.sharing.mps_directory import find_directory
from pydra_nvidia.steps import StartMps, Step

PIPE_INSIDE = "/tmp/nvidia-mps"  # noqa: S108 - the vendor's name, in the container
SHM_INSIDE = "/dev/shm"  # noqa: S108 - where CUDA looks
MOUNT_OPTIONS = ("rw", "nosuid", "nodev", "bind")


def build_sharing_edits(target: Target, steps: Sequence[Step], *, settings: Settings) -> ContainerEdits:
    """The pipe and the memory of the daemon that the device has; nothing without one, or for admins who look."""
    daemon = _find_daemon(target, steps)
    if daemon is None:
        return ContainerEdits()
    place = find_directory(settings, daemon.id)
    return (
        ContainerEdits()
        .with_env("CUDA_MPS_PIPE_DIRECTORY", PIPE_INSIDE)
        .with_mount(place.on_host(place.shm), SHM_INSIDE, options=MOUNT_OPTIONS)
        .with_mount(place.on_host(place.pipe), PIPE_INSIDE, options=MOUNT_OPTIONS)
    )


def _find_daemon(target: Target, steps: Sequence[Step]) -> StartMps | None:
    if target.allocated.admin_access:
        return None
    for step in steps:
        if isinstance(step, StartMps):
            if isinstance(target, WholeGpu) and target.gpu.uuid in step.devices:
                return step
            if isinstance(target, Partition) and (
                (target.uuid and target.uuid in step.devices) or step.partition == (target.gpu.uuid, target.placement)
            ):
                return step
    return None
