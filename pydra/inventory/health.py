"""Debounces the health of a backend's devices, and builds the pool to publish.

A device's health is debounced once; its taint and what is reported to the kubelet follow from that. Devices that break
the API's rules (`pydra.inventory.api_rules`) are left out. The clock is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from pydra.api_name_formats import is_label_key
from pydra.device_status import ClaimDeviceStatus
from pydra.devices import (
    Device,
    DeviceHealth,
    Health,
    HealthStatus,
    Inventory,
    Pool,
    Taint,
    TaintEffect,
)
from pydra.inventory.api_rules import TAINTS, validate_inventory


class HealthPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a device counts as unhealthy, and how it is tainted.

    A device becomes unhealthy when it was reported so for `unhealthy_after` seconds without interruption, and healthy
    again after `healthy_after` seconds. All devices are stale when `discover` has failed for `stale_after` seconds.
    An effect of None: no taint.
    """

    effect: TaintEffect | None
    unhealthy_after: float
    healthy_after: float
    stale_effect: TaintEffect | None
    stale_after: float


class HealthState(msgspec.Struct, frozen=True, kw_only=True):
    """One device's health: the debounced state, and since when the reports contradict it."""

    unhealthy: bool
    reported: Health
    cause: Health = Health()
    contradicted_since: float | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a backend's hardware.

    `unavailable` says, while `discover` fails, why nothing newer is known; `stale` says that this has lasted too long
    for new claims. `debounced_at` is when, on the clock of `observe`, a pending change of a device's health takes
    effect; None if there is none.
    """

    inventory: Inventory = Inventory()
    health_states: Mapping[str, HealthState] = {}
    debounced_at: float | None = None
    unavailable: str = ""
    stale: bool = False


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


def observe(snapshot: Snapshot, inventory: Inventory, *, now: float, policy: HealthPolicy) -> Snapshot:
    """Return the snapshot after the backend returned `inventory` at `now` (seconds of any monotonic clock).

    The same object if nothing has changed and no health change is pending.
    """
    if inventory == snapshot.inventory and snapshot.debounced_at is None and not snapshot.unavailable:
        return snapshot
    health_states: dict[str, HealthState] = {}
    due_times: list[float] = []
    for device in inventory.devices:
        state = _debounce(snapshot.health_states.get(device.name), device.health, now=now, policy=policy)
        health_states[device.name] = state
        if state.contradicted_since is not None:
            needed = policy.healthy_after if state.unhealthy else policy.unhealthy_after
            due_times.append(state.contradicted_since + needed)
    return Snapshot(inventory=inventory, health_states=health_states, debounced_at=min(due_times, default=None))


def mark_unavailable(snapshot: Snapshot, reason: str, *, stale: bool = False) -> Snapshot:
    """Return the snapshot while `discover` fails: the last inventory stays published, its health is unknown."""
    return replace(snapshot, unavailable=reason or "the backend is not running", stale=stale)


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
        state = snapshot.health_states.get(device.name)
        if state is not None and state.unhealthy and policy.effect is not None:
            own.append(_build_health_taint(device.name, state.cause, driver, policy.effect, problems))
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


def _debounce(before: HealthState | None, reported: Health, *, now: float, policy: HealthPolicy) -> HealthState:
    if before is None:  # a device that is unhealthy when it is first seen was unhealthy before: no claim may get it
        unhealthy = reported.status is HealthStatus.UNHEALTHY
        return HealthState(unhealthy=unhealthy, reported=reported, cause=reported if unhealthy else Health())
    contrary = HealthStatus.HEALTHY if before.unhealthy else HealthStatus.UNHEALTHY
    if reported.status is not contrary:
        cause = reported if before.unhealthy and reported.status is HealthStatus.UNHEALTHY else before.cause
        return HealthState(unhealthy=before.unhealthy, reported=reported, cause=cause)
    since = now if before.contradicted_since is None else before.contradicted_since
    if now - since >= (policy.healthy_after if before.unhealthy else policy.unhealthy_after):
        return HealthState(
            unhealthy=not before.unhealthy, reported=reported, cause=Health() if before.unhealthy else reported
        )
    return HealthState(unhealthy=before.unhealthy, reported=reported, cause=before.cause, contradicted_since=since)


def _build_health_taint(device: str, cause: Health, driver: str, effect: TaintEffect, problems: list[str]) -> Taint:
    key = cause.taint if "/" in cause.taint else f"{driver}/{cause.taint}"
    if not is_label_key(key):
        problems.append(f"device {device!r}: {key!r} is not a valid key of a taint; {driver}/unhealthy is used")
        key = f"{driver}/unhealthy"
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
    state = snapshot.health_states.get(device)
    if snapshot.unavailable or state is None:
        return DeviceHealth(
            pool=pool, device=device, status=HealthStatus.UNKNOWN, message=snapshot.unavailable or "not yet reported"
        )
    if state.reported.status is HealthStatus.UNKNOWN:
        return DeviceHealth(pool=pool, device=device, status=HealthStatus.UNKNOWN, message=state.reported.message)
    if not state.unhealthy:
        message = state.reported.message if state.reported.status is HealthStatus.HEALTHY else ""
        return DeviceHealth(pool=pool, device=device, status=HealthStatus.HEALTHY, message=message)
    cause = state.cause
    return DeviceHealth(
        pool=pool, device=device, status=HealthStatus.UNHEALTHY, message=cause.message, problem=cause.taint
    )


def _label_value(word: str) -> str:
    """Convert the word to a label value: invalid characters become a dash."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", word)[:63].strip("-_.")
