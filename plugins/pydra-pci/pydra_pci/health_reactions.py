"""How a backend reacts to problems of its hardware: values of a setting, and the health and taints that follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra import Health, HealthStatus, Taint, TaintEffect


class Reaction(Enum):
    """The reaction to a signal."""

    UNHEALTHY = "Unhealthy"
    """The device is unhealthy; its taint has the agent's effect (`--health-taint`)."""
    NO_SCHEDULE = "NoSchedule"
    """The device is unhealthy; its taint keeps new pods away."""
    NO_EXECUTE = "NoExecute"
    """The device is unhealthy; its taint also evicts the pods that use it."""
    NONE = "None"
    """The device is healthy; a taint with the effect `None` reports the signal."""
    IGNORE = "Ignore"
    """No reaction."""


_EFFECTS: Mapping[Reaction, TaintEffect | None] = {
    Reaction.UNHEALTHY: None,
    Reaction.NO_SCHEDULE: TaintEffect.NO_SCHEDULE,
    Reaction.NO_EXECUTE: TaintEffect.NO_EXECUTE,
    Reaction.NONE: TaintEffect.NONE,
}
"""The effect of the taint; None for the agent's own."""

_DEFAULT_EFFECT = TaintEffect.NO_SCHEDULE
"""The effect in place of the agent's own, which only the agent knows, where a taint must have one: its default."""


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """The health of a device; as taints, what else is wrong with it and what is reported only (effect None)."""

    health: Health = Health()
    taints: tuple[Taint, ...] = ()


class Finding(msgspec.Struct, frozen=True):
    """What a signal says. The taint has the name of the signal, unless `taint` is another one."""

    signal: Enum
    message: str
    value: str = ""
    taint: str = ""


_SEVERITY = {HealthStatus.HEALTHY: 0, HealthStatus.UNKNOWN: 1, HealthStatus.UNHEALTHY: 2}
_STRENGTH = {TaintEffect.NONE: 0, TaintEffect.NO_SCHEDULE: 1, TaintEffect.NO_EXECUTE: 2}


def assess(
    findings: Iterable[Finding],
    reactions: Mapping[Any, Reaction],
    defaults: Mapping[Any, Reaction],
    domain: str,
    *,
    before: Iterable[Health] = (),
) -> Assessment:
    """The assessment that follows from the findings, with taints below `domain/`.

    `reactions` are those that the admin chose, `defaults` all others, the worst signal first: the first that makes the
    device unhealthy is its health, unless it is unhealthy `before`.
    """
    unhealthy, informing, order = list(before), list[Taint](), list(defaults)
    for finding in sorted(findings, key=lambda one: order.index(one.signal)):
        reaction = reactions.get(finding.signal, defaults[finding.signal])
        key = f"{domain}/{finding.taint or finding.signal.value}"
        if reaction is Reaction.NONE:
            informing.append(Taint(key=key, value=finding.value, effect=TaintEffect.NONE))
        elif reaction is not Reaction.IGNORE:
            unhealthy.append(
                Health(
                    status=HealthStatus.UNHEALTHY,
                    message=finding.message,
                    reason=finding.value,
                    taint=key,
                    effect=_EFFECTS[reaction],
                )
            )
    return combine(unhealthy, informing)


def combine(healths: Iterable[Health], taints: Iterable[Taint]) -> Assessment:
    """The worst health, of two alike the first; the other unhealthy ones are taints beside it, if they have a key.

    A key is there once, with the strongest effect that it has anywhere.
    """
    found = tuple(healths)
    worst = max(found, key=lambda one: _SEVERITY[one.status], default=Health())
    unhealthy = (one for one in found if one.status is HealthStatus.UNHEALTHY and one.taint)
    strongest: dict[str, Taint] = {}
    for taint in (*map(_as_taint, unhealthy), *taints):
        known = strongest.get(taint.key)
        if known is None or _STRENGTH[taint.effect] > _STRENGTH[known.effect]:
            strongest[taint.key] = taint
    if worst.status is HealthStatus.UNHEALTHY:
        same = strongest.pop(worst.taint, None)
        if same is not None and _STRENGTH[same.effect] > _STRENGTH[worst.effect or _DEFAULT_EFFECT]:
            worst = replace(worst, effect=same.effect)
    return Assessment(health=worst, taints=tuple(strongest.values()))


def _as_taint(health: Health) -> Taint:
    return Taint(key=health.taint, value=health.reason, effect=health.effect or _DEFAULT_EFFECT)
