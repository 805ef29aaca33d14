"""What the loaded kernel driver shows in /proc: its version, and the device nodes that open a partition to a container.

These are nvidia-caps, one minor number for each instance. Source: MIG user guide, "Device Nodes and Capabilities". The
files appear and go with the instances.
"""

from __future__ import annotations

import re

import msgspec

from pydra import ClaimError
from pydra_nvidia.host.tree import Tree

_CAPS = "nvidia-caps"
_CAPS_ROOT = "driver/nvidia/capabilities"
_VERSION = re.compile(r"\b\d{3}\.\d+(?:\.\d+)?\b")


def read_module_version(tree: Tree) -> str:
    """The version of the NVIDIA module that is loaded (`580.105.08`); empty when none is.

    Source: /proc/driver/nvidia/version, whose first line is NVRM's, in two wordings (open and closed module).
    """
    text = tree.read(tree.proc("driver/nvidia/version")) or ""
    found = _VERSION.search(text.partition("\n")[0])
    return found[0] if found else ""


def is_excluded(tree: Tree, address: str) -> bool:
    """Whether the admin has excluded the GPU at this PCI address (the module's parameter NVreg_ExcludedGpus)."""
    text = tree.read(tree.proc(f"driver/nvidia/gpus/{address}/information")) or ""
    return any(line.partition(":")[::2] == ("GPU Excluded", "\t Yes") for line in text.splitlines())


def read_majors(tree: Tree) -> dict[str, int]:
    """The major numbers of character devices by driver name (`nvidia-caps`), from /proc/devices."""
    majors: dict[str, int] = {}
    for line in (tree.read(tree.proc("devices")) or "").splitlines():
        if line.startswith("Block devices"):
            break
        number, _, name = line.strip().partition(" ")
        if number.isdecimal() and name:
            majors.setdefault(name.strip(), int(number))
    return majors


class CapabilityMissing(ClaimError):
    """The kernel driver shows no device node for a partition that exists."""

    reason = "CapabilityMissing"


class CapabilityNode(msgspec.Struct, frozen=True, kw_only=True):
    """A character device; it need not exist on the host. `mode` is its permissions (0o400, 0o444)."""

    path: str
    major: int
    minor: int
    mode: int


def find_partition_nodes(tree: Tree, gpu: int, instance: int, compute: int) -> tuple[CapabilityNode, CapabilityNode]:
    """The nodes of a GPU instance and of a compute instance in it; `gpu` is the GPU's minor number.

    Raises:
        CapabilityMissing: no nvidia-caps in /proc/devices, or no such instance in /proc/driver/nvidia.
    """
    major = read_majors(tree).get(_CAPS)
    if major is None:
        raise CapabilityMissing(
            f"{tree.proc('devices')} has no {_CAPS}: the NVIDIA kernel driver is not loaded, or is older than MIG"
        )
    place = f"gpu{gpu}/mig/gi{instance}"
    return _find_node(tree, major, f"{place}/access"), _find_node(tree, major, f"{place}/ci{compute}/access")


def list_instances(tree: Tree) -> tuple[tuple[str, tuple[tuple[str, tuple[str, ...]], ...]], ...]:
    """GPU, GPU instance and compute instance directories: what changes when somebody creates or destroys one."""
    root = tree.proc(_CAPS_ROOT)
    return tuple(
        (gpu, tuple((gi, tree.names(f"{root}/{gpu}/mig/{gi}")) for gi in tree.names(f"{root}/{gpu}/mig")))
        for gpu in tree.names(root)
        if gpu.startswith("gpu")
    )


def _find_node(tree: Tree, major: int, name: str) -> CapabilityNode:
    path = tree.proc(f"{_CAPS_ROOT}/{name}")
    fields = dict(line.split(":", 1) for line in (tree.read(path) or "").splitlines() if ":" in line)
    try:
        minor, mode = int(fields["DeviceFileMinor"]), int(fields["DeviceFileMode"])
    except (KeyError, ValueError) as error:
        raise CapabilityMissing(
            f"{path} does not tell the device node of the partition; it was destroyed, or /proc is not the node's"
        ) from error
    return CapabilityNode(path=f"/dev/nvidia-caps/nvidia-cap{minor}", major=major, minor=minor, mode=mode)
