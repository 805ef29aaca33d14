"""Debounces the health of a backend's devices, once: taints and what is reported to the kubelet follow from that.

The clock is an argument.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from pydra.devices import Health, HealthStatus, Inventory, TaintEffect


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
