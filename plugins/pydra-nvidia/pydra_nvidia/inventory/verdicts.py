"""The health and taints of a device, from the verdicts on the hardware it is made of. Pure."""

from __future__ import annotations

from pydra import HealthStatus, Taint
from pydra_nvidia.health.verdicts import WELL, Verdict

_GRAVITY = {HealthStatus.HEALTHY: 0, HealthStatus.UNKNOWN: 1, HealthStatus.UNHEALTHY: 2}


def join_verdicts(*verdicts: Verdict) -> Verdict:
    """The gravest health, of two alike the first; all taints, of one key the first."""
    if all(verdict is WELL for verdict in verdicts):
        return WELL
    gravest = max(verdicts, key=lambda verdict: _GRAVITY[verdict.health.status])
    taints: dict[str, Taint] = {}
    for taint in (taint for verdict in verdicts for taint in verdict.taints):
        taints.setdefault(taint.key, taint)
    return Verdict(health=gravest.health, taints=tuple(taints.values()))
