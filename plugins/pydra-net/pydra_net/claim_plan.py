"""Plans which interfaces a claim gets, and how they are in its pod. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydra import AllocatedDevice, Claim, ClaimError, HeldClaim, Plan, TerminalError, UnknownDevice
from pydra_net.hardware_reader import Node
from pydra_net.hardware_types import Link
from pydra_net.held_claims import list_gives
from pydra_net.link_state import find_state_in_pod, read_interface
from pydra_net.steps import GiveInterface

POD_INTERFACE = "eth0"
"""The name that container runtimes give to the interface of the pod network."""


class InterfaceProtected(ClaimError):
    """The interface cannot be given away: the node needs it, or it cannot be moved."""

    reason = "InterfaceProtected"


def plan_claim(claim: Claim, held: Sequence[HeldClaim], node: Node, find_pci_address: Callable[[Link], str]) -> Plan:
    """Return the claim's interfaces as steps.

    Raises:
        UnknownDevice: the node does not have such an interface.
        InterfaceProtected: the node needs it now.
        TerminalError: two interfaces of the pod would have the same name.
    """
    steps = [_plan_device(device, node, find_pci_address) for device in claim.devices if not device.admin_access]
    names = {POD_INTERFACE: "the interface of the pod network"}
    for other in held:
        if other.claim.pod == claim.pod and not other.left_over:
            for step in list_gives((other,)):
                names[step.target.name] = f"an interface of claim {other.claim.namespace}/{other.claim.name}"
    for step in steps:
        name = step.target.name
        if name in names:
            raise TerminalError(
                f"{step.device} would have the name {name} in the pod, which {names[name]} has; set another "
                "interface.name in the claim's configuration"
            )
        names[name] = f"{step.device} of the same claim"
    return Plan(steps=steps)


def _plan_device(device: AllocatedDevice, node: Node, find_pci_address: Callable[[Link], str]) -> GiveInterface:
    link = find_link(device.device, node)
    interface = read_interface(node.reading, link)
    return GiveInterface(
        device=device.device,
        before=interface,
        target=find_state_in_pod(interface),
        pci_address=find_pci_address(link),
    )


def find_link(device: str, node: Node) -> Link:
    """Return the link of a device. Raises UnknownDevice, InterfaceProtected."""
    for index, name in node.names.items():
        if name == device and (link := node.reading.find(index)):
            if index in node.protected:
                raise InterfaceProtected(f"{link.name} ({device}) {node.protected[index]}; it is not given to pods")
            return link
    raise UnknownDevice(f"the node has no interface {device} now; delete the pod to get another")
