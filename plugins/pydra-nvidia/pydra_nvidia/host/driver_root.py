"""Where the driver is installed: on the host itself, or in a root of its own that a container or an installer fills.

Paths are of three kinds: of the host (what the container runtime needs), inside the driver's root (where a container
expects the file), and here (as this process sees the file). Nothing of the vendor's is run to find them.
"""

from __future__ import annotations

import posixpath
import re

import msgspec

from pydra import PydraError
from pydra_nvidia.host.kernel_driver import read_module_version
from pydra_nvidia.host.linker_cache import find_cached, read_linker_cache
from pydra_nvidia.host.rooted_paths import below, resolve
from pydra_nvidia.settings import Settings
from pydra_pci import Tree

NVML = "libnvidia-ml.so.1"
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
    when their names do not show it. `dev_root` is the root, of the host, whose `dev` has the devices.
    """

    host_path: str
    here: str
    library_dir: str
    nvml_library: str
    version: str = ""
    dev_root: str = "/"

    @property
    def prefix(self) -> str:
        """The directory, inside the root, with all that its installer left beside libraries at no usual place."""
        return "" if self.library_dir in LIBRARY_DIRS else posixpath.dirname(self.library_dir)

    @property
    def program_dirs(self) -> tuple[str, ...]:
        """Where its programs are looked for, inside the root."""
        return tuple(dict.fromkeys((f"{self.prefix}/bin", *PROGRAM_DIRS))) if self.prefix else PROGRAM_DIRS

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
