"""Decides whether claims can have CPUs of a device, have lost none, and which faults its CPUs have. Pure.

Of several problems the worst is the device's health, and faults beside it are taints.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

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


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What a device's health follows from, beside its CPUs."""

    held: Sequence[HeldClaim] = ()
    online: frozenset[int] = frozenset()
    faults: Faults = Faults()
    problem: str = ""
    """Why no container can be restricted to CPUs now, if so."""


def diagnose(device: str, cpus: Sequence[Cpu], state: State, signals: Mapping[Signal, Reaction]) -> Assessment:
    """Return the health of the device with these CPUs, and the taints beside it; `signals` are other reactions."""
    unable = [*_find_inability(state), *_find_lost(device, state)]
    return assess(_find_faults(cpus, state.faults), signals, DEFAULT_REACTIONS, DRIVER, before=unable)


def _find_inability(state: State) -> Iterator[Health]:
    if state.problem:
        yield Health(status=HealthStatus.UNHEALTHY, reason="CannotPin", message=state.problem)


def _find_lost(device: str, state: State) -> Iterator[Health]:
    """A device with CPUs that are off-line is not tainted: these are not offered, and others may still get the rest."""
    for one in state.held:
        for allocated, share in zip(one.claim.devices, read_shares(one.plan), strict=False):
            lost = parse_cpu_list(share.taken) - state.online if share and allocated.device == device else ()
            if lost:
                message = (
                    f"CPU {format_cpu_list(lost)} of claim {one.claim.namespace}/{one.claim.name} is off-line; "
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
