"""All files of the driver that a container needs: libraries, programs, firmware, configuration, daemons' sockets.

Source of the places: the layouts of NVIDIA's packages for Debian, Ubuntu, RHEL and SUSE, of its driver container, and
of GKE.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
from msgspec.structs import replace

from pydra_nvidia.cdi.libraries import DriverFile, DriverIncomplete, describe_libraries, find_libraries
from pydra_nvidia.host.driver_root import PROGRAM_DIRS, DriverMissing, DriverRoot, find_driver_root
from pydra_nvidia.host.file_search import FileSearch, FolderStamp, is_settled, read_stamps
from pydra_nvidia.settings import Settings
from pydra_pci import Tree

_GSP = re.compile(r"gsp[A-Za-z0-9_.+-]*\.bin")

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
"""Seen in the container below /etc; GKE keeps them right below the directory with the driver."""


class DriverFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What there is of the driver `version`; everything sorted by its path in the container, each path once.

    `modules` are the X server's. `files` are programs, firmware and configuration, `sockets` those of the driver's
    daemons that run at the moment.
    """

    version: str
    libraries: tuple[DriverFile, ...]
    modules: tuple[DriverFile, ...] = ()
    files: tuple[DriverFile, ...] = ()
    sockets: tuple[DriverFile, ...] = ()

    @property
    def folders(self) -> tuple[str, ...]:
        """Where the libraries are in the container."""
        return tuple(sorted({posixpath.dirname(one.path) for one in self.libraries}))

    @property
    def cuda_folders(self) -> tuple[str, ...]:
        """Where libcuda is in the container."""
        there = {one.path for one in self.libraries}
        return tuple(folder for folder in self.folders if f"{folder}/libcuda.so.{self.version}" in there)


def find_driver_files(search: FileSearch, version: str = "", *, firmware: str = "", kernel: str = "") -> DriverFiles:
    """What there is of the driver `version`, by default of the one that programs would load.

    `firmware` is the kernel's own folder of firmware (firmware_class.path), `kernel` its release.

    Raises:
        DriverIncomplete: libcuda or libnvidia-ml of this version is missing.
    """
    version, libraries = find_libraries(search, version)
    files = (*_programs(search), *_firmware(search, version, firmware, kernel), *_configs(search))
    return DriverFiles(
        version=version,
        libraries=libraries,
        modules=tuple(describe_libraries(search, _xorg_modules(search, libraries, version))),
        files=_by_path(files),
        sockets=_by_path(_sockets(search)),
    )


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """Files that were found, and what they depend on."""

    version: str
    root: DriverRoot
    seen: Mapping[str, FolderStamp]
    files: DriverFiles


class DriverFileCache:
    """The driver's files, remembered with the stamps of all folders in which they were searched for.

    A file that comes or goes is noticed with the next look. A search that failed is not remembered, nor one of folders
    that changed a moment ago, because their clock is too coarse to show the next change.
    """

    def __init__(self, tree: Tree, settings: Settings, *, clock: Callable[[], float]) -> None:
        self._tree = tree
        self._settings = settings
        self._clock = clock
        self._known: _Known | None = None

    def find(self, version: str) -> tuple[DriverRoot, DriverFiles]:
        """Where the driver of this version is, and its files. Blocks; raises DriverIncomplete."""
        known = self._known
        if known is not None and known.version == version and read_stamps(known.root, known.seen) == known.seen:
            return known.root, known.files
        self._known = None
        try:
            root = find_driver_root(self._tree, self._settings)
        except DriverMissing as error:
            raise DriverIncomplete(str(error)) from error
        search = FileSearch(root)
        files = find_driver_files(
            search,
            version,
            firmware=self._tree.read(self._tree.sys("module/firmware_class/parameters/path")),
            kernel=self._tree.read(self._tree.proc("sys/kernel/osrelease")),
        )
        newest = max((stamp[2] for stamp in search.seen.values() if stamp is not None), default=0)
        if is_settled(newest, self._clock()):
            self._known = _Known(version=version, root=root, seen=search.seen, files=files)
        return root, files


def _by_path(files: Iterable[DriverFile]) -> tuple[DriverFile, ...]:
    return tuple(sorted({file.path: file for file in files}.values()))


def _first(
    search: FileSearch, find: Callable[[str], str | None], paths: Iterable[str], path: str = ""
) -> Iterator[DriverFile]:
    """The first that is found, at its own path in the container unless `path` says another."""
    for one in paths:
        if (found := find(one)) is not None:
            yield DriverFile(path=path or one, host=search.root.path_on_host(found))
            return


def _xorg_modules(search: FileSearch, libraries: Iterable[DriverFile], version: str) -> Iterator[str]:
    homes = sorted({posixpath.dirname(one.path) for one in libraries})
    folders = (*(f"{home}/{part}" for home in homes for part in XORG_BESIDE_LIBRARIES), *XORG_FOLDERS)
    for name in ("nvidia_drv.so", f"libglxserver_nvidia.so.{version}"):
        hits = (search.find_file(f"{folder}/{name}") for folder in folders)
        yield from [hit for hit in hits if hit is not None][:1]


def _programs(search: FileSearch) -> Iterator[DriverFile]:
    """In /usr/bin, if the host has them in a folder that images do not have in PATH."""
    for name in PROGRAMS:
        for one in _first(search, search.find_program, (f"{folder}/{name}" for folder in search.root.program_dirs)):
            yield one if posixpath.dirname(one.path) in PROGRAM_DIRS else replace(one, path=f"/usr/bin/{name}")


def _firmware(search: FileSearch, version: str, own: str, kernel: str) -> Iterator[DriverFile]:
    """Every hit, as the kernel searches them in this order; the own folder may be named as the host sees it."""
    inside = own.removeprefix(search.root.host_path.rstrip("/"))
    usual = ("/lib/firmware/updates", "/lib/firmware")
    releases = [f"{folder}/{kernel}" for folder in usual if kernel]
    real: set[str] = set()
    for folder in dict.fromkeys(one for one in (inside, *releases, *usual) if one.startswith("/")):
        place = f"{folder.rstrip('/')}/nvidia/{version}"
        for name in filter(_GSP.fullmatch, search.names(place)):
            found = search.find_file(f"{place}/{name}")
            if found is not None and found not in real:
                real.add(found)
                yield DriverFile(path=f"{place}/{name}", host=search.root.path_on_host(found))


def _configs(search: FileSearch) -> Iterator[DriverFile]:
    """At the places where the loaders in the container look, wherever the host has the files."""
    for target, name in CONFIGS:
        sources = (f"{folder}/{name}" for folder in CONFIG_FOLDERS)
        yield from _first(search, search.find_file, sources, f"{target}/{name}")
    for name in VULKAN_CONFIGS:
        sources = (f"{folder}/{name}" for folder in (*CONFIG_FOLDERS, search.root.prefix))
        yield from _first(search, search.find_file, sources, f"/etc/{name}")


def _sockets(search: FileSearch) -> Iterator[DriverFile]:
    for name in SOCKETS:
        yield from _first(search, search.find_socket, (f"{folder}/{name}" for folder in SOCKET_FOLDERS))
