"""What containers get for a device: its nodes, the groups that may open them, and the environment of AMD's driver."""

from __future__ import annotations

import os
import stat

from pydra import AllocatedDevice, ClaimError, ContainerEdits, DeviceNode
from pydra_amd.claim_records import Units
from pydra_amd.devices import DRIVER
from pydra_amd.hardware_types import Partition
from pydra_amd.host.amdgpu import list_nodes
from pydra_amd.sharing import build_mask
from pydra_pci import Tree, list_vfio_nodes, read_iommu_group


def build_edits(
    device: AllocatedDevice, partition: Partition, tree: Tree, units: Units | None = None
) -> ContainerEdits:
    """The edits for one device, or for the share of it that has these compute units.

    Looks at the nodes for their groups; one that is missing is the agent's to tell.
    """
    nodes = list_nodes(partition)
    return ContainerEdits(
        env={"DRA_RESOURCE_DRIVER_NAME": DRIVER, "KUBERNETES_NODE_NAME": device.pool, **build_mask(units or ())},
        device_nodes=tuple(DeviceNode(path=node, host_path=tree.host_node(node)) for node in nodes),
        additional_gids=tuple(sorted({gid for node in nodes if (gid := _find_group(tree, node))})),
    )


def build_function_edits(device: AllocatedDevice, address: str, tree: Tree, *, iommufd: bool) -> ContainerEdits:
    """The nodes by which a guest's monitor opens the function, which is bound: as AMD's driver has them.

    Raises ClaimError: the function has none.
    """
    group, own = read_iommu_group(tree, address), list_vfio_nodes(tree, address)
    opened = own[:1] if iommufd else (f"/dev/vfio/{group}",) if group else ()
    if not opened:
        raise ClaimError(
            f"{device.device} ({address}) has no node below /dev/vfio: is the IOMMU on, and the function bound to a "
            "vfio driver?"
        )
    nodes = (*opened, "/dev/vfio/vfio", *(("/dev/iommu",) if iommufd else ()))
    return ContainerEdits(
        env={"DRA_RESOURCE_DRIVER_NAME": DRIVER, "KUBERNETES_NODE_NAME": device.pool},
        device_nodes=tuple(DeviceNode(path=node, host_path=tree.host_node(node)) for node in nodes),
    )


def _find_group(tree: Tree, node: str) -> int:
    """The group that a process which is not root must be in to use the node; 0 where none helps or none is needed."""
    try:
        found = os.stat(tree.here(tree.host_node(node)))
    except OSError:
        return 0
    everyone, group = stat.S_IROTH | stat.S_IWOTH, stat.S_IRGRP | stat.S_IWGRP
    return found.st_gid if found.st_mode & everyone != everyone and found.st_mode & group == group else 0
