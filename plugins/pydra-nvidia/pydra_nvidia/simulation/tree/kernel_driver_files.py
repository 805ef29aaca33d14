"""What the NVIDIA kernel modules show while they are loaded: /proc/driver, /sys/module, device nodes of no one GPU.

Of partitions, nvidia-caps shows a directory and a device node for each instance, while it exists.
Source: MIG user guide, "Device Nodes and Capabilities"; of the numbers also a whole file mig-minors of a machine
(driver 450).
"""

from __future__ import annotations

from collections.abc import Iterable

from pydra_nvidia.simulation.machine_state import InstanceState
from pydra_pci.simulation.files import Files, device, folder, text
from pydra_pci.simulation.functions import driver_files, module_files
from pydra_pci.simulation.kernel import VFIO, VFIO_DEVICE

NVIDIA, UVM, CAPS, IMEX, NVLINK, NVSWITCH = 195, 510, 237, 236, 238, 239
DRM = 226
MISC = 10
VFIO_CONTROL_MINOR, IOMMU_MINOR = 196, 124

_ALWAYS = {1: "mem", 4: "tty", 5: "ptmx", 7: "vcs", 10: "misc", 13: "input", 29: "fb", 89: "i2c", DRM: "drm"}

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
    """/proc/devices: with what the NVIDIA driver has, its IMEX channels, and vfio."""
    majors = list(_ALWAYS.items())
    if driver:
        majors += [(NVIDIA, name) for name in ("nvidia", "nvidia-modeset", "nvidiactl")]
        majors += [(CAPS, "nvidia-caps"), (NVLINK, "nvidia-nvlink"), (NVSWITCH, "nvidia-nvswitch"), (UVM, "nvidia-uvm")]
        if imex:
            majors.append((IMEX, "nvidia-caps-imex-channels"))
    if vfio:
        majors += [(VFIO, "vfio"), (VFIO_DEVICE, "vfio-dev")]
    lines = "\n".join(f"{number:3d} {name}" for number, name in sorted(majors))
    content = f"Character devices:\n{lines}\n\nBlock devices:\n  7 loop\n  8 sd\n259 blkext"
    return {"proc/devices": text(content)}


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


CONFIG, MONITOR = 1, 2
GPUS, INSTANCES, COMPUTE = 32, 15, 8
_FIRST, _PER_INSTANCE = 3, 1 + COMPUTE
IMEX_MANAGEMENT = _FIRST + _PER_INSTANCE * INSTANCES * GPUS
"""The first number after those of partitions."""


def instance_minor(gpu: int, instance: int) -> int:
    """Of a GPU instance; `gpu` is the GPU's minor number."""
    return _FIRST + _PER_INSTANCE * (INSTANCES * gpu + instance)


def compute_minor(gpu: int, instance: int, compute: int) -> int:
    """Of a compute instance in it."""
    return instance_minor(gpu, instance) + 1 + compute


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
