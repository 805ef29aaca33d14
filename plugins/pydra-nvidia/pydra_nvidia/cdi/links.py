"""The names under which programs look for the driver's libraries. Pure.

Some are made whether or not the host has them, because programs expect them; NVIDIA's container toolkit makes the same.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping

import msgspec

from pydra_nvidia.cdi.driver_files import DriverFiles
from pydra_nvidia.cdi.libraries import Library

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


def _links(library: Library, files: DriverFiles) -> Iterator[Link]:
    folder, file = posixpath.split(library.path)
    stem = file.partition(".so")[0]
    names = {*library.names, *(_ALWAYS.get(stem, ()) if file == f"{stem}.so.{files.version}" else ())}
    sonames = sorted(name for name in names if name.startswith(f"{stem}.so."))
    for name in sorted(names):
        through = sonames[0] if name == f"{stem}.so" and sonames else file
        yield Link(path=f"{folder}/{name}", target=_THROUGH.get(name, through), host=library.host)
