"""Device nodes: of the driver, of DRM and vfio, and those that open a partition or an IMEX channel to a container.

Nodes are those of this moment: never remembered. Those of a partition are nvidia-caps, one minor number for each
instance; their files in /proc appear and go with the instances. One more is for managing IMEX, whose channels are
nvidia-caps-imex-channels.
Sources: MIG user guide, "Device Nodes and Capabilities"; IMEX guide, "IMEX Channels".
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence

import msgspec

from pydra import ClaimError, DeviceNode
from pydra_nvidia.host.kernel_driver import CAPABILITIES
from pydra_nvidia.host.rooted_paths import below
from pydra_pci import Tree, function_path

_CAPS = "nvidia-caps"
_CHANNELS = "nvidia-caps-imex-channels"
_CHANNEL_COUNT = re.compile(r"^ImexChannelCount: (\d+)$", re.MULTILINE)
_ALL_MAY_WRITE = 0o666
CONTROL = "/dev/nvidiactl"
_DRIVERS = ("nvidia", "nvidia-frontend")
_MINORS = {"/dev/nvidia-modeset": 254, CONTROL: 255}
_UVM_MINORS = {"/dev/nvidia-uvm": 0, "/dev/nvidia-uvm-tools": 1}
COMMON = (CONTROL, "/dev/nvidia-modeset", *_UVM_MINORS)
"""What all GPUs share; only the first is always there."""
_GPU = re.compile(r"/dev/nvidia([0-9]+)")
_DRM = re.compile(r"(card|renderD)[0-9]+")


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A device node: `path` in the container, `host` on the host.

    `numbers`, major and minor, are given where the host has no character device there, but the module that has it, or
    something that stands for one: the runtime then makes the node from them. `gid` is a group that a process must be in
    to use it, 0 for none.
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
        """The node at `/dev/...`; None when nothing is there. A link is nothing: it may lead to another device.

        Those of UVM are made by nvidia-modprobe or a rule of udev, not by the module: it may be loaded without them.
        """
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
        if path in _UVM_MINORS and (numbers := self._numbers(path)) is not None:
            return Node(path=path, host=path, numbers=numbers)
        return None

    def find_gpus(self) -> tuple[Node, ...]:
        """The nodes of all GPUs, by minor number."""
        names = {name for root in self._roots for name in self._tree.names(self._tree.here(below(root, "/dev")))}
        minors = sorted(int(match[1]) for name in names if (match := _GPU.fullmatch(f"/dev/{name}")))
        found = (self.find(f"/dev/nvidia{minor}") for minor in minors)
        return tuple(node for node in found if node is not None)

    def find_drm(self, address: str) -> tuple[Node, ...]:
        """The nodes for graphics of the PCI function, sorted; empty where the driver makes none (nvidia-drm)."""
        names = self._tree.names(function_path(self._tree, address, "drm"))
        found = (self.find(f"/dev/dri/{name}") for name in names if _DRM.fullmatch(name))
        return tuple(node for node in found if node is not None)

    def _numbers(self, path: str) -> tuple[int, int] | None:
        majors = read_majors(self._tree)
        gpu = _GPU.fullmatch(path)
        if gpu is not None or path in _MINORS:
            major = next((majors[name] for name in _DRIVERS if name in majors), None)
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
            major, _, minor = self._tree.read(self._tree.sys(place)).partition(":")
            if major.isdecimal() and minor.isdecimal():
                return int(major), int(minor)
        return None


def find_group(mode: int, gid: int) -> int:
    """The group that opens a node of this mode to processes that are not root's; 0 when it opens nothing."""
    return gid if mode & 0o060 and mode & 0o006 != 0o006 else 0


def read_majors(tree: Tree) -> dict[str, int]:
    """The major numbers of character devices by driver name (`nvidia-caps`), from /proc/devices."""
    majors: dict[str, int] = {}
    for line in tree.read(tree.proc("devices")).splitlines():
        if line.startswith("Block devices"):
            break
        number, _, name = line.strip().partition(" ")
        if number.isdecimal() and name:
            majors.setdefault(name.strip(), int(number))
    return majors


UVM_NOT_LOADED = (
    "the kernel module nvidia_uvm is not loaded on this node, so CUDA cannot be initialized in containers; load it by "
    "`modprobe nvidia_uvm` or `nvidia-modprobe -u`, and write nvidia_uvm into a file in /etc/modules-load.d"
)


def lacks_uvm(tree: Tree) -> bool:
    """Whether the driver is loaded without the module for unified memory, whose nodes may be there from earlier."""
    majors = read_majors(tree)
    return not majors.keys().isdisjoint(_DRIVERS) and "nvidia-uvm" not in majors


class CapabilityMissing(ClaimError):
    """The kernel driver shows no device node for what it has."""

    reason = "CapabilityMissing"


def find_partition_nodes(tree: Tree, gpu: int, instance: int, compute: int) -> tuple[DeviceNode, DeviceNode]:
    """The nodes of a GPU instance and of a compute instance in it; `gpu` is the GPU's minor number.

    Raises:
        CapabilityMissing: no nvidia-caps in /proc/devices, or no such instance in /proc/driver/nvidia.
    """
    place, gone = f"gpu{gpu}/mig/gi{instance}", "of the partition; it was destroyed"
    major = _find_caps_major(tree)
    instance_node = _find_node(tree, major, f"{place}/access", gone)
    return instance_node, _find_node(tree, major, f"{place}/ci{compute}/access", gone)


def find_imex_management(tree: Tree) -> DeviceNode:
    """The node by which an IMEX daemon manages what GPUs of other nodes import. Raises CapabilityMissing."""
    return _find_node(tree, _find_caps_major(tree), "fabric-imex-mgmt", "of IMEX; the driver has none")


def count_imex_channels(tree: Tree) -> int:
    """How many channels the driver has (NVreg_ImexChannelCount, 2048 by default); 0 for a driver without."""
    if _CHANNELS not in read_majors(tree):
        return 0
    found = _CHANNEL_COUNT.search(tree.read(tree.proc("driver/nvidia/params")))
    return int(found[1]) if found else 0


def find_imex_channels(tree: Tree, count: int) -> tuple[DeviceNode, ...]:
    """The nodes of the first `count` channels. Raises CapabilityMissing."""
    major, there = read_majors(tree).get(_CHANNELS), count_imex_channels(tree)
    if major is None or there < count:
        raise CapabilityMissing(
            f"IMEX channels of the NVIDIA kernel driver: found {there} (ImexChannelCount in "
            f"{tree.proc('driver/nvidia/params')}, {_CHANNELS} in {tree.proc('devices')}), needed: {count}"
        )
    return tuple(
        _build_node(f"/dev/{_CHANNELS}/channel{number}", major, number, _ALL_MAY_WRITE) for number in range(count)
    )


def _find_caps_major(tree: Tree) -> int:
    major = read_majors(tree).get(_CAPS)
    if major is None:
        raise CapabilityMissing(
            f"{tree.proc('devices')} has no {_CAPS}: the NVIDIA kernel driver is not loaded, or is older than MIG"
        )
    return major


def _find_node(tree: Tree, major: int, name: str, otherwise: str) -> DeviceNode:
    path = tree.proc(f"{CAPABILITIES}/{name}")
    fields = dict(line.split(":", 1) for line in tree.read(path).splitlines() if ":" in line)
    try:
        minor, mode = int(fields["DeviceFileMinor"]), int(fields["DeviceFileMode"])
    except (KeyError, ValueError) as error:
        raise CapabilityMissing(
            f"{path} does not name the device node {otherwise}, or /proc is not the node's"
        ) from error
    return _build_node(f"/dev/nvidia-caps/nvidia-cap{minor}", major, minor, mode)


def _build_node(path: str, major: int, minor: int, mode: int) -> DeviceNode:
    """The runtime makes it from its numbers: it need not exist on the host."""
    return DeviceNode(path=path, type="c", major=major, minor=minor, file_mode=mode)
