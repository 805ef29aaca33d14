"""What one allocation takes of a device's capacity (DRAConsumableCapacity). Pure.

Source: `consumable_capacity.go` of the structured allocator in k8s.io/dynamic-resource-allocation, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil

import msgspec

from pydra.message_text import list_names, suggest
from pydra_dev.api import schema
from pydra_dev.api.quantity import BINARY, format_quantity, parse_quantity


class Amount(msgspec.Struct, frozen=True):
    """An amount and how the API server writes it."""

    value: Fraction
    text: str


Share = Mapping[str, Amount]
"""By the name of each capacity of a device."""


class CapacityError(Exception):
    """The device cannot give what is asked for; the message says why, as in `has no capacity memory`."""


def plan_share(device: schema.Device, requested: Mapping[str, str], domain: str = "") -> Share:
    """What a request takes of every capacity of a device; raises CapacityError.

    What is not asked for is taken by the policy's default, or whole. This says nothing about what is left.
    With a `domain`, the driver's, names may be requested with and without it, as from Kubernetes 1.38 on.
    """
    if domain:
        requested = {_find_name(name, device, domain): amount for name, amount in requested.items()}
    missing = sorted(set(requested) - set(device.capacity))
    if missing:
        known = f", but {list_names(sorted(device.capacity))}" if device.capacity else ""
        raise CapacityError(f"has no capacity {missing[0]}{suggest(missing[0], device.capacity) or known}")
    return {name: _plan_amount(name, capacity, requested.get(name)) for name, capacity in device.capacity.items()}


def find_amount(amounts: Mapping[str, Fraction], name: str, domain: str) -> Fraction:
    """What is taken of a capacity, by either form of its name: an allocation has that of the scheduler that made it."""
    short = name.removeprefix(f"{domain}/")
    return sum((amounts.get(one, Fraction()) for one in {name, short, f"{domain}/{short}"}), Fraction())


def _find_name(name: str, device: schema.Device, domain: str) -> str:
    """The name that the device has, with the domain if it has both."""
    short = name.removeprefix(f"{domain}/")
    return next((one for one in (f"{domain}/{short}", short) if one in device.capacity), name)


def _plan_amount(name: str, capacity: schema.Capacity, asked: str | None) -> Amount:
    policy, whole = capacity.request_policy, parse_quantity(capacity.value)
    default = policy.default if policy is not None else None
    if asked is None:
        amount = _read(capacity.value if default is None else default)
    elif policy is None:
        amount = _read(asked)
    elif policy.valid_range is not None:
        amount = _round_to_range(_read(asked), policy.valid_range)
    else:
        amount = _round_to_values(_read(asked), policy.valid_values)
    if policy is not None and (default is None or amount.value != parse_quantity(default)):
        _refuse_violation(name, amount, policy)
    if amount.value > whole:
        raise CapacityError(f"has {capacity.value} {name}, {amount.text} is requested")
    return amount


def _read(text: str) -> Amount:
    return Amount(parse_quantity(text), text)


def _round_to_values(asked: Amount, values: tuple[schema.Quantity, ...]) -> Amount:
    return next((amount for amount in map(_read, values) if amount.value >= asked.value), asked)


def _round_to_range(asked: Amount, valid: schema.ValidRange) -> Amount:
    if valid.min is None:
        return asked
    low = _read(valid.min)
    if asked.value < low.value:
        return low
    if valid.step is None:
        return asked
    # The scheduler computes steps in whole numbers, and writes the result with binary suffixes.
    first, step = ceil(low.value), ceil(parse_quantity(valid.step))
    rounded = Fraction(first + -(-(ceil(asked.value) - first) // step) * step)
    return Amount(rounded, format_quantity(rounded, BINARY))


def _refuse_violation(name: str, amount: Amount, policy: schema.RequestPolicy) -> None:
    valid = policy.valid_range
    if valid is not None:
        if valid.max is not None and amount.value > parse_quantity(valid.max):
            raise CapacityError(f"gives at most {valid.max} {name} to one request, {amount.text} is requested")
        low = ceil(parse_quantity(valid.min)) if valid.min is not None else 0
        if valid.step is not None and (ceil(amount.value) - low) % ceil(parse_quantity(valid.step)):
            raise CapacityError(f"gives {name} in steps of {valid.step} only, {amount.text} is requested")
    elif policy.valid_values and amount.value not in map(parse_quantity, policy.valid_values):
        raise CapacityError(
            f"gives at most {policy.valid_values[-1]} {name} to one request, {amount.text} is requested"
        )
