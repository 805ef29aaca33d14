"""What health means for devices, and how several assessments become one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from pydra import Health, HealthStatus, Taint, TaintEffect
from pydra_nvidia.hardware_types import Placement


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """How a piece of hardware is; as taints, what else is wrong with it and what only informs (effect None)."""

    health: Health = Health()
    taints: tuple[Taint, ...] = ()


WELL = Assessment()


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Assessments by GPU UUID, by partition (its GPU's UUID and place), by PCI address, and by the name of a device.

    What is missing is well.
    """

    gpus: Mapping[str, Assessment] = {}
    partitions: Mapping[tuple[str, Placement], Assessment] = {}
    functions: Mapping[str, Assessment] = {}
    devices: Mapping[str, Assessment] = {}


_SEVERITY = {HealthStatus.HEALTHY: 0, HealthStatus.UNKNOWN: 1, HealthStatus.UNHEALTHY: 2}
_STRENGTH = {TaintEffect.NONE: 0, TaintEffect.NO_SCHEDULE: 1, TaintEffect.NO_EXECUTE: 2}

_AGENTS = TaintEffect.NO_SCHEDULE
"""The effect where the agent's own is meant, which nobody but the agent knows: its default."""


def combine(healths: Iterable[Health], taints: Iterable[Taint]) -> Assessment:
    """The worst health, of two alike the first; the other unhealthy ones are taints beside it.

    A key is there once, with the strongest effect that it has anywhere.
    """
    found = tuple(healths)
    worst = max(found, key=lambda one: _SEVERITY[one.status], default=Health())
    others = (one for one in found if one is not worst and one.status is HealthStatus.UNHEALTHY)
    strongest: dict[str, Taint] = {}
    for taint in (*map(_as_taint, others), *taints):
        known = strongest.get(taint.key)
        if known is None or _STRENGTH[taint.effect] > _STRENGTH[known.effect]:
            strongest[taint.key] = taint
    if worst.status is HealthStatus.UNHEALTHY:
        same = strongest.pop(worst.taint, None)
        if same is not None and _STRENGTH[same.effect] > _STRENGTH[worst.effect or _AGENTS]:
            worst = replace(worst, effect=same.effect)
    return Assessment(health=worst, taints=tuple(strongest.values()))


def join_assessments(*assessments: Assessment) -> Assessment:
    """The assessment of a device from those of the hardware it is made of: the worst health, and all other taints."""
    if all(assessment is WELL for assessment in assessments):
        return WELL
    return combine((one.health for one in assessments), (taint for one in assessments for taint in one.taints))


def _as_taint(health: Health) -> Taint:
    return Taint(key=health.taint, value=health.reason, effect=health.effect or _AGENTS)
