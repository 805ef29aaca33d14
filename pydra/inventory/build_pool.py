"""Builds the pool to publish from what is known about a backend's hardware.

Devices that break the API's rules (`pydra.inventory.api_rules`) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
from msgspec.structs import replace

from pydra.api_name_formats import is_label_key
from pydra.devices import (
    HEALTHY,
    ClaimDeviceStatus,
    Device,
    DeviceHealth,
    Health,
    HealthStatus,
    Pool,
    Taint,
    TaintEffect,
)
from pydra.inventory.api_rules import TAINTS, validate_inventory
from pydra.inventory.health_debounce import HealthPolicy, Snapshot


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from a snapshot: the pool, the health of its devices, and what was left out, as text.

    `dropped` has each device that breaks the API's rules, `problems` counter sets, taints and statuses that do;
    `unreadable` is what the backend could not read, `claim_statuses` what it says of devices of held claims. `known` is
    false for an empty pool that removes what an earlier run published, of which nothing is known.
    """

    pool: Pool
    health: tuple[DeviceHealth, ...] = ()
    dropped: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    claim_statuses: tuple[ClaimDeviceStatus, ...] = ()
    known: bool = True


def stale_key(driver: str) -> str:
    """Return the key of the taint of stale devices."""
    return f"{driver}/stale"


def build_pool(
    snapshot: Snapshot,
    *,
    driver: str,
    pool: str,
    policy: HealthPolicy,
    quarantined: Mapping[str, str] = {},
) -> Published:
    """Build the pool named `pool` (by convention the node's name), in the inventory's order.

    `quarantined` maps devices whose claims crash the backend to a reason in one word; they are tainted, too.
    """
    valid = validate_inventory(snapshot.inventory)
    problems = list(valid.problems)
    devices: list[Device] = []
    for device in valid.devices:
        own: list[Taint] = []
        state = snapshot.health_states[device.name]
        if state.unhealthy and policy.effect is not None:
            own.append(_build_health_taint(state.cause, driver, policy.effect))
        if snapshot.stale and policy.stale_effect is not None:
            own.append(Taint(key=stale_key(driver), effect=policy.stale_effect))
        if device.name in quarantined:
            value = _label_value(quarantined[device.name])
            own.append(Taint(key=f"{driver}/quarantined", value=value, effect=TaintEffect.NO_SCHEDULE))
        devices.append(_taint(device, own, problems) if own else device)
    return Published(
        pool=Pool(
            name=pool,
            devices=tuple(devices),
            counter_sets=valid.counter_sets,
            partition_type=valid.partition_type,
        ),
        health=tuple(_build_health(pool, device.name, snapshot) for device in devices),
        dropped=valid.dropped,
        problems=tuple(problems),
        unreadable=snapshot.inventory.unreadable,
        claim_statuses=valid.claim_statuses,
    )


def _build_health_taint(cause: Health, driver: str, effect: TaintEffect) -> Taint:
    name = cause.taint if is_label_key(cause.taint) else HEALTHY.taint
    key = name if "/" in name else f"{driver}/{name}"
    return Taint(key=key, value=_label_value(cause.reason), effect=cause.effect or effect)


def _taint(device: Device, own: Sequence[Taint], problems: list[str]) -> Device:
    keys = {taint.key for taint in own}
    theirs = tuple(taint for taint in device.taints if taint.key not in keys)
    allowed = TAINTS - len(own)
    if len(theirs) > allowed:
        left_out = ", ".join(taint.key for taint in theirs[allowed:])
        problems.append(f"device {device.name!r}: at most {TAINTS} taints are allowed; left out: {left_out}")
    return replace(device, taints=(*own, *theirs[:allowed]))


def _build_health(pool: str, device: str, snapshot: Snapshot) -> DeviceHealth:
    state, build = snapshot.health_states[device], partial(DeviceHealth, pool=pool, device=device)
    if snapshot.unavailable:
        return build(status=HealthStatus.UNKNOWN, message=snapshot.unavailable)
    reported, cause = state.reported, state.cause
    if reported.status is HealthStatus.UNKNOWN:
        return build(status=HealthStatus.UNKNOWN, message=reported.message or reported.reason)
    if not state.unhealthy:
        message = reported.message if reported.status is HealthStatus.HEALTHY else ""
        return build(status=HealthStatus.HEALTHY, message=message)
    return build(status=HealthStatus.UNHEALTHY, message=cause.message or cause.reason, problem=cause.taint)


def _label_value(word: str) -> str:
    """Convert the word to a label value: invalid characters become a dash."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", word)[:63].strip("-_.")
