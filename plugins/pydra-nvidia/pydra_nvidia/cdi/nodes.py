"""The device nodes of the driver and of vfio, as they are at this moment: never remembered."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence

import msgspec

from pydra_nvidia.host.kernel_driver import read_majors
from pydra_nvidia.host.root_paths import below
from pydra_nvidia.host.tree import Tree

CONTROL = "/dev/nvidiactl"
_MINORS = {"/dev/nvidia-modeset": 254, CONTROL: 255}
_UVM_MINORS = {"/dev/nvidia-uvm": 0, "/dev/nvidia-uvm-tools": 1}
COMMON = (CONTROL, "/dev/nvidia-modeset", *_UVM_MINORS)
"""What all GPUs share; only the first is always there."""

_GPU = re.compile(r"/dev/nvidia([0-9]+)")
_DRM = re.compile(r"(card|renderD)[0-9]+")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A device node: `path` in the container, `host` on the host.

    `numbers`, major and minor, are given where the host has no character device there but something that stands for
    one: the runtime then makes the node from them. `gid` is a group that a process must be in to use it, 0 for none.
    """

    path: str
    host: str
    numbers: tuple[int, int] | None = None
    gid: int = 0


class DevRoots:
    """Where the nodes are: `roots` are paths of the host whose `dev` is looked into, in this order."""

    def __init__(self, tree: Tree, roots: Sequence[str]) -> None:
        self._tree = tree
        self._roots = tuple(dict.fromkeys(roots))

    def find(self, path: str) -> Node | None:
        """The node at `/dev/...`; None when nothing is there. A link is nothing: it may lead to another device."""
        for root in self._roots:
            host = below(root, path)
            try:
                status = os.lstat(self._tree.here(host))
            except OSError:
                continue
            if stat.S_ISCHR(status.st_mode):
                return Node(path=path, host=host, gid=find_group(status.st_mode, status.st_gid))
            if not stat.S_ISLNK(status.st_mode):
                return Node(path=path, host=host, numbers=self._numbers(path))
        return None

    def find_drm(self, address: str) -> tuple[Node, ...]:
        """The nodes for graphics of the PCI function, sorted; empty where the driver makes none (nvidia-drm)."""
        names = self._tree.names(self._tree.sys(f"bus/pci/devices/{address}/drm"))
        found = (self.find(f"/dev/dri/{name}") for name in names if _DRM.fullmatch(name))
        return tuple(node for node in found if node is not None)

    def find_vfio(self, address: str) -> str | None:
        """The path of the function's own device below /dev/vfio/devices, made when it was bound; None without one."""
        names = self._tree.names(self._tree.sys(f"bus/pci/devices/{address}/vfio-dev"))
        return next((f"/dev/vfio/devices/{name}" for name in names if name.startswith("vfio")), None)

    def _numbers(self, path: str) -> tuple[int, int] | None:
        majors = read_majors(self._tree)
        gpu = _GPU.fullmatch(path)
        if gpu is not None or path in _MINORS:
            major = majors.get("nvidia", majors.get("nvidia-frontend"))
            minor = int(gpu[1]) if gpu is not None else _MINORS[path]
        elif path in _UVM_MINORS:
            major, minor = majors.get("nvidia-uvm"), _UVM_MINORS[path]
        else:
            return self._numbers_in_sysfs(path)
        return (major, minor) if major is not None else None

    def _numbers_in_sysfs(self, path: str) -> tuple[int, int] | None:
        name = os.path.basename(path)
        kind = {"/dev/dri": "drm", "/dev/vfio/devices": "vfio-dev", "/dev/vfio": "vfio"}.get(os.path.dirname(path))
        for place in (f"class/{kind}/{name}/dev", f"class/misc/{name}/dev"):
            major, _, minor = (self._tree.read(self._tree.sys(place)) or "").partition(":")
            if major.isdecimal() and minor.isdecimal():
                return int(major), int(minor)
        return None


def find_group(mode: int, gid: int) -> int:
    """The group that opens a node of this mode to processes that are not root's; 0 when it opens nothing."""
    return gid if mode & 0o060 and mode & 0o006 != 0o006 else 0
