"""What conformance checks read from answers: changes, counters, and which devices claims could have. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from typing import TypeAlias

from pydra.claim import Claim
from pydra.devices import Device, HealthStatus, Inventory
from pydra.inventory.compatibility_groups import is_compatible
from pydra.quantity import parse_quantity

Counter: TypeAlias = tuple[str, str]
"""The names of a counter set and of a counter in it."""


def find_changes(before: Sequence[Device], after: Sequence[Device]) -> list[str]:
    """Return how two answers of `discover` differ; the order counts only if nothing else differs."""
    old, new = ({device.name: device for device in devices} for devices in (before, after))
    changes = [f"device {name} is gone" for name in sorted(old.keys() - new.keys())]
    changes += [f"device {name} is new" for name in sorted(new.keys() - old.keys())]
    for name in sorted(old.keys() & new.keys()):
        changes += [f"device {name}: {change}" for change in _compare(old[name], new[name])]
    if not changes and list(old) != list(new):
        changes.append("the devices come in another order")
    return changes


def _compare(before: Device, after: Device) -> Iterator[str]:
    """Yield what differs, single attributes and capacities by name."""
    for what in ("attributes", "capacity"):
        old, new = getattr(before, what), getattr(after, what)
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                yield f"{what}: {name} changed from {old.get(name)!r} to {new.get(name)!r}"
    for field in ("consumes_counters", "allow_multiple_allocations", "node_allocatable"):
        if getattr(before, field) != getattr(after, field):
            yield f"{field} changed from {getattr(before, field)} to {getattr(after, field)}"


def find_plan_changes(first: Claim, again: Claim) -> list[str]:
    """Return how two answers of `plan` for one claim differ, each step by its place."""
    changes = [] if first.plan == again.plan else [f"plan answered {first.plan!r}, then {again.plan!r}"]
    if len(first.steps) != len(again.steps):
        changes.append(f"plan answered {len(first.steps)} steps, then {len(again.steps)}")
    for place, (one, other) in enumerate(zip(first.steps, again.steps, strict=False)):
        if one != other:
            changes.append(f"plan: steps[{place}] was {one.step!r}, then {other.step!r}")
    return changes


def list_usable(inventory: Inventory) -> list[Device]:
    """Return the devices that a scheduler gives to claims."""
    return [one for one in inventory.devices if one.health.status is not HealthStatus.UNHEALTHY and not one.taints]


def find_unaffordable(inventory: Inventory) -> list[str]:
    """Return which devices need more of a counter than there is; names and sets are `discover`'s to obey."""
    sets = {one.name: one.counters for one in inventory.counter_sets}
    return [
        f"device {device.name} needs {amount} of counter {name} of set {one.counter_set}, which has {available}"
        for device in inventory.devices
        for one in device.consumes_counters
        for name, amount in one.counters.items()
        if (available := sets.get(one.counter_set, {}).get(name)) is not None
        and parse_quantity(amount) > parse_quantity(available)
    ]


def find_pair(inventory: Inventory) -> tuple[Device, Device] | None:
    """Return two usable devices that a scheduler could give to one claim; None if there are none."""
    available = {
        (one.name, name): parse_quantity(amount)
        for one in inventory.counter_sets
        for name, amount in one.counters.items()
    }
    pairs = combinations(list_usable(inventory), 2)
    return next((pair for pair in pairs if _fit(pair, available)), None)


def _fit(pair: tuple[Device, Device], available: Mapping[Counter, Fraction]) -> bool:
    """Return whether both can be used at once."""
    return is_compatible(pair[0].consumes_counters, [pair[1].consumes_counters]) and all(
        need <= available[key] for key, need in _add_up(pair).items()
    )


def _add_up(devices: Sequence[Device]) -> Mapping[Counter, Fraction]:
    """Return what the devices take of each counter."""
    needs: defaultdict[Counter, Fraction] = defaultdict(Fraction)
    for device in devices:
        for one in device.consumes_counters:
            for name, amount in one.counters.items():
                needs[one.counter_set, name] += parse_quantity(amount)
    return needs
