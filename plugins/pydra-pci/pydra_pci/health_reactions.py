"""How a backend reacts to a problem of its hardware: values of a setting, and what they mean for health and taints."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from pydra import Health, Taint, TaintEffect


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


EFFECTS: Mapping[Reaction, TaintEffect | None] = {
    Reaction.UNHEALTHY: None,
    Reaction.NO_SCHEDULE: TaintEffect.NO_SCHEDULE,
    Reaction.NO_EXECUTE: TaintEffect.NO_EXECUTE,
    Reaction.NONE: TaintEffect.NONE,
}
"""The effect of the taint; None for the agent's own."""

DEFAULT_EFFECT = TaintEffect.NO_SCHEDULE
"""The effect in place of the agent's own, which only the agent knows, where a taint must have one: its default."""


class Assessment(msgspec.Struct, frozen=True, kw_only=True):
    """The health of a device; as taints, what else is wrong with it and what is reported only (effect None)."""

    health: Health = Health()
    taints: tuple[Taint, ...] = ()
