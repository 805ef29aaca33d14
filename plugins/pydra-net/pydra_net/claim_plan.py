"""Plans which interfaces a claim gets, and how they are in its pod. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from pydra import AllocatedDevice, Claim, ClaimError, HeldClaim, Plan, TerminalError, UnknownDevice
from pydra_net.claim_checks import check_addresses, check_gateways, check_parameters, check_pod, check_share
from pydra_net.claim_config import NetworkConfig
from pydra_net.ethtool_names import list_present, resolve_ethtool
from pydra_net.hardware_types import Node
from pydra_net.interface_state import read_interface
from pydra_net.network_types import Ethtool, Link
from pydra_net.plan_rdma import is_alone, plan_rdma
from pydra_net.plan_share import is_virtual, plan_share
from pydra_net.plan_virtual_function import plan_function
from pydra_net.steps import (
    IDENTITY,
    ConfigureFunction,
    GiveInterface,
    GiveRdma,
    InterfaceStep,
    ShareInterface,
    Step,
    digest_claim,
)
from pydra_net.steps_of_held_claims import list_holders
from pydra_net.wanted_state_in_pod import find_state_in_pod


class InterfaceProtected(ClaimError):
    """The interface cannot be given away: the node needs it, or it cannot be moved."""

    reason = "InterfaceProtected"


def plan_claim(claim: Claim, held: Sequence[HeldClaim], node: Node, find_pci_address: Callable[[Link], str]) -> Plan:
    """Return the claim's interfaces as steps.

    Raises:
        UnknownDevice: the node does not have such an interface.
        InterfaceProtected: the node needs it now.
        TerminalError: two interfaces of the pod would have the same name, or the configuration does not fit.
    """
    steps: list[InterfaceStep] = []
    functions: list[ConfigureFunction] = []
    for device in claim.devices:
        if not device.admin_access and not is_alone(device, node):
            steps.append(_plan_device(claim, device, list_holders(held, steps), node, find_pci_address))
            functions += plan_function(device.device, _find_config(device), node.functions.get(device.device))
    check_pod(claim, steps, held)
    # The functions last, so that they are undone first: some drivers do not let a function have its own address before.
    return Plan(steps=[*steps, *plan_rdma(steps, claim.devices, node, held), *functions])


def list_with_ethtool(claim: Claim) -> list[str]:
    """The devices whose settings of ethtool must be known for the plan."""
    return [one.device for one in claim.devices if _find_config(one).ethtool is not None]


def list_with_functions(claim: Claim) -> list[str]:
    """The devices of which must be known what their cards do with them."""
    configs = ((one.device, _find_config(one).interface) for one in claim.devices)
    return [device for device, wanted in configs if wanted.vf is not None or wanted.hardware_addr is not None]


def _plan_device(
    claim: Claim,
    device: AllocatedDevice,
    others: Sequence[tuple[InterfaceStep, str]],
    node: Node,
    find_pci_address: Callable[[Link], str],
) -> InterfaceStep:
    config = _find_config(device)
    if is_virtual(device, config, is_shared=device.device in node.shared):
        share = plan_share(claim.uid, device, config, find_parent(device.device, device.share_id, node))
        check_share(share, node.reading, others)
        check_gateways(config, share.target)
        check_parameters(config, share.parent, share.target)
        return share
    link = find_link(device.device, node)
    if config.interface.addressing == "Unnumbered":
        raise TerminalError("interface.addressing: found Unnumbered, which is for virtual interfaces; set a type")
    interface = read_interface(node, device.device, link)
    ethtool = None
    if config.ethtool is not None:
        found = node.ethtool.get(device.device, Ethtool())
        ethtool = resolve_ethtool(config.ethtool, found, link.name)
        features, flags = list_present(ethtool, found)
        interface = replace(interface, features=features, private_flags=flags)
    target = find_state_in_pod(interface, config, ethtool)
    check_addresses(target, node.reading, link.index)
    check_gateways(config, target)
    check_parameters(config, link, target)
    return GiveInterface(
        device=device.device,
        before=interface,
        target=target,
        pci_address=find_pci_address(link),
        identity=digest_claim(claim.uid, device.device, None)[:IDENTITY],
    )


def check_offered(step: Step, node: Node) -> None:
    """Check what may have changed since the plan. Raises UnknownDevice, InterfaceProtected."""
    if isinstance(step, GiveRdma | ConfigureFunction):
        return  # it is offered as its interface is
    if isinstance(step, ShareInterface):
        find_parent(step.device, step.share_id, node)
    elif step.device in node.names.values() or any(map(step.is_of, node.reading.links)):
        find_link(step.device, node)


def find_parent(device: str, share_id: str | None, node: Node) -> Link:
    """Return the link on which a claim's is made. Raises UnknownDevice, InterfaceProtected."""
    if device in node.shared:
        return node.devices[device]
    link = find_link(device, node)
    if share_id is not None:
        raise InterfaceProtected(f"{link.name} ({device}) is not offered in shares any more; delete the pod")
    if link.master:
        raise InterfaceProtected(f"{link.name} ({device}) is a part of another interface; none can be made on it")
    return link


def find_link(device: str, node: Node) -> Link:
    """Return the link of a device. Raises UnknownDevice, InterfaceProtected."""
    for index, name in node.names.items():
        if name == device and (link := node.reading.find(index)):
            if index in node.protected:
                raise InterfaceProtected(f"{link.name} ({device}) {node.protected[index]}; it is not given to pods")
            if device in node.shared:
                raise InterfaceProtected(f"{link.name} ({device}) is offered in shares now; delete the pod")
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
