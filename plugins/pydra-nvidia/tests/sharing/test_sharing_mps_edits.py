"""What containers get to be clients of an MPS daemon."""

from __future__ import annotations

from typing import Any

import pytest

from pydra import ContainerEdits, Mount
from pydra_nvidia.cdi.edits import mps_edits
from pydra_nvidia.claim_plan import name_devices
from pydra_nvidia.hardware_types import Placement
from pydra_nvidia.settings import Settings
from pydra_nvidia.steps import SetTimeSlice, StartMps

OPTIONS = ("rw", "nosuid", "nodev", "bind")
WHOLE = StartMps(id="u1-aaaaa", devices=("GPU-0", "GPU-1"))
STATIC = StartMps(id="u1-bbbbb", devices=("MIG-z",))
DYNAMIC = StartMps(id="u1-ccccc", partition=("GPU-2", Placement(3, 1)))


@pytest.mark.parametrize(
    ("device", "daemon"),
    [
        ("gpu-1", "u1-aaaaa"),
        ("gpu-2-mig-1g10gb-19-0", "u1-bbbbb"),
        ("gpu-2-mig-1g10gb-19-3", "u1-ccccc"),
        ("gpu-2-mig-1g10gb-19-4", ""),
        ("gpu-3", ""),
        ("gpu-vfio-1", ""),
    ],
)
@pytest.mark.parametrize("admin", [False, True])
def test_a_device_gets_the_pipe_and_the_memory_of_its_daemon(kit: Any, device: str, daemon: str, admin: bool) -> None:
    reading = kit.reading(*(kit.gpu(minor) for minor in (0, 1, 3)), kit.gpu(2, mig=kit.mig((kit.PROFILE, 0, "MIG-z"))))
    (target,) = kit.targets(reading, kit.give(device, admin=admin))
    planned = (SetTimeSlice(gpu="GPU-3", interval=1), WHOLE, STATIC, DYNAMIC)
    steps = [name_devices(step, (target,)) for step in planned]
    edits = mps_edits(target, steps, settings=Settings(state="/host/run/p", host_root="/host"))
    if admin or not daemon:
        assert edits == ContainerEdits()
        return
    assert edits == ContainerEdits(
        env={"CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps"},
        mounts=(
            Mount(host_path=f"/run/p/mps/{daemon}/shm", container_path="/dev/shm", options=OPTIONS),
            Mount(host_path=f"/run/p/mps/{daemon}/pipe", container_path="/tmp/nvidia-mps", options=OPTIONS),
        ),
    )
