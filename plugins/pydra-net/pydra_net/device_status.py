"""What the status of a claim says of its devices, with the conditions of DRANET. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from pydra import AllocatedDevice, Claim, ClaimDeviceStatus, Condition, DeviceStatus, HeldClaim, NetworkData
from pydra_net.dhcp.messages import Lease
from pydra_net.interface_state import InterfaceState
from pydra_net.steps import ConfigureFunction, GiveRdma
from pydra_net.steps_of_held_claims import list_of_device

_MOST_ADDRESSES = 16
_FAILED = "InterfaceNotAttached"
_WAITING = "the pod gets it when it has a network namespace"
_NO_ADDRESS = Condition(
    type="Ready",
    status=False,
    reason="WaitingForAddress",
    message="nobody has given it an address yet, by DHCP or SLAAC; containers do not start before that",
)


class PodState(msgspec.Struct, frozen=True, kw_only=True):
    """What of all claims is in a pod, by the keys of steps, or why not, and the addresses that they were given."""

    attached: frozenset[str] = frozenset()
    problems: Mapping[str, str] = {}
    leases: Mapping[str, Lease] = {}


def build_status(claim: Claim, device: AllocatedDevice, state: PodState) -> DeviceStatus | None:
    """The status of a claim's device, if it is given: whether it is in the pod, and how it is there."""
    conditions, data = [], None
    for step in list_of_device(claim, device):
        if isinstance(step, ConfigureFunction):
            continue
        problem, is_ready = state.problems.get(step.key, ""), step.key in state.attached
        if not isinstance(step, GiveRdma):
            lease = state.leases.get(step.key)
            data = _build_data(step.target, lease)
            if is_ready and not problem and step.target.is_given_addresses and lease is None:
                conditions.append(_NO_ADDRESS)
            else:
                conditions.append(_build_condition("Ready", "NetworkDeviceReady", problem, is_ready=is_ready))
        elif step.alone:
            is_ready |= not step.moves
            conditions.append(_build_condition("Ready", "RDMAOnlyDeviceReady", problem, is_ready=is_ready))
        elif step.moves:
            conditions.append(_build_condition("RDMALinkReady", "RDMALinkReady", problem, is_ready=is_ready))
    return DeviceStatus(conditions=tuple(conditions), network_data=data) if conditions else None


def _build_condition(name: str, reason: str, problem: str, *, is_ready: bool) -> Condition:
    if problem:
        return Condition(type=name, status=False, reason=_FAILED, message=problem)
    if not is_ready:
        return Condition(type=name, status=False, reason="WaitingForPod", message=_WAITING)
    return Condition(type=name, reason=reason)


def _build_data(target: InterfaceState, lease: Lease | None) -> NetworkData:
    configured = tuple(dict.fromkeys(one.address for one in target.addresses))[:_MOST_ADDRESSES]
    return NetworkData(
        interface_name=target.name, hardware_address=target.mac, ips=(lease.address,) if lease else configured
    )


def build_statuses(held: Sequence[HeldClaim], state: PodState) -> tuple[ClaimDeviceStatus, ...]:
    """The status of the devices of all claims that are prepared; a pod that could not get one is an Event, too."""
    return tuple(
        ClaimDeviceStatus(
            claim_uid=one.claim.uid,
            device=device.device,
            share_id=device.share_id,
            status=status,
            warning=next((each.message for each in status.conditions if each.reason == _FAILED), ""),
        )
        for one in held
        if one.completed and not one.left_over
        for device in one.claim.devices
        if (status := build_status(one.claim, device, state))
    )
