"""What a container gets with a device, from the node as it is now: looked up on the node, and built as edits.

The common part is the same for all GPUs and partitions of a claim, and its hooks come first, so that the claim's spec
has it once. Every path on the left of a mount is the host's. The limits of an MPS daemon hold for all its clients, so
no variable repeats them. Device nodes are never remembered; the driver's files are (`driver_files.DriverFileCache`).
Source: NVIDIA container toolkit, pkg/nvcdi; kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/sharing.go.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from pydra import ClaimError, ContainerEdits, DeviceNode, Mount
from pydra_nvidia.cdi.driver_files import DriverFileCache, DriverFiles
from pydra_nvidia.cdi.hooks import driver_hooks, find_hook, find_links, link_hooks
from pydra_nvidia.cdi.libraries import DriverIncomplete
from pydra_nvidia.claim_config import Iommu, VfioDeviceConfig
from pydra_nvidia.claim_targets import Partition, Passthrough, Target, WholeGpu
from pydra_nvidia.hardware_types import Gpu, Reading
from pydra_nvidia.host.device_nodes import COMMON, CONTROL, DevRoots, Node, find_partition_nodes
from pydra_nvidia.host.driver_root import DriverRoot
from pydra_nvidia.settings import Settings
from pydra_nvidia.sharing.mps_directory import find_directory
from pydra_nvidia.steps import StartMps, Step
from pydra_pci import Tree, list_vfio_nodes


class _Driver(NamedTuple):
    """What the devices of one claim have in common."""

    hook: str
    root: DriverRoot
    dev: DevRoots
    edits: ContainerEdits


class DeviceEdits:
    """One for the backend's life. `clock` returns the time in seconds since 1970."""

    def __init__(self, tree: Tree, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self._tree = tree
        self._settings = settings
        self._files = DriverFileCache(tree, settings, clock=clock)

    def build(self, targets: Sequence[Target], reading: Reading, steps: Sequence[Step] = ()) -> list[ContainerEdits]:
        """All that a container gets with each target, by what was done for their claim. Paths are the host's. Blocks.

        Raises:
            DriverIncomplete: the driver's files or device nodes are not (all) there.
            CapabilityMissing: the kernel shows no device node of the partition.
            HookMissing: PYDRA_NVIDIA_CDI_HOOK names a file that the host does not have.
            ClaimError: the partition or the bound function is not as the claim needs it.
        """
        driver = None
        found = []
        for target in targets:
            if isinstance(target, Passthrough):
                own = self._passthrough(target, reading)
            else:
                driver = driver or self._find_driver(reading.driver.version if reading.driver is not None else "")
                own = self._describe(target, driver)
            found.append(merge(own, mps_edits(target, steps, settings=self._settings)))
        return found

    def _describe(self, target: WholeGpu | Partition, driver: _Driver) -> ContainerEdits:
        if isinstance(target, WholeGpu):
            return merge(driver.edits, self._gpu(target.gpu, driver))
        instance = target.instance
        if instance is None or len(instance.compute) != 1:
            raise ClaimError(
                f"partition {target.allocated.device} is not there as one compute instance in its GPU instance"
            )
        # Beside the nodes of its GPU, they open this partition of it alone.
        capabilities = find_partition_nodes(self._tree, target.gpu.minor, instance.id, instance.compute[0].id)
        return merge(driver.edits, self._gpu(target.gpu, driver), ContainerEdits(device_nodes=capabilities))

    def _gpu(self, gpu: Gpu, driver: _Driver) -> ContainerEdits:
        node = driver.dev.find(f"/dev/nvidia{gpu.minor}")
        if node is None:
            raise _node_missing(f"/dev/nvidia{gpu.minor}", driver.root)
        return gpu_edits(node, driver.dev.find_drm(gpu.pci), gpu.pci, driver.hook)

    def build_management(self, version: str) -> ContainerEdits:
        """What a container gets that manages all GPUs: the driver, of this version, and the GPUs' nodes. Blocks.

        Raises as `build` does.
        """
        driver = self._find_driver(version)
        return merge(driver.edits, _with_nodes(driver.dev.find_gpus()))

    def _find_driver(self, version: str) -> _Driver:
        """What all GPUs and partitions have in common, as it is now."""
        hook = find_hook(self._tree, self._settings)
        root, files = self._files.find(version)
        dev = DevRoots(self._tree, (root.dev_root, "/"))
        found = [node for path in COMMON if (node := dev.find(path)) is not None]
        if CONTROL not in (node.path for node in found):
            raise _node_missing(CONTROL, root)
        return _Driver(hook=hook, root=root, dev=dev, edits=driver_edits(files, tuple(found), hook))

    def _passthrough(self, target: Passthrough, reading: Reading) -> ContainerEdits:
        config = target.allocated.config(VfioDeviceConfig)
        iommu = config.iommu if config is not None and config.iommu is not None else Iommu()
        function, dev = target.function, DevRoots(self._tree, (self._settings.dev_root or "/", "/"))
        if iommu.backend_policy == "PreferIommuFD" and reading.vfio.iommufd:
            device, interface = next(iter(list_vfio_nodes(self._tree, function.address)), None), "/dev/iommu"
        else:
            device, interface = f"/dev/vfio/{function.group}" if function.group else None, "/dev/vfio/vfio"
        if device is None:
            raise ClaimError(
                f"{target.allocated.device} ({function.address}) has no device below /dev/vfio: "
                "is the IOMMU on (kernel command line), and is the function bound to a vfio driver?"
            )
        paths = (device, interface) if iommu.enable_api_device else (device,)
        return passthrough_edits([dev.find(path) or Node(path=path, host=path) for path in paths])


def _node_missing(path: str, root: DriverRoot) -> DriverIncomplete:
    return DriverIncomplete(
        f"the node has no {path} (looked below {root.dev_root}): the NVIDIA driver may still be loading, and "
        "the claim is tried again; nvidia-modprobe makes the device nodes, and PYDRA_NVIDIA_DEV_ROOT names "
        "another root for them"
    )


FILE_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
VOID = {"NVIDIA_VISIBLE_DEVICES": "void"}
"""Keeps NVIDIA's older runtime, where it is installed too, from giving the container GPUs by itself."""

_IMAGES_LIBRARY_PATH = ("/usr/local/nvidia/lib", "/usr/local/nvidia/lib64")
"""What images of CUDA set LD_LIBRARY_PATH to."""


def merge(*edits: ContainerEdits) -> ContainerEdits:
    """All that GPUs need of these, in their order; of a variable that several set, the last."""
    return ContainerEdits(
        env={name: value for one in edits for name, value in one.env.items()},
        device_nodes=tuple(chain.from_iterable([one.device_nodes for one in edits])),
        mounts=tuple(chain.from_iterable([one.mounts for one in edits])),
        hooks=tuple(chain.from_iterable([one.hooks for one in edits])),
        additional_gids=tuple(sorted({gid for one in edits for gid in one.additional_gids})),
    )


@lru_cache(maxsize=2)  # the same for every claim, as long as the files and nodes are
def driver_edits(files: DriverFiles, nodes: tuple[Node, ...], hook: str) -> ContainerEdits:
    """The driver: its files, `nodes` that all GPUs share, and the hooks of the program `hook` (of the host).

    Without a hook, the files are also mounted under the names that it would have linked, and LD_LIBRARY_PATH leads
    to them.
    """
    links = find_links(files)
    env = {**VOID, "NVIDIA_CTK_LIBCUDA_DIR": ":".join(files.cuda_folders)}
    mounts = [_mount(file.host, file.path) for file in (*files.libraries, *files.modules, *files.files)]
    if not hook:
        env["LD_LIBRARY_PATH"] = ":".join(dict.fromkeys((*files.folders, *_IMAGES_LIBRARY_PATH)))
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


PIPE_INSIDE = "/tmp/nvidia-mps"  # noqa: S108 - the vendor's name, in the container
SHM_INSIDE = "/dev/shm"  # noqa: S108 - where CUDA looks
MOUNT_OPTIONS = ("rw", "nosuid", "nodev", "bind")


def mps_edits(target: Target, steps: Sequence[Step], *, settings: Settings) -> ContainerEdits:
    """The pipe and the memory of the daemon that the device has; nothing without one, or for admins who look."""
    for step in steps:
        if isinstance(step, StartMps) and target.allocated.device in (step.holds or ()):
            place = find_directory(settings, step.id)
            return mps_client_edits(place.on_host(place.pipe), place.on_host(place.shm))
    return ContainerEdits()


def mps_client_edits(pipe: str, shm: str, *, optional: bool = False) -> ContainerEdits:
    """For a client of the daemon that has these directories on the host."""
    return (
        ContainerEdits()
        .with_env("CUDA_MPS_PIPE_DIRECTORY", PIPE_INSIDE)
        .with_mount(shm, SHM_INSIDE, options=MOUNT_OPTIONS, optional=optional)
        .with_mount(pipe, PIPE_INSIDE, options=MOUNT_OPTIONS, optional=optional)
    )
