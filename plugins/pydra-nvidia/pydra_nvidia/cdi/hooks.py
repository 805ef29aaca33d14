"""NVIDIA's hook, `nvidia-cdi-hook`: what the runtime runs with it before a container starts, and which links it makes.

Names of hooks and arguments: NVIDIA container toolkit 1.19, cmd/nvidia-cdi-hook. An older one only warns of a hook
that it does not know. The order is part of the meaning: links first, then the linker's cache that holds them. Some
links, names under which programs look for libraries, are made whether or not the host has them, as the toolkit does.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from pydra import ClaimError, Hook
from pydra_nvidia.cdi.driver_files import DriverFiles
from pydra_nvidia.cdi.libraries import DriverFile
from pydra_nvidia.host.file_search import is_program
from pydra_nvidia.host.rooted_paths import below, resolve
from pydra_nvidia.settings import Settings
from pydra_pci import Tree

PLACES = (
    "/usr/bin/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    "/usr/local/bin/nvidia-cdi-hook",
    "/run/current-system/sw/bin/nvidia-cdi-hook",
)
"""On the host: the toolkit's packages, the GPU operator, Talos, NixOS. Not the copy that NVIDIA's DRA driver leaves in
its directory: with that it goes, and what was prepared with it could start no more."""


class HookMissing(ClaimError):
    """The hook that the admin named is not on the node."""

    reason = "HookMissing"


def find_hook(tree: Tree, settings: Settings) -> str:
    """The program, as the host sees it; empty when there is none and none was named. Blocks; raises HookMissing."""
    named = settings.cdi_hook
    for path in (named,) if named else PLACES:
        found = resolve(tree.roots.host, path)
        if found is not None and is_program(below(tree.roots.host, found)):
            return path
    if named:
        raise HookMissing(
            f"PYDRA_NVIDIA_CDI_HOOK is {named}, which is not a program on the host; "
            "install the NVIDIA container toolkit there, or unset it to have the usual places looked at"
        )
    return ""


def driver_hooks(program: str, files: DriverFiles, links: Sequence[Link]) -> tuple[Hook, ...]:
    """What every container with a GPU needs; the same for all GPUs of a claim."""
    return (
        *link_hooks(program, [(link.target, link.path) for link in links]),
        _hook(program, "enable-cuda-compat", f"--host-driver-version={files.version}"),
        _hook(program, "update-ldcache", *_each("--folder", files.folders)),
        _hook(program, "disable-device-node-modification"),
    )


def link_hooks(program: str, links: Sequence[tuple[str, str]]) -> tuple[Hook, ...]:
    """A hook that makes links, from (target, path); none where there is nothing to make."""
    return (_hook(program, "create-symlinks", *_each("--link", (f"{a}::{b}" for a, b in links))),) if links else ()


def describe_hooks(program: str) -> str:
    """What the admin should know of it; `program` is empty when there is none."""
    if program:
        return f"containers get the links and the linker's cache for the NVIDIA driver from {program}"
    return (
        f"nvidia-cdi-hook is not on this node (looked for {', '.join(PLACES)}): containers get the NVIDIA driver's "
        "libraries under all their names and LD_LIBRARY_PATH instead. An image's own LD_LIBRARY_PATH is replaced, CUDA "
        "forward compatibility is off, and nvidia-smi as root may make device nodes in a container. Install the NVIDIA "
        "container toolkit on the node, or set PYDRA_NVIDIA_CDI_HOOK to where the hook is on the host"
    )


def _hook(program: str, name: str, *args: str) -> Hook:
    base = posixpath.basename(program)
    called = (base, "hook") if base == "nvidia-ctk" else (base,)
    return Hook(hook_name="createContainer", path=program, args=(*called, name, *args), env=("NVIDIA_CTK_DEBUG=false",))


def _each(option: str, values: Iterable[str]) -> tuple[str, ...]:
    return tuple(part for value in values for part in (option, value))


_ALWAYS: Mapping[str, tuple[str, ...]] = {
    "libcuda": ("libcuda.so", "libcuda.so.1"),
    "libnvidia-ml": ("libnvidia-ml.so.1",),
    "libnvidia-opticalflow": ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    "libnvidia-vulkan-producer": ("libnvidia-vulkan-producer.so",),
    "libglxserver_nvidia": ("libglxserver_nvidia.so",),
    "libGLX_nvidia": ("libGLX_indirect.so.0",),
    "libnvidia-allocator": ("libnvidia-allocator.so.1", "gbm/nvidia-drm_gbm.so"),
}
_THROUGH: Mapping[str, str] = {"gbm/nvidia-drm_gbm.so": "../libnvidia-allocator.so.1"}


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A link at `path` in the container that says `target`; `host` is the library on the host that it leads to."""

    path: str
    target: str
    host: str


def find_links(files: DriverFiles) -> tuple[Link, ...]:
    """The links that the libraries need, sorted by path; each path once, and none where a library itself is."""
    links = {link.path: link for library in (*files.libraries, *files.modules) for link in _links(library, files)}
    taken = {library.path for library in (*files.libraries, *files.modules)}
    return tuple(links[path] for path in sorted(links.keys() - taken))


def _links(library: DriverFile, files: DriverFiles) -> Iterator[Link]:
    folder, file = posixpath.split(library.path)
    stem = file.partition(".so")[0]
    names = {*library.names, *(_ALWAYS.get(stem, ()) if file == f"{stem}.so.{files.version}" else ())}
    sonames = sorted(name for name in names if name.startswith(f"{stem}.so."))
    for name in sorted(names):
        through = sonames[0] if name == f"{stem}.so" and sonames else file
        yield Link(path=f"{folder}/{name}", target=_THROUGH.get(name, through), host=library.host)
