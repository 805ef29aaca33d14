"""Decides whether claims can have CPUs of a device, and have lost none."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pydra import Health, HealthStatus, HeldClaim, TaintEffect
from pydra_cpu.claim_plan import read_shares
from pydra_cpu.cpu_list import format_cpu_list, parse_cpu_list


def diagnose(device: str, held: Sequence[HeldClaim], online: Collection[int], problem: str) -> Health:
    """Return the health of the device; `problem` says why no container can be restricted to CPUs now, if so.

    With CPUs that are off-line it is not tainted: these are not offered, and others may still get the rest.
    """
    if problem:
        return Health(status=HealthStatus.UNHEALTHY, reason="CannotPin", message=problem)
    for one in held:
        for allocated, share in zip(one.claim.devices, read_shares(one.plan), strict=False):
            lost = parse_cpu_list(share.taken) - frozenset(online) if share and allocated.device == device else ()
            if lost:
                message = (
                    f"CPU {format_cpu_list(lost)} of claim {one.claim.namespace}/{one.claim.name} is off-line; "
                    "bring it back, or delete the claim's pods"
                )
                return Health(
                    status=HealthStatus.UNHEALTHY, reason="CpuOffline", message=message, effect=TaintEffect.NONE
                )
    return Health()
