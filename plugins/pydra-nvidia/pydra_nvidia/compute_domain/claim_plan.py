"""From a claim to its steps. Pure."""

from __future__ import annotations

from collections.abc import Collection

from pydra import Claim, Plan, TerminalError, UnknownDevice
from pydra_nvidia.compute_domain.claim_config import ComputeDomainDaemonConfig, find_config
from pydra_nvidia.compute_domain.steps import CHANNEL, DAEMON, MakeDomainDirectory


def plan_claim(claim: Claim, published: Collection[str]) -> Plan:
    """The steps of a claim for devices of this node. Raises UnknownDevice, InvalidConfig, TerminalError."""
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
            steps.append(MakeDomainDirectory(domain=config.domain))
    return Plan(steps=steps)
