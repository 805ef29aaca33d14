"""Where installations of the driver keep what is not a library, inside the driver's root. Values.

Source: the layouts of NVIDIA's packages for Debian, Ubuntu, RHEL and SUSE, of its driver container, and of GKE.
"""

from __future__ import annotations

XORG_FOLDERS = tuple(
    f"{place}/{part}"
    for place in ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")
    for part in ("modules/drivers", "modules/extensions", "modules/updates/drivers", "modules/updates/extensions")
)
XORG_BESIDE_LIBRARIES = (
    "nvidia/xorg",
    "xorg/modules/drivers",
    "xorg/modules/extensions",
    "xorg/modules/updates/drivers",
    "xorg/modules/updates/extensions",
)

PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)

SOCKET_FOLDERS = ("/run", "/var/run")
SOCKETS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")
"""Not `/tmp/nvidia-mps`: every container would get the host's MPS daemon, and claims that share bring their own."""

CONFIG_FOLDERS = ("/etc", "/usr/local/share", "/usr/share")
CONFIGS = (
    ("/usr/share", "glvnd/egl_vendor.d/10_nvidia.json"),
    ("/usr/share", "egl/egl_external_platform.d/15_nvidia_gbm.json"),
    ("/usr/share", "egl/egl_external_platform.d/10_nvidia_wayland.json"),
    ("/usr/share", "egl/egl_external_platform.d/09_nvidia_wayland2.json"),
    ("/usr/share", "egl/egl_external_platform.d/20_nvidia_xcb.json"),
    ("/usr/share", "egl/egl_external_platform.d/20_nvidia_xlib.json"),
    ("/usr/share", "nvidia/nvoptix.bin"),
    ("/usr/share", "X11/xorg.conf.d/10-nvidia.conf"),
    ("/usr/share", "X11/xorg.conf.d/nvidia-drm-outputclass.conf"),
    ("/etc", "OpenCL/vendors/nvidia.icd"),
)
VULKAN_CONFIGS = (
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_icd.aarch64.json",
)
"""Seen in the container below /etc; GKE keeps them right below the driver root."""
