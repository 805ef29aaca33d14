"""Decides which devices may be used at once, by the compatibility groups of what they consume (KEP-5963)."""

from __future__ import annotations

from collections.abc import Iterable

from pydra.devices import CounterConsumption


def is_compatible(own: Iterable[CounterConsumption], others: Iterable[Iterable[CounterConsumption]]) -> bool:
    """Return whether a device may be used beside all others: none of a counter set has groups, or all share one."""
    beside = [consumption for other in others for consumption in other]
    for mine in own:
        common = set(mine.compatibility_groups)
        for theirs in beside:
            if theirs.counter_set != mine.counter_set:
                continue
            common &= set(theirs.compatibility_groups)
            if not common and (mine.compatibility_groups or theirs.compatibility_groups):
                return False
    return True
