"""Decides whether claims can have CPUs of a device, have lost none, and which faults its CPUs have. Pure.

Of several problems the worst is the device's health, and faults beside it are taints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from pydra import Health, HealthStatus, HeldClaim, TaintEffect
from pydra_cpu.claim_plan import read_shares
from pydra_cpu.cpu_list import format_cpu_list, parse_cpu_list
from pydra_cpu.devices import DRIVER
from pydra_cpu.hardware_faults import Faults
from pydra_cpu.hardware_types import Cpu
from pydra_cpu.settings import Signal
from pydra_pci import Assessment, Finding, Reaction, assess

DEFAULT_REACTIONS: Mapping[Signal, Reaction] = {
    Signal.MACHINE_CHECK: Reaction.UNHEALTHY,
    Signal.THROTTLING: Reaction.NONE,
}
"""Worst first."""


def diagnose(
    device: str,
    cpus: Sequence[Cpu],
    *,
    held: Sequence[HeldClaim],
    online: frozenset[int],
    faults: Faults,
    problem: str,
    signals: Mapping[Signal, Reaction],
) -> Assessment:
    """Return the health of the device with these CPUs, and the taints beside it.

    `problem` says why no container can be restricted to CPUs now, if so; `signals` are other reactions.
    """
    unable = [Health(status=HealthStatus.UNHEALTHY, reason="CannotPin", message=problem)] if problem else []
    lost = _find_lost(device, held, online)
    return assess(_find_faults(cpus, faults), signals, DEFAULT_REACTIONS, DRIVER, before=[*unable, *lost])


def _find_lost(device: str, held: Sequence[HeldClaim], online: frozenset[int]) -> Iterator[Health]:
    """A device with CPUs that are off-line is not tainted: these are not offered, and others may still get the rest."""
    for one in held:
        for allocated, share in zip(one.claim.devices, read_shares(one.plan), strict=False):
            lost = parse_cpu_list(share.taken) - online if share and allocated.device == device else ()
            if lost:
                message = (
                    f"CPU {format_cpu_list(lost)} of claim {one.claim} is off-line; "
                    "bring it back, or delete the claim's pods"
                )
                yield Health(
                    status=HealthStatus.UNHEALTHY, reason="CpuOffline", message=message, effect=TaintEffect.NONE
                )


def _find_faults(cpus: Collection[Cpu], faults: Faults) -> Iterator[Finding]:
    own = {cpu.id for cpu in cpus}
    if checked := own & faults.machine_checks:
        text = "has had a machine check since the node's start; the kernel's log says more"
        yield Finding(Signal.MACHINE_CHECK, f"CPU {format_cpu_list(checked)} {text}")
    if throttled := own & faults.throttled:
        text = "is slowed down because of heat, or was within the last five minutes"
        yield Finding(Signal.THROTTLING, f"CPU {format_cpu_list(throttled)} {text}")
