"""The health and taints of a device, from the verdicts on the hardware it is made of. Pure."""

from __future__ import annotations

from pydra_nvidia.health.verdicts import WELL, Verdict, weigh


def join_verdicts(*verdicts: Verdict) -> Verdict:
    """The gravest health, and all else that is said of any of it."""
    if all(verdict is WELL for verdict in verdicts):
        return WELL
    return weigh((verdict.health for verdict in verdicts), (taint for verdict in verdicts for taint in verdict.taints))
