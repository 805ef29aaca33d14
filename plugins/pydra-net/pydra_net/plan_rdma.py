"""Plans which RDMA devices a claim gets, with its interfaces or alone. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from pydra import AllocatedDevice, HeldClaim, TerminalError
from pydra_net.claim_checks import InterfaceBusy
from pydra_net.claim_config import NetworkConfig
from pydra_net.hardware_types import Node
from pydra_net.steps import GiveRdma, ShareInterface, Step
from pydra_net.steps_of_held_claims import list_rdma


def plan_rdma(
    claim_steps: Sequence[Step], devices: Sequence[AllocatedDevice], node: Node, held: Sequence[HeldClaim]
) -> list[GiveRdma]:
    """Return the RDMA devices of a claim's devices, whose interfaces are planned.

    Who has a share has no RDMA device if each is in one namespace only: the node's interface stays, with its own.

    Raises InterfaceBusy: another interface has the same RDMA device, and is in a pod.
    """
    shares = {one.device for one in claim_steps if isinstance(one, ShareInterface)}
    moves = node.reading.exclusive_rdma
    taken = {step.name: f"claim {one.claim}" for one in held for step in list_rdma((one,)) if step.moves}
    steps = []
    for device in devices:
        offered = node.rdma.get(device.device)
        if offered is None or device.admin_access or (moves and device.device in shares):
            continue
        name = offered.device.name
        if moves and name in taken:
            raise InterfaceBusy(
                f"{device.device} has the RDMA device {name}, which {taken[name]} has with another interface; it is "
                "free when that has ended"
            )
        taken[name] = "the same claim"
        steps.append(
            GiveRdma(
                device=device.device,
                share_id=device.share_id,
                name=name,
                nodes=offered.nodes,
                pci_address=offered.pci_address,
                moves=moves,
                alone=offered.alone,
            )
        )
    return steps


def is_alone(device: AllocatedDevice, node: Node) -> bool:
    """Whether a device is an RDMA device without an interface. Raises TerminalError if it is configured."""
    offered = node.rdma.get(device.device)
    if offered is None or not offered.alone:
        return False
    if any(one != NetworkConfig() for one in device.configs):
        raise TerminalError(
            f"{device.device} is the RDMA device {offered.device.name} without an interface, so there is nothing to "
            f"configure; remove the configuration of request {device.request}"
        )
    return True
