"""What containers get for a device: the device nodes of its RDMA device."""

from __future__ import annotations

from pydra import ContainerEdits, DeviceNode
from pydra_net.steps import GiveRdma
from pydra_pci import Tree


def edits(step: GiveRdma, tree: Tree) -> ContainerEdits:
    """What containers get that name the claim; nodes that the node lacks now fail the claim."""
    nodes = (DeviceNode(path=path, host_path=tree.host_node(path), permissions="rw") for path in step.nodes)
    return ContainerEdits(device_nodes=tuple(nodes))
