"""Which devices of an inventory, and which two at once, claims could get. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import chain, combinations
from typing import TypeAlias

from pydra.devices import Device, HealthStatus, Inventory, TaintEffect
from pydra.inventory.api_rules import is_compatible
from pydra.quantity import parse_quantity

Counter: TypeAlias = tuple[str, str]
"""The names of a counter set and of a counter in it."""


def list_usable(inventory: Inventory) -> list[Device]:
    """Return the devices that a scheduler gives to claims."""
    return [
        one
        for one in inventory.devices
        if one.health.status is not HealthStatus.UNHEALTHY
        and all(taint.effect is TaintEffect.NONE for taint in one.taints)
    ]


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


def list_kinds(inventory: Inventory) -> list[Device]:
    """Return the first usable device of each kind, as far as one can tell: by what it has, shares and consumes."""
    kinds: dict[object, Device] = {}
    for one in list_usable(inventory):
        named = tuple(one.attributes.get(name) for name in ("type", "profile", inventory.partition_type))
        consumed = sorted(str(amount) for used in one.consumes_counters for amount in used.counters.values())
        has = frozenset(one.attributes), frozenset(one.capacity), one.allow_multiple_allocations
        kinds.setdefault((has, named, tuple(consumed)), one)
    return list(kinds.values())


def find_pair(inventory: Inventory, name: str = "") -> tuple[Device, Device] | None:
    """Return two usable devices, one of this name, that a scheduler could give to one claim; None if there are none.

    Parts of one thing come first: what a claim does for it, it may do once only.
    """
    available = {
        (one.name, name): parse_quantity(amount)
        for one in inventory.counter_sets
        for name, amount in one.counters.items()
    }
    usable, parts = list_usable(inventory), defaultdict[str, list[Device]](list)
    for device in usable:
        for counter_set in dict.fromkeys(one.counter_set for one in device.consumes_counters):
            parts[counter_set].append(device)
    pairs = chain.from_iterable(combinations(some, 2) for some in (*parts.values(), usable))
    return next((pair for pair in pairs if name in ("", pair[0].name, pair[1].name) and _fit(pair, available)), None)


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
