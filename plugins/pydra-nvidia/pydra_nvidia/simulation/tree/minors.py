"""The numbers of nvidia-caps' device nodes.

Source: MIG user guide, "Device Nodes and Capabilities", and a whole file mig-minors of a machine (driver 450).
"""

from __future__ import annotations

from functools import cache

CONFIG, MONITOR = 1, 2
GPUS, INSTANCES, COMPUTE = 32, 15, 8
_FIRST, _PER_INSTANCE = 3, 1 + COMPUTE


def instance_minor(gpu: int, instance: int) -> int:
    """Of a GPU instance; `gpu` is the GPU's minor number."""
    return _FIRST + _PER_INSTANCE * (INSTANCES * gpu + instance)


def compute_minor(gpu: int, instance: int, compute: int) -> int:
    """Of a compute instance in it."""
    return instance_minor(gpu, instance) + 1 + compute


@cache
def describe_minors() -> str:
    """/proc/driver/nvidia-caps/mig-minors: all that could ever exist."""
    lines = [f"config {CONFIG}", f"monitor {MONITOR}"]
    for gpu in range(GPUS):
        for instance in range(INSTANCES):
            place = f"gpu{gpu}/gi{instance}"
            lines.append(f"{place}/access {instance_minor(gpu, instance)}")
            lines += [f"{place}/ci{ci}/access {compute_minor(gpu, instance, ci)}" for ci in range(COMPUTE)]
    return "\n".join(lines) + "\n"
