"""What the node can do for passing devices through."""

from __future__ import annotations

from pydra_nvidia.hardware import VfioHost
from pydra_nvidia.host.tree import Tree


def read_vfio_host(tree: Tree) -> VfioHost:
    """An IOMMU is on when the kernel has put devices into groups; iommufd has a device of its own."""
    return VfioHost(
        iommu=bool(tree.names(tree.sys("kernel/iommu_groups"))),
        iommufd=tree.exists(tree.here("/dev/iommu")),
    )
