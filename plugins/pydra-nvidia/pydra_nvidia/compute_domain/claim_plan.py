"""From a claim to its steps. Pure."""

from __future__ import annotations

from collections.abc import Collection

from pydra import Claim, Plan, TerminalError, UnknownDevice
from pydra_nvidia.compute_domain.claim_config import ComputeDomainDaemonConfig, find_config
from pydra_nvidia.compute_domain.steps import CHANNEL, DAEMON, MakeDomainDirectory


class DaemonOfOtherNamespace(TerminalError):
    """The claim is not one of the controller of ComputeDomains."""

    reason = "DaemonOfOtherNamespace"


def plan_claim(claim: Claim, published: Collection[str], daemon_namespace: str = "") -> Plan:
    """The steps of a claim for devices of this node. Only claims of `daemon_namespace`, if it is set, have a daemon.

    Raises UnknownDevice, InvalidConfig, DaemonOfOtherNamespace, TerminalError.
    """
    if {one.device for one in claim.devices} == {CHANNEL, DAEMON}:
        raise TerminalError(f"{CHANNEL} waits for {DAEMON}, so no claim can have both; make two")
    steps = []
    for device in claim.devices:
        if device.device not in published:
            raise UnknownDevice(f"there is no {device.device} on this node, only {', '.join(published)}")
        config = find_config(device)
        if isinstance(config, ComputeDomainDaemonConfig):
            if device.admin_access:
                raise TerminalError(f"{DAEMON} is not available with adminAccess: a node runs one IMEX daemon")
            if daemon_namespace not in ("", claim.namespace):
                raise DaemonOfOtherNamespace(
                    f"{DAEMON} is for claims of the namespace {daemon_namespace}, where the controller of"
                    f" ComputeDomains runs, and this claim is of {claim.namespace}; for a channel, use the"
                    " ResourceClaimTemplate that a ComputeDomain names in spec.channel.resourceClaimTemplate"
                )
            steps.append(MakeDomainDirectory(domain=config.domain))
    return Plan(steps=steps)
