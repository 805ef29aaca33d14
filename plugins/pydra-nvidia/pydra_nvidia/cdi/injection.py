"""What a container gets with a device, from the node as it is now. A shell round `edits`: it looks, in a thread.

The driver's files are remembered, with the stamps of all folders in which they were searched for: a file that
comes or goes is noticed with the next claim. A search that failed is not remembered, nor one of folders that changed a
moment ago, because their clock is too coarse to show the next change. Device nodes are never remembered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from pydra import ClaimError, ContainerEdits
from pydra_nvidia.cdi.driver_files import DriverFiles, find_driver_files
from pydra_nvidia.cdi.edits import driver_edits, gpu_edits, merge, partition_edits, passthrough_edits
from pydra_nvidia.cdi.hooks import describe_hooks, find_hook
from pydra_nvidia.cdi.libraries import DriverIncomplete
from pydra_nvidia.claim_config import Iommu, VfioDeviceConfig
from pydra_nvidia.devices import Partition, Passthrough, Target, WholeGpu
from pydra_nvidia.hardware_types import Gpu, Reading
from pydra_nvidia.host.device_nodes import COMMON, CONTROL, DevRoots, Node, find_partition_nodes
from pydra_nvidia.host.driver_root import (
    DriverMissing,
    DriverRoot,
    FileSearch,
    FolderStamp,
    find_driver_root,
    is_settled,
    read_stamp,
)
from pydra_nvidia.host.filesystem import Tree
from pydra_nvidia.host.pci import list_vfio_nodes
from pydra_nvidia.settings import Settings
from pydra_nvidia.sharing.edits import build_sharing_edits
from pydra_nvidia.steps import Step


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    """Files that were found, and what they depend on."""

    version: str
    root: DriverRoot
    seen: Mapping[str, FolderStamp]
    files: DriverFiles

    def holds(self, version: str) -> bool:
        return self.version == version and all(
            read_stamp(self.root, path) == stamp for path, stamp in self.seen.items()
        )


class _Driver(NamedTuple):
    """What the devices of one claim have in common."""

    hook: str
    root: DriverRoot
    dev: DevRoots
    edits: ContainerEdits


class Injection:
    """One for the backend's life. `clock` tells the time in seconds since 1970."""

    def __init__(self, tree: Tree, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self._tree = tree
        self._settings = settings
        self._clock = clock
        self._known: _Known | None = None

    async def edits(self, target: Target, reading: Reading, steps: Sequence[Step] = ()) -> ContainerEdits:
        """What a container gets with one target, as `look` has it; looked for in a thread."""
        (edits,) = await asyncio.to_thread(self.look, (target,), reading, steps)
        return edits

    def look(self, targets: Sequence[Target], reading: Reading, steps: Sequence[Step] = ()) -> list[ContainerEdits]:
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
                driver = driver or self._find_driver(reading)
                own = self._describe(target, driver)
            found.append(merge(own, build_sharing_edits(target, steps, settings=self._settings)))
        return found

    async def statement(self) -> str:
        """How containers are set up on this node, for the log; raises HookMissing."""
        return describe_hooks(await asyncio.to_thread(find_hook, self._tree, self._settings))

    async def has_hook(self) -> bool:
        """Whether the node has NVIDIA's hook, so that containers get all; raises HookMissing."""
        return bool(await asyncio.to_thread(find_hook, self._tree, self._settings))

    def _describe(self, target: WholeGpu | Partition, driver: _Driver) -> ContainerEdits:
        if isinstance(target, WholeGpu):
            return merge(driver.edits, self._gpu(target.gpu, driver))
        instance = target.instance
        if instance is None or len(instance.compute) != 1:
            raise ClaimError(
                f"partition {target.allocated.device} is not there as one compute instance in its GPU instance"
            )
        capabilities = find_partition_nodes(self._tree, target.gpu.minor, instance.id, instance.compute[0].id)
        return merge(driver.edits, self._gpu(target.gpu, driver), partition_edits(capabilities))

    def _gpu(self, gpu: Gpu, driver: _Driver) -> ContainerEdits:
        node = driver.dev.find(f"/dev/nvidia{gpu.minor}")
        if node is None:
            raise _node_missing(f"/dev/nvidia{gpu.minor}", driver.root)
        return gpu_edits(node, driver.dev.find_drm(gpu.pci), gpu.pci, driver.hook)

    def _find_driver(self, reading: Reading) -> _Driver:
        """What all GPUs and partitions have in common, as it is now."""
        hook = find_hook(self._tree, self._settings)
        root, files = self._find_files(reading.driver.version if reading.driver is not None else "")
        dev = DevRoots(self._tree, (root.dev_root, "/"))
        found = [node for path in COMMON if (node := dev.find(path)) is not None]
        if CONTROL not in (node.path for node in found):
            raise _node_missing(CONTROL, root)
        return _Driver(hook=hook, root=root, dev=dev, edits=driver_edits(files, found, hook))

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

    def _find_files(self, version: str) -> tuple[DriverRoot, DriverFiles]:
        known = self._known
        if known is not None and known.holds(version):
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
            firmware=self._tree.read(self._tree.sys("module/firmware_class/parameters/path")) or "",
            kernel=self._tree.read(self._tree.proc("sys/kernel/osrelease")) or "",
        )
        newest = max((stamp[2] for stamp in search.seen.values() if stamp is not None), default=0)
        if is_settled(newest, self._clock()):
            self._known = _Known(version=version, root=root, seen=search.seen, files=files)
        return root, files


def _node_missing(path: str, root: DriverRoot) -> DriverIncomplete:
    return DriverIncomplete(
        f"the node has no {path} (looked below {root.dev_root}): the NVIDIA driver may still be loading, and "
        "the claim is tried again; nvidia-modprobe makes the device nodes, and PYDRA_NVIDIA_DEV_ROOT names "
        "another root for them"
    )
