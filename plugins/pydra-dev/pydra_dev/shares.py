"""Consumable capacity: how much of a shared device a request takes. Pure.

Source: the structured allocator's consumable capacity, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil

from pydra_dev import schema
from pydra_dev.quantity import parse_quantity


def plan_share(device: schema.Device, requested: Mapping[str, str]) -> Mapping[str, Fraction] | None:
    """What the request takes of every capacity of the device; None when the device cannot give it.

    What is not asked for is taken by the policy's default, or whole.
    """
    if set(requested) - set(device.capacity):
        return None
    share: dict[str, Fraction] = {}
    for name, capacity in device.capacity.items():
        asked = parse_quantity(requested[name]) if name in requested else None
        amount = _round(capacity, asked)
        if amount is None or amount > parse_quantity(capacity.value):
            return None
        share[name] = amount
    return share


def _round(capacity: schema.Capacity, asked: Fraction | None) -> Fraction | None:
    policy = capacity.request_policy
    default = parse_quantity(policy.default) if policy is not None and policy.default is not None else None
    if asked is None:
        return parse_quantity(capacity.value) if default is None else default
    if policy is None or asked == default:
        return asked
    if policy.valid_values:
        fitting = [value for value in map(parse_quantity, policy.valid_values) if value >= asked]
        return min(fitting, default=None)
    return asked if policy.valid_range is None else _round_to_range(policy.valid_range, asked)


def _round_to_range(valid: schema.ValidRange, asked: Fraction) -> Fraction | None:
    low = parse_quantity(valid.min) if valid.min is not None else Fraction(0)
    amount = max(asked, low)
    if valid.step is not None:
        step = parse_quantity(valid.step)
        amount = low + ceil((amount - low) / step) * step
    if valid.max is not None and amount > parse_quantity(valid.max):
        return None
    return amount
