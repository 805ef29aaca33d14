"""Where the driver is installed: on the host itself, or in a root of its own that a container or an installer fills.

Paths are of three kinds: of the host (what the container runtime needs), inside the driver's root (where a container
expects the file), and here (as this process sees the file). Nothing of the vendor's is run to find them.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
import struct
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from pydra import PydraError
from pydra_nvidia.host.filesystem import Links, below, is_program, is_socket, read_mode, resolve
from pydra_nvidia.host.kernel_driver import read_module_version
from pydra_nvidia.settings import Settings
from pydra_pci import Tree

NVML = "libnvidia-ml.so.1"
LINKER_CACHE = "/etc/ld.so.cache"
ROOTS = ("/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia", "/usr/local/nvidia")
"""The host's own, the GPU operator's driver container, GKE's installer, other installers'."""

LIBRARY_DIRS = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu/nvidia/current",
    "/lib/aarch64-linux-gnu/nvidia/current",
    "/",
    "/lib",
)
"""Inside a root, in the order of NVIDIA's container toolkit; after them the linker's cache there is asked."""

PROGRAM_DIRS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/opt/bin")
"""Inside a root, in the order of NVIDIA's container toolkit; the last is an installer's."""

_CLASS_32 = b"\x7fELF\x01"
_VERSION = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)?)$")


class DriverMissing(PydraError):
    """There is no NVIDIA driver to work with, yet: it may still be loading or being installed."""

    reason = "DriverMissing"


class DriverRoot(msgspec.Struct, frozen=True, kw_only=True):
    """An installation of the driver.

    `host_path` is its root as the host sees it and `here` as this process does; `library_dir` is where its libraries
    are, inside the root; `nvml_library` is NVML as this process can load it. `version` is of the libraries, empty
    when their names do not tell. `dev_root` is the root, of the host, whose `dev` has the devices.
    """

    host_path: str
    here: str
    library_dir: str
    nvml_library: str
    version: str = ""
    dev_root: str = "/"

    def resolve(self, path: str) -> str | None:
        """A path inside the root with all links followed inside it; None when nothing is there."""
        return resolve(self.here, path)

    def path_here(self, path: str) -> str:
        """A path inside the root, as this process sees it."""
        return below(self.here, path)

    def path_on_host(self, path: str) -> str:
        """A path inside the root, as the host sees it."""
        return below(self.host_path, path)


def find_driver_root(tree: Tree, settings: Settings) -> DriverRoot:
    """The installation that the setting names, or that fits the loaded module, or the first that there is.

    Raises:
        DriverMissing: none has NVML.
    """
    roots = (settings.driver_root,) if settings.driver_root else ROOTS
    found = [one for root in roots if (one := _look(tree, root, settings)) is not None]
    if not found:
        raise DriverMissing(_missing(tree, settings, roots))
    loaded = read_module_version(tree)
    return next((one for one in found if loaded and one.version == loaded), found[0])


def find_library(root: str, name: str) -> str | None:
    """A library by its name or SONAME inside a root (as this process sees it): its path inside, links resolved."""
    for directory in LIBRARY_DIRS:
        path = resolve(root, posixpath.join(directory, name))
        if path is not None and is_loadable(below(root, path)):
            return path
    for path in find_cached(read_linker_cache(root), name):
        inside = resolve(root, path)
        if inside is not None and is_loadable(below(root, inside)):
            return inside
    return None


def _look(tree: Tree, host_path: str, settings: Settings) -> DriverRoot | None:
    here = tree.here(host_path)
    library = find_library(here, NVML)
    if library is None:
        return None
    version = _VERSION.search(library)
    return DriverRoot(
        host_path=host_path,
        here=here,
        library_dir=posixpath.dirname(library),
        nvml_library=below(here, library),
        version=version[1] if version else "",
        dev_root=settings.dev_root or _dev_root(tree, host_path),
    )


def _dev_root(tree: Tree, host_path: str) -> str:
    """A driver container has the devices in its own /dev; one that is only unpacked may have an empty one, or none."""
    for name in ("dev/nvidiactl", "dev"):
        for root in (host_path, "/"):
            if tree.exists(below(tree.here(root), name)):
                return root
    return "/"


def is_loadable(path: str) -> bool:
    """Whether it is a file for this process to load: a root may have 32-bit libraries in /usr/lib or /lib."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_CLASS_32)) != _CLASS_32
    except OSError:
        return False


def read_linker_cache(root: str) -> bytes:
    """What `find_cached` looks into, of the system in this root; empty without one."""
    inside = resolve(root, LINKER_CACHE)
    if inside is None:
        return b""
    try:
        with open(below(root, inside), "rb") as file:
            return file.read()
    except OSError:
        return b""


def _missing(tree: Tree, settings: Settings, roots: tuple[str, ...]) -> str:
    where = ", ".join(roots)
    seen = "" if tree.roots.host == "/" else f" (the host's / is {tree.roots.host} here)"
    advice = (
        "PYDRA_NVIDIA_DRIVER_ROOT names another root than the driver's"
        if settings.driver_root
        else "install the driver, or set PYDRA_NVIDIA_DRIVER_ROOT to the root it is installed in"
    )
    return (
        f"no NVIDIA driver is installed on this node: {NVML} is not below {where}{seen} in "
        f"{', '.join(LIBRARY_DIRS)}, nor in the linker's cache there; {advice}"
    )


NEW = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("<20sII5I")
_ENTRY = struct.Struct("<iIIIQ")
_BITS = 0xFF00
_WIDE = frozenset({0x0300, 0x0A00})
"""Flags of 64-bit libraries: x86-64 and AArch64."""


def find_cached(data: bytes, name: str) -> tuple[str, ...]:
    """Where the cache has 64-bit libraries of this name, as absolute paths; empty for a file that is not a cache."""
    start = data.find(NEW)
    if start < 0 or len(data) < start + _HEADER.size:
        return ()
    _, count, *_ = _HEADER.unpack_from(data, start)
    table = start + _HEADER.size
    if len(data) < table + count * _ENTRY.size:
        return ()
    wanted = name.encode()
    found = []
    for flags, key, value, _, _ in _ENTRY.iter_unpack(data[table : table + count * _ENTRY.size]):
        path = _text(data, start + value)
        if flags & _BITS in _WIDE and _text(data, start + key) == wanted and path:
            found.append(path.decode(errors="surrogateescape"))
    return tuple(found)


def _text(data: bytes, start: int) -> bytes:
    end = data.find(b"\0", start)
    return data[start:end] if end >= 0 else b""


FolderStamp: TypeAlias = tuple[int, int, int] | None
"""Which folder it is, and when its entries last changed, in nanoseconds since 1970; None where there is none."""


SETTLED_SECONDS = 2.0
"""The time in a stamp counts in ticks of the file system: only after that long the next change surely has another."""


class FileSearch:
    """One search. Paths are inside the root; those that `find` gives have no links. Nothing raises OSError."""

    def __init__(self, root: DriverRoot) -> None:
        self.root = root
        self._seen: dict[str, FolderStamp] = {}
        self._links: Links = {}
        self._names: dict[str, tuple[str, ...]] = {}
        self._found: dict[str, str | None] = {}

    @property
    def seen(self) -> Mapping[str, FolderStamp]:
        """The folders that were looked into, each with its stamp from before the search."""
        return self._seen

    def find(self, path: str) -> str | None:
        """Where the path leads; None when nothing is there."""
        if path not in self._found:
            self._note(posixpath.dirname(path))
            found = resolve(self.root.here, path, self._links)
            if found is not None:
                self._note(posixpath.dirname(found))
            self._found[path] = found
        return self._found[path]

    def find_file(self, path: str) -> str | None:
        """Where the path leads, if to a regular file."""
        found = self.find(path)
        return found if found is not None and stat.S_ISREG(read_mode(self.root.path_here(found))) else None

    def find_program(self, path: str) -> str | None:
        """Where the path leads, if to a file that may be run."""
        found = self.find(path)
        return found if found is not None and is_program(self.root.path_here(found)) else None

    def find_socket(self, path: str) -> str | None:
        """Where the path leads, if to a socket."""
        found = self.find(path)
        return found if found is not None and is_socket(self.root.path_here(found)) else None

    def names(self, folder: str) -> tuple[str, ...]:
        """What is in the folder, sorted; empty when it cannot be read."""
        if folder not in self._names:
            self._note(folder)
            found = resolve(self.root.here, folder, self._links)
            try:
                self._names[folder] = () if found is None else tuple(sorted(os.listdir(self.root.path_here(found))))
            except OSError:
                self._names[folder] = ()
        return self._names[folder]

    def _note(self, folder: str) -> None:
        if folder not in self._seen:
            self._seen[folder] = read_stamp(self.root, folder, self._links)


def read_stamps(root: DriverRoot, folders: Iterable[str]) -> dict[str, FolderStamp]:
    """The folders' stamps, now."""
    links: Links = {}
    return {folder: read_stamp(root, folder, links) for folder in folders}


def read_stamp(root: DriverRoot, folder: str, links: Links) -> FolderStamp:
    """The folder's stamp; `links` are those that were followed in the same look."""
    found = resolve(root.here, folder, links)
    if found is None:
        return None
    try:
        status = os.stat(f"{root.here.rstrip('/')}{found}")
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def is_settled(changed: int, now: float) -> bool:
    """Whether what changed then, in nanoseconds since 1970, surely has another stamp after its next change."""
    return now - changed / 1e9 >= SETTLED_SECONDS
