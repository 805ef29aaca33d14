"""What a container gets with each kind of device. Pure.

The common part is the same for all GPUs and partitions of a claim, and its hooks come first, so that the claim's spec
has it once. Every path on the left of a mount is the host's. Source: NVIDIA container toolkit, pkg/nvcdi.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence

from pydra import ContainerEdits, DeviceNode, Mount
from pydra_nvidia.cdi.driver_files import DriverFiles
from pydra_nvidia.cdi.hooks import driver_hooks, link_hooks
from pydra_nvidia.cdi.links import find_links
from pydra_nvidia.host.device_nodes import CONTROL, CapabilityNode, Node

FILE_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""Keeps NVIDIA's older runtime, where it is installed too, from giving the container GPUs by itself."""

_IMAGES_LIBRARY_PATH = ("/usr/local/nvidia/lib", "/usr/local/nvidia/lib64")
"""What images of CUDA set LD_LIBRARY_PATH to."""


def merge(*edits: ContainerEdits) -> ContainerEdits:
    """All of these, in their order; of a variable that several set, the last. pydra tells what contradicts itself."""
    return ContainerEdits(
        env={name: value for one in edits for name, value in one.env.items()},
        device_nodes=tuple(node for one in edits for node in one.device_nodes),
        mounts=tuple(mount for one in edits for mount in one.mounts),
        hooks=tuple(hook for one in edits for hook in one.hooks),
        net_devices=tuple(device for one in edits for device in one.net_devices),
        intel_rdt=next((one.intel_rdt for one in reversed(edits) if one.intel_rdt is not None), None),
        additional_gids=tuple(sorted({gid for one in edits for gid in one.additional_gids})),
    )


def driver_edits(files: DriverFiles, nodes: Sequence[Node], hook: str) -> ContainerEdits:
    """The driver: its files, `nodes` that all GPUs share, and the hooks of the program `hook` (of the host).

    Without a hook, the files are also mounted under the names that it would have linked, and LD_LIBRARY_PATH leads
    to them.
    """
    links = find_links(files)
    env = {**VOID, "NVIDIA_CTK_LIBCUDA_DIR": ":".join(files.cuda_folders)}
    mounts = [_mount(library.host, library.path) for library in (*files.libraries, *files.modules)]
    mounts += [_mount(file.host, file.path) for file in files.files]
    if not hook:
        env["LD_LIBRARY_PATH"] = ":".join((*files.folders, *_IMAGES_LIBRARY_PATH))
        mounts += [_mount(link.host, link.path) for link in links]
    return merge(
        ContainerEdits(
            env=env,
            mounts=(
                *sorted(mounts, key=lambda mount: mount.container_path),
                *(
                    Mount(host_path=one.host, container_path=one.path, options=SOCKET_OPTIONS, optional=True)
                    for one in files.sockets
                ),
            ),
            hooks=driver_hooks(hook, files, links) if hook else (),
        ),
        _with_nodes(nodes, optional=[node.path for node in nodes if node.path != CONTROL]),
    )


def gpu_edits(node: Node, drm: Sequence[Node], address: str, hook: str) -> ContainerEdits:
    """A whole GPU: its node, and those for graphics with the links by which programs find them by PCI address."""
    names = sorted(posixpath.basename(one.path) for one in drm)
    links = [
        (f"../{name}", f"/dev/dri/by-path/pci-{address}-{'card' if name.startswith('card') else 'render'}")
        for name in names
    ]
    nodes = _with_nodes((node, *drm), optional=[one.path for one in drm])
    return merge(nodes, ContainerEdits(hooks=link_hooks(hook, links) if hook else ()))


def partition_edits(capabilities: Iterable[CapabilityNode]) -> ContainerEdits:
    """A partition, beside the nodes of its GPU: the capabilities that open this partition of it alone."""
    return ContainerEdits(
        device_nodes=tuple(
            DeviceNode(path=one.path, type="c", major=one.major, minor=one.minor, file_mode=one.mode)
            for one in capabilities
        )
    )


def passthrough_edits(nodes: Sequence[Node]) -> ContainerEdits:
    """A function that is passed through: its node and, where asked for, the IOMMU's. No file of the driver."""
    return merge(ContainerEdits(env=VOID), _with_nodes(nodes))


def _mount(host: str, path: str) -> Mount:
    return Mount(host_path=host, container_path=path, options=FILE_OPTIONS)


def _with_nodes(nodes: Sequence[Node], optional: Sequence[str] = ()) -> ContainerEdits:
    gids = {node.gid for node in nodes if node.gid}
    return ContainerEdits(
        device_nodes=tuple(_node(node, node.path in optional) for node in nodes), additional_gids=tuple(sorted(gids))
    )


def _node(node: Node, optional: bool) -> DeviceNode:
    host = node.host if node.host != node.path else ""
    if node.numbers is None:
        return DeviceNode(path=node.path, host_path=host, optional=optional)
    # The runtime makes it from its numbers: there is no node on the host to look at.
    return DeviceNode(path=node.path, type="c", major=node.numbers[0], minor=node.numbers[1])
