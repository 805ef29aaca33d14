"""Plans which interfaces a claim gets, and how they are in its pod. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence

from pydra import AllocatedDevice, Claim, ClaimError, HeldClaim, Plan, TerminalError, UnknownDevice
from pydra_net.claim_config import NetworkConfig, get_field_name
from pydra_net.hardware_reader import Node
from pydra_net.hardware_types import Link
from pydra_net.held_claims import list_gives
from pydra_net.link_state import LinkState, find_state_in_pod, read_interface
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
    config = _find_config(device)
    _check_gateways(config, find_state_in_pod(interface, config))
    _check_parameters(config, link)
    return GiveInterface(
        device=device.device,
        before=interface,
        target=find_state_in_pod(interface, config),
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


def _find_config(device: AllocatedDevice) -> NetworkConfig:
    """The claim's configuration. Raises TerminalError for several, which might contradict each other."""
    configs = [one for one in device.configs if isinstance(one, NetworkConfig)]
    if len(configs) > 1:
        raise TerminalError(
            f"{len(configs)} configurations are for request {device.request}, those of its DeviceClass included; "
            "write them into one"
        )
    return configs[0] if configs else NetworkConfig()


def _check_parameters(config: NetworkConfig, link: Link) -> None:
    """Raise TerminalError for what the kernel would refuse when the pod begins."""
    for name, value in config.interface.list_parameters().items():
        field = get_field_name(name)
        if name not in link.parameters:
            raise TerminalError(f"interface.{field}: the node's kernel cannot set it for {link.name}; remove it")
        if name.startswith("gso") and value > link.most_gso:
            raise TerminalError(f"interface.{field}: found {value}, but {link.name} can have {link.most_gso} at most")


def _check_gateways(config: NetworkConfig, target: LinkState) -> None:
    """Raise TerminalError for a gateway that no address and no route without one leads to: the pod could not start."""
    networks = [ipaddress.ip_interface(one.address).network for one in target.addresses]
    networks += [ipaddress.ip_network(one.destination) for one in target.routes if not one.gateway]
    for place, route in enumerate(config.routes):
        gateway = ipaddress.ip_address(route.gateway) if route.gateway else None
        if gateway and not gateway.is_link_local and not any(gateway in network for network in networks):
            raise TerminalError(
                f"routes[{place}].gateway: found {gateway}, which is in no network of the interface "
                f"({', '.join(map(str, networks)) or 'it has no address'}); add an address, or a route with scope 253"
            )
