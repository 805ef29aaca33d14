"""What the status of a claim says of its CPUs, and what its owner is warned of. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pydra import ClaimDeviceStatus, DeviceStatus, HeldClaim
from pydra_cpu.claim_plan import Share, read_shares
from pydra_cpu.cpu_list import format_cpu_list, parse_cpu_list
from pydra_cpu.pinning import Container, build_variable


def build_status(share: Share) -> DeviceStatus:
    """The CPUs that containers get, and the NUMA nodes of their memory."""
    return DeviceStatus(data={"cpus": share.cpus, **({"numaNodes": share.memory} if share.memory else {})})


def build_statuses(
    held: Sequence[HeldClaim], containers: Collection[Container], online: frozenset[int]
) -> Iterator[ClaimDeviceStatus]:
    """Yield the status of devices of which CPUs are off-line, or a container is throttled on CPUs of its own."""
    for one in held:
        claim, shares = one.claim, read_shares(one.plan)
        for device, share in zip(claim.devices, shares, strict=False):
            if share is None:
                continue
            variable = "=".join(build_variable(claim, shares, device.request))
            slow = [found for found in containers if variable in found.env and _is_throttled(found)]
            warnings = sorted(map(_explain, slow))
            if lost := parse_cpu_list(share.taken) - online:
                warnings.insert(0, _explain_lost(lost))
            if warnings:
                yield ClaimDeviceStatus(
                    claim_uid=claim.uid,
                    device=device.device,
                    share_id=device.share_id,
                    status=build_status(share),
                    warning="; ".join(warnings),
                )


def _explain_lost(cpus: Collection[int]) -> str:
    return (
        f"CPU {format_cpu_list(cpus)} of the claim is off-line, and its containers have the rest; bring it back, or "
        "delete the claim's pods, whose next claim has CPUs that are online"
    )


def _is_throttled(container: Container) -> bool:
    """Threads of it can use up its quota before the period ends only if there are CPUs for as many as that, or more."""
    return 0 < container.limit <= len(container.cpus)


def _explain(container: Container) -> str:
    return (
        f"{container} has limits.cpu {container.limit:g}, which throttles it on its own CPUs (of which there are "
        f"{len(container.cpus)}); remove limits.cpu of the container, its claim is the limit"
    )
