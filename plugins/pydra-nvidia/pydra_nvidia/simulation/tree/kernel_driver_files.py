"""What the NVIDIA kernel modules show while they are loaded: /proc/driver, /sys/module, device nodes of no one GPU.

Of partitions, nvidia-caps shows a directory and a device node for each instance, while it exists.
Source: MIG user guide, "Device Nodes and Capabilities".
"""

from __future__ import annotations

from collections.abc import Iterable

from pydra_nvidia.simulation.machine_state import InstanceState
from pydra_nvidia.simulation.tree import device_numbers
from pydra_nvidia.simulation.tree.device_numbers import CONFIG, IMEX_MANAGEMENT, MONITOR, compute_minor, instance_minor
from pydra_pci.simulation.files import Files, device, folder, text
from pydra_pci.simulation.functions import driver_files, module_files

COMMON_NODES = ("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")


def loaded_driver_files(version: str, architecture: str, *, open_module: bool, imex_channels: int) -> Files:
    """All of them; `open_module`: the kernel module with open source, the only one that has Blackwell."""
    files = {
        "proc/driver/nvidia/version": text(_describe_version(version, architecture, open_module=open_module)),
        "proc/driver/nvidia/params": text(f"ModifyDeviceFiles: 1\nImexChannelCount: {imex_channels or 2048}"),
    }
    for name in COMMON_NODES:
        files[f"dev/{name}"] = device()
    for name in ("nvidia_uvm", "nvidia_modeset", "nvidia_drm"):
        files |= module_files(name, version)
    return files | general_files() | driver_files("nvidia", "nvidia") | module_files("nvidia", version)


def majors_files(*, driver: bool, imex: bool, vfio: bool) -> Files:
    """/proc/devices."""
    return {"proc/devices": text(device_numbers.describe_majors(driver=driver, imex=imex, vfio=vfio))}


def _describe_version(version: str, architecture: str, *, open_module: bool) -> str:
    module = (
        f"Open Kernel Module for {architecture}  {version}  Release Build  (dvs-builder@U22-I3-AF04-18-3)"
        if open_module
        else f"{architecture} Kernel Module  {version}"
    )
    return (
        f"NVRM version: NVIDIA UNIX {module}  Wed Oct 29 22:15:01 UTC 2025\n"
        "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)"
    )


_ROOT = "proc/driver/nvidia/capabilities"
OWNER_ONLY, ALL = 0o400, 0o444


def general_files() -> Files:
    """Those to configure and to watch all partitions, and to manage what other nodes import."""
    return (
        _capability(f"{_ROOT}/mig/config", CONFIG, OWNER_ONLY)
        | _capability(f"{_ROOT}/mig/monitor", MONITOR, ALL)
        | _capability(f"{_ROOT}/fabric-imex-mgmt", IMEX_MANAGEMENT, OWNER_ONLY)
    )


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
