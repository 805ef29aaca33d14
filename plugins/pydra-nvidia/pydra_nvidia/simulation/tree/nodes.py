"""Majors of character devices, and /proc/devices, which lists them. What the kernel gives out is as on a server."""

from __future__ import annotations

NVIDIA, UVM, CAPS, IMEX, NVLINK, NVSWITCH = 195, 510, 237, 236, 238, 239
DRM, VFIO, VFIO_DEVICE = 226, 242, 243
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
