"""A pool as it can be published where feature gates are off: without their fields, and without devices unsafe then.

Pure. A device is never published with less than keeps claims apart: what draws on counters must fit beside everything
else that is published, and what a taint or a condition keeps pods from is left out while the server drops it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from typing import Any

import msgspec
from msgspec.structs import replace

from pydra.devices import Capacity, Device, Pool, TaintEffect
from pydra.quantity import parse_quantity

PARTITIONS = "DRAPartitionableDevices"
TAINTS = "DRADeviceTaints"
SHARES = "DRAConsumableCapacity"
BINDING = "DRADeviceBindingConditions"
LISTS = "DRAListTypeAttributes"
_GATES = frozenset((PARTITIONS, TAINTS, SHARES, BINDING, LISTS))


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """What is published, and the names of the devices that are not, in the pool's order."""

    pool: Pool
    withheld: tuple[str, ...] = ()


def needs_gates(device: Device) -> bool:
    """Whether a server may drop fields of the device."""
    return _reduce(device, _GATES) != device


def fall_back(pool: Pool, gates: Collection[str]) -> Fallback:
    """The pool for a server with these gates off.

    Of the devices that draw on counters as many are published, in their order, as the counters have room for all at
    once: any of them may then be given out beside any others. A backend that names whole boards first keeps those.
    """
    if not gates:
        return Fallback(pool=pool)
    fitting = set(_fit(pool)) if PARTITIONS in gates else {device.name for device in pool.devices}
    published = [
        _reduce(device, gates)
        for device in pool.devices
        if device.name in fitting
        and not (TAINTS in gates and _keeps_pods_away(device))
        and not (BINDING in gates and device.binding_conditions)
    ]
    names = {device.name for device in published}
    return Fallback(
        pool=replace(pool, devices=tuple(published), counter_sets=() if PARTITIONS in gates else pool.counter_sets),
        withheld=tuple(device.name for device in pool.devices if device.name not in names),
    )


def has_lists(content: Mapping[str, Any]) -> bool:
    """Whether any device of a slice has a list attribute."""
    return any(
        kind in value
        for device in content.get("devices") or ()
        for value in (device.get("attributes") or {}).values()
        for kind in ("ints", "bools", "strings", "versions")
    )


def _keeps_pods_away(device: Device) -> bool:
    return any(taint.effect is not TaintEffect.NONE for taint in device.taints)


def _fit(pool: Pool) -> Iterator[str]:
    left = {
        (one.name, counter): parse_quantity(value)
        for one in pool.counter_sets
        for counter, value in one.counters.items()
    }
    for device in pool.devices:
        wanted = _consumption(device)
        if all(left.get(counter, Fraction(0)) >= amount for counter, amount in wanted.items()):
            for counter, amount in wanted.items():
                left[counter] -= amount
            yield device.name


def _consumption(device: Device) -> Mapping[tuple[str, str], Fraction]:
    return {
        (one.counter_set, counter): parse_quantity(value)
        for one in device.consumes_counters
        for counter, value in one.counters.items()
    }


def _reduce(device: Device, gates: Collection[str]) -> Device:
    """The device without what the server would drop."""
    if PARTITIONS in gates:
        device = replace(device, consumes_counters=())
    if TAINTS in gates:
        device = replace(device, taints=())
    if BINDING in gates:
        device = replace(device, binds_to_node=False, binding_conditions=(), binding_failure_conditions=())
    if SHARES in gates:
        capacity = {name: Capacity(one.value) for name, one in device.capacity.items()}
        device = replace(device, allow_multiple_allocations=False, capacity=capacity)
    if LISTS in gates:
        attributes = {name: value for name, value in device.attributes.items() if not isinstance(value, tuple)}
        device = replace(device, attributes=attributes)
    return device
