"""What the status of a claim says of its interfaces, with the conditions of DRANET. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydra import ClaimDeviceStatus, Condition, DeviceStatus, HeldClaim, NetworkData
from pydra_net.dhcp.messages import Lease
from pydra_net.held_claims import list_interfaces
from pydra_net.link_state import LinkState

_MOST_ADDRESSES = 16


def build_status(target: LinkState, *, attached: bool, problem: str = "", lease: Lease | None = None) -> DeviceStatus:
    """The status of an interface: whether it is in the pod, and how it is there, with the address that DHCP gave it."""
    if problem:
        ready = Condition(type="Ready", status=False, reason="InterfaceNotAttached", message=problem)
    elif attached and target.dhcp and lease is None:
        message = "no DHCP server has answered yet; containers do not start before that"
        ready = Condition(type="Ready", status=False, reason="WaitingForAddress", message=message)
    elif attached:
        ready = Condition(type="Ready", reason="NetworkDeviceReady")
    else:
        message = "the pod gets the interface when it has a network namespace"
        ready = Condition(type="Ready", status=False, reason="WaitingForPod", message=message)
    data = NetworkData(
        interface_name=target.name,
        hardware_address=target.mac,
        ips=(lease.address,)
        if lease
        else tuple(dict.fromkeys(one.address for one in target.addresses))[:_MOST_ADDRESSES],
    )
    return DeviceStatus(conditions=(ready,), network_data=data)


def build_statuses(
    held: Sequence[HeldClaim], attached: frozenset[str], problems: Mapping[str, str], leases: Mapping[str, Lease]
) -> tuple[ClaimDeviceStatus, ...]:
    """The status of the interfaces of all claims that are prepared.

    By keys of steps: those that are in a pod, or why not, and what DHCP gave them.
    """
    return tuple(
        ClaimDeviceStatus(
            claim_uid=one.claim.uid,
            device=step.device,
            share_id=step.share_id,
            status=build_status(
                step.target,
                attached=step.key in attached,
                problem=problems.get(step.key, ""),
                lease=leases.get(step.key),
            ),
        )
        for one in held
        if one.completed and not one.left_over
        for step in list_interfaces((one,))
    )
