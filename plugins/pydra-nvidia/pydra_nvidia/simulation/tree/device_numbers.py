"""Majors and minors of device nodes, with /proc/devices; as on a server.

Source: MIG user guide, "Device Nodes and Capabilities", and a whole file mig-minors of a machine (driver 450).
"""

from __future__ import annotations

from pydra_pci.simulation.kernel import VFIO, VFIO_DEVICE

NVIDIA, UVM, CAPS, IMEX, NVLINK, NVSWITCH = 195, 510, 237, 236, 238, 239
DRM = 226
MISC = 10
VFIO_CONTROL_MINOR, IOMMU_MINOR = 196, 124

_ALWAYS = {1: "mem", 4: "tty", 5: "ptmx", 7: "vcs", 10: "misc", 13: "input", 29: "fb", 89: "i2c", DRM: "drm"}


def describe_majors(*, driver: bool, imex: bool, vfio: bool) -> str:
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
    return f"Character devices:\n{lines}\n\nBlock devices:\n  7 loop\n  8 sd\n259 blkext"


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
