"""What nvidia-caps shows of a GPU's partitions: a directory and a device node for each instance, while it exists.

Source: MIG user guide, "Device Nodes and Capabilities".
"""

from __future__ import annotations

from collections.abc import Iterable

from pydra_nvidia.simulation.state import InstanceState
from pydra_nvidia.simulation.tree.files import Files, device, folder, text
from pydra_nvidia.simulation.tree.minors import CONFIG, MONITOR, compute_minor, instance_minor

_ROOT = "proc/driver/nvidia/capabilities"
OWNER_ONLY, ALL = 0o400, 0o444


def general_files() -> Files:
    """Those to configure and to watch all partitions."""
    return _capability(f"{_ROOT}/mig/config", CONFIG, OWNER_ONLY) | _capability(f"{_ROOT}/mig/monitor", MONITOR, ALL)


def partition_files(gpu: int, instances: Iterable[InstanceState]) -> Files:
    """Those of one GPU in MIG mode; `gpu` is its minor number."""
    place = f"{_ROOT}/gpu{gpu}/mig"
    files: Files = {place: folder()}
    for one in instances:
        files |= _capability(f"{place}/gi{one.id}/access", instance_minor(gpu, one.id), ALL)
        for compute in one.compute:
            minor = compute_minor(gpu, one.id, compute.id)
            files |= _capability(f"{place}/gi{one.id}/ci{compute.id}/access", minor, ALL)
    return files


def _capability(path: str, minor: int, mode: int) -> Files:
    return {
        path: text(f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1"),
        f"dev/nvidia-caps/nvidia-cap{minor}": device(),
    }
