"""The driver's installation in its root: libraries, programs, firmware, configuration, sockets of its daemons.

Programs are files by which `simulation.programs` are started: each is a script for the interpreter that this process
has, for the machine whose state and scenario it names. Images for nodes have no shell, so only where the kernel would
cut the interpreter's path a launcher begins with two lines that the shell and Python read differently.
Source: the packages of driver 580 for Ubuntu, and what NVIDIA's container toolkit looks for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pydra_nvidia.simulation.tree.elf_libraries import AARCH64, X86_64, library
from pydra_nvidia.simulation.tree.host_files import usual_links
from pydra_pci.simulation.files import Files, exact, link, program, socket, text

ARM = "aarch64"

_LIBRARIES = (
    "libcuda.so.1",
    "libcudadebugger.so.1",
    "libnvcuvid.so.1",
    "libnvidia-allocator.so.1",
    "libnvidia-api.so.1",
    "libnvidia-cfg.so.1",
    "libnvidia-encode.so.1",
    "libnvidia-fbc.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ngx.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-opencl.so.1",
    "libnvidia-opticalflow.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-sandboxutils.so.1",
    "libnvoptix.so.1",
    "libEGL_nvidia.so.0",
    "libGLESv1_CM_nvidia.so.1",
    "libGLESv2_nvidia.so.2",
    "libGLX_nvidia.so.0",
    "vdpau/libvdpau_nvidia.so.1",
)
"""By SONAME, with a link of that name beside the file `<stem>.so.<version>`."""

_VERSIONED = (
    "libnvidia-eglcore.so",
    "libnvidia-glcore.so",
    "libnvidia-glsi.so",
    "libnvidia-glvkspirv.so",
    "libnvidia-gpucomp.so",
    "libnvidia-pkcs11.so",
    "libnvidia-pkcs11-openssl3.so",
    "libnvidia-rtcore.so",
    "libnvidia-tls.so",
)
"""Their SONAME is the file's name: only libraries of the same version ask for them."""

_OF_THEIR_OWN = {"libnvidia-egl-gbm.so.1": "1.1.2", "libnvidia-egl-wayland.so.1": "1.1.19"}
_FOR_COMPILERS = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvcuvid.so.1", "libnvidia-encode.so.1")
_OTHER_PROGRAMS = (
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-server",
    "nvidia-modprobe",
)
_FIRMWARE = ("gsp_ga10x.bin", "gsp_tu10x.bin")


def installed_files(root: str, version: str, architecture: str) -> Files:
    """All but the programs that do something; `root` is the installation's, as the host sees it."""
    files = _library_files(f"usr/lib/{architecture}-linux-gnu", version, AARCH64 if architecture == ARM else X86_64)
    for name in _OTHER_PROGRAMS:
        files[f"usr/bin/{name}"] = program(
            f"#!/bin/sh\necho '{name}: this machine is simulated, and {name} is not part of that' >&2\nexit 1\n"
        )
    for name in _FIRMWARE:
        files[f"usr/lib/firmware/nvidia/{version}/{name}"] = exact(f"{name} of a simulated machine\n")
    files |= _configuration_files(version)
    if root != "/":
        files |= usual_links()
    return _below(root, files)


def daemon_files(*, fabric: bool, starts: int) -> Files:
    """The sockets of the daemons that run: nvidia-persistenced, and the fabric manager of nodes with NVSwitches.

    That of the latter is another one after each of its `starts`.
    """
    files = {"run/nvidia-persistenced/socket": socket()}
    if fabric:
        files |= {"run/nvidia-fabricmanager/socket": f"{socket()}{starts}"}
    return files


def _library_files(libraries: str, version: str, machine: int) -> Files:
    files: Files = {}
    for path in _LIBRARIES:
        folder, _, soname = path.rpartition("/")
        stem = soname.partition(".so")[0]
        place = f"{libraries}/{folder}" if folder else libraries
        files[f"{place}/{stem}.so.{version}"] = library(soname, machine)
        files[f"{place}/{soname}"] = link(f"{stem}.so.{version}")
        if soname in _FOR_COMPILERS:
            files[f"{place}/{stem}.so"] = link(soname)
    for name in _VERSIONED:
        files[f"{libraries}/{name}.{version}"] = library(f"{name}.{version}", machine)
    for soname, own in _OF_THEIR_OWN.items():
        stem = soname.partition(".so")[0]
        files[f"{libraries}/{stem}.so.{own}"] = library(soname, machine)
        files[f"{libraries}/{soname}"] = link(f"{stem}.so.{own}")
    return files


def _configuration_files(version: str) -> Files:
    vulkan = exact(
        '{"file_format_version": "1.0.1", "ICD": {"library_path": "libGLX_nvidia.so.0", "api_version": "1.4.312"}}\n'
    )
    egl = '{"file_format_version": "1.0.0", "ICD": {"library_path": "%s"}}\n'
    return {
        "etc/vulkan/icd.d/nvidia_icd.json": vulkan,
        "etc/OpenCL/vendors/nvidia.icd": text("libnvidia-opencl.so.1"),
        "usr/share/glvnd/egl_vendor.d/10_nvidia.json": exact(egl % "libEGL_nvidia.so.0"),
        "usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json": exact(egl % "libnvidia-egl-gbm.so.1"),
        "usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json": exact(egl % "libnvidia-egl-wayland.so.1"),
        "usr/share/nvidia/nvoptix.bin": exact(f"nvoptix of {version}\n"),
    }


def _below(root: str, files: Files) -> Files:
    prefix = root.strip("/")
    return {f"{prefix}/{path}": entry for path, entry in files.items()} if prefix else files


SHEBANG_LIMIT = 127
"""Bytes of a script's first line that every kernel reads."""
_PROGRAMS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "programs")


def launcher(module: str, facts: Mapping[str, object], function: str = "main") -> str:
    """The script that runs `function(facts)` of a module in `simulation.programs`.

    The module is found by its directory: what needs nothing else of this package does not load it. What needs more
    finds it where this process does, without reading site-packages again.
    """
    paths = [_PROGRAMS, *filter(None, sys.path)]
    first = f"#!{sys.executable} -IS\n"
    if len(os.fsencode(first)) > SHEBANG_LIMIT or " " in sys.executable:
        first = f'#!/bin/sh\n"exec" \'{sys.executable}\' \'-IS\' "$0" "$@"\n'
    return program(
        f"{first}import sys\nsys.path[:] = {paths!r}\nimport {module}\nsys.exit({module}.{function}({dict(facts)!r}))\n"
    )


def driver_programs(folder: str, facts: Mapping[str, object]) -> Files:
    """Those that the driver brings, in the `folder`."""
    return {
        f"{folder}/nvidia-smi": launcher("nvidia_smi", facts),
        f"{folder}/nvidia-cuda-mps-control": launcher("mps_control", facts),
        f"{folder}/nvidia-imex": launcher("imex", facts),
        f"{folder}/nvidia-imex-ctl": launcher("imex", facts, "control"),
    }


def hook_path(named: str) -> str:
    """Where the hook is on the simulated host; empty if the real one, `PYDRA_HOST_ROOT`, could not run a launcher.

    The container runtime runs hooks on the host, while an agent in a container has its own Python and this package.
    """
    host = os.environ.get("PYDRA_HOST_ROOT", "/")
    needed = (sys.executable, _PROGRAMS)
    return named if all(os.path.lexists(os.path.join(host, one.lstrip("/"))) for one in needed) else ""


def hook_program(path: str) -> Files:
    """The container toolkit's hook, at the host's `path`; none when that is empty."""
    return {path.strip("/"): launcher("cdi_hook", {})} if path else {}
