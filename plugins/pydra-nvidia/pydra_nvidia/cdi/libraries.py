"""The driver's libraries in its root, found by name: nothing of the driver is run or loaded.

All libraries of one driver end in its version, which says what belongs together while another version is being
installed beside it. Where they are looked for, and in which order, follows NVIDIA's container toolkit, so that a
container finds the same files at the same places.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec

from pydra import ClaimError
from pydra_nvidia.host.driver_root import LIBRARY_DIRS, is_loadable
from pydra_nvidia.host.file_search import FileSearch
from pydra_nvidia.host.linker_cache import LINKER_CACHE, find_cached, read_linker_cache

REQUIRED = ("libcuda", "libnvidia-ml")
"""Without these no container can use a GPU: they are missing while the driver is being installed."""

UNVERSIONED = re.compile(
    r"libnvidia-egl-(gbm|wayland2?|xcb|xlib)\.so\.[0-9]+\.[0-9][0-9.]*|libnvidia-nvvm70\.so\.[0-9][0-9.]*"
)
"""Libraries of the driver whose names carry versions of their own."""

_VERSION = re.compile(r"[0-9]+(\.[0-9]+)+")
_NAME = re.compile(r"[A-Za-z0-9_.+-]+")


class DriverIncomplete(ClaimError):
    """The driver's files or device nodes are not all there. It may still be loading, so the claim is tried again."""

    reason = "DriverIncomplete"


class DriverFile(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A file of the driver: `path` in the container, `host` on the host, the latter without links.

    `names` are the other file names beside a library that lead to it, sorted: its SONAME, by a link that the linker
    makes where the driver is installed, and what compilers look for. The path of a library has no links, either.
    """

    path: str
    host: str
    names: tuple[str, ...] = ()


def find_libraries(search: FileSearch, version: str = "") -> tuple[str, tuple[DriverFile, ...]]:
    """The version, and all libraries of the driver `version`, sorted; by default of the one that programs would load.

    Raises:
        DriverIncomplete: libcuda or libnvidia-ml of this version is missing.
    """
    folders = _real_folders(search, (*LIBRARY_DIRS, search.root.library_dir))
    found, chosen = _find_versioned(search, folders, version)
    if _missing(found, chosen):
        folders = _real_folders(search, (*folders, *_cached_folders(search)))
        found, chosen = _find_versioned(search, folders, version)
    if missing := _missing(found, chosen):
        raise DriverIncomplete(_explain(search, folders, missing))
    beside = [f"{folder}/vdpau" for folder in _folders_of(found)]
    more = _matching(search, beside, _ends_in(chosen)) | _matching(search, folders, UNVERSIONED.fullmatch)
    return chosen, tuple(sorted({*found, *describe_libraries(search, more)}))


def describe_libraries(search: FileSearch, paths: Iterable[str]) -> list[DriverFile]:
    """The libraries at these paths, from `FileSearch.find`, with their names; without those for 32-bit programs."""
    found = []
    for path in sorted(set(paths)):
        if is_loadable(search.root.path_here(path)):
            names = _names_beside(search, path)
            found.append(DriverFile(path=path, host=search.root.path_on_host(path), names=names))
    return found


def _find_versioned(search: FileSearch, folders: Sequence[str], version: str) -> tuple[list[DriverFile], str]:
    chosen = version or _infer_version(search, folders)
    return describe_libraries(search, _matching(search, folders, _ends_in(chosen)) if chosen else ()), chosen


def _matching(search: FileSearch, folders: Iterable[str], wanted: Callable[[str], object]) -> set[str]:
    """The regular files that names in these folders lead to."""
    paths = (f"{folder}/{name}" for folder in folders for name in search.names(folder) if wanted(name))
    return {found for path in paths if (found := search.find_file(path)) and _NAME.fullmatch(posixpath.basename(found))}


def _ends_in(version: str) -> Callable[[str], bool]:
    return lambda name: name.endswith(f".so.{version}")


def _folders_of(libraries: Iterable[DriverFile]) -> list[str]:
    return sorted({posixpath.dirname(one.path) for one in libraries})


def _real_folders(search: FileSearch, folders: Iterable[str]) -> tuple[str, ...]:
    """Without links and each once: /lib is often a link to /usr/lib."""
    real = (search.find(folder) for folder in folders)
    return tuple(dict.fromkeys("" if one == "/" else one for one in real if one is not None))


def _cached_folders(search: FileSearch) -> tuple[str, ...]:
    """Where the linker's cache has the libraries that are required."""
    if search.find_file(LINKER_CACHE) is None:
        return ()
    data = read_linker_cache(search.root.here)
    paths = (search.find(path) for stem in REQUIRED for path in find_cached(data, f"{stem}.so.1"))
    return tuple(posixpath.dirname(path) for path in paths if path is not None)


def _infer_version(search: FileSearch, folders: Sequence[str]) -> str:
    """The suffix of libcuda, or else of libnvidia-ml: of the one that programs would load, else the newest."""
    for stem in REQUIRED:
        for folder in folders:
            loaded = search.find(f"{folder}/{stem}.so.1")
            if loaded is not None and (version := _suffix(loaded, stem)):
                return version
        versions = {version for folder in folders for name in search.names(folder) if (version := _suffix(name, stem))}
        if versions:
            return max(versions, key=lambda one: [int(part) for part in one.split(".")])
    return ""


def _suffix(path: str, stem: str) -> str:
    start, found, suffix = posixpath.basename(path).partition(f"{stem}.so.")
    return suffix if found and not start and _VERSION.fullmatch(suffix) else ""


def _missing(libraries: Iterable[DriverFile], version: str) -> list[str]:
    there = {posixpath.basename(one.path) for one in libraries}
    return [name for stem in REQUIRED if (name := f"{stem}.so.{version or '*'}") not in there]


def _explain(search: FileSearch, folders: Iterable[str], missing: Sequence[str]) -> str:
    others = sorted({name for folder in folders for name in search.names(folder) if _suffix(name, "libcuda")})
    found = f" (it has {', '.join(others)})" if others else ""
    return (
        f"the driver's installation in {search.root.host_path} lacks {' and '.join(missing)}"
        f"{found}: the NVIDIA driver may still be loading, or is being "
        "updated, and the claim is tried again; if the driver is installed elsewhere, set PYDRA_NVIDIA_DRIVER_ROOT"
    )


def _names_beside(search: FileSearch, path: str) -> tuple[str, ...]:
    folder, file = posixpath.split(path)
    stem = f"{file.partition('.so')[0]}.so"
    beside = [name for name in search.names(folder) if name == stem or name.startswith(f"{stem}.")]
    return tuple(name for name in beside if name != file and search.find(posixpath.join(folder, name)) == path)
