"""From what a backend says of its hardware to the pool that is published. Pure: the clock is an argument.

What the API server would refuse is dropped here, device by device, each with a text that says why, so
that one bad device never costs the others. A device's health is settled (debounced) once, and both its
taint and what the kubelet hears follow from that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from pydra.device_rules import TAINTS, check_counter_set, check_device, check_references, is_label_key
from pydra.devices import (
    CounterSet,
    Device,
    DeviceHealth,
    Health,
    HealthStatus,
    Inventory,
    Pool,
    Taint,
    TaintEffect,
)

Named = TypeVar("Named", Device, CounterSet)


class HealthPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a device counts as sick, and what then.

    `effect` None: no taint. Sick after being unhealthy for `unhealthy_after` seconds without a break, well again
    after being healthy for `healthy_after` seconds without a break.
    """

    effect: TaintEffect | None = TaintEffect.NO_SCHEDULE
    unhealthy_after: float = 0.0
    healthy_after: float = 30.0


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one device's health: the settled state, and since when the reports contradict it."""

    sick: bool
    reported: Health
    cause: Health = Health()
    contradicted_since: float | None = None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a backend's hardware. `lost` says, while the backend is down, why nothing newer is known."""

    inventory: Inventory = Inventory()
    sightings: Mapping[str, Sighting] = {}
    lost: str = ""


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from a snapshot: the pool, the health of its devices, and what was left out, in words."""

    pool: Pool
    health: tuple[DeviceHealth, ...]
    problems: tuple[str, ...]


def observe(snapshot: Snapshot, inventory: Inventory, *, now: float, policy: HealthPolicy) -> Snapshot:
    """The snapshot after the backend answered `inventory` at `now` (seconds of any steady clock)."""
    sightings = {
        device.name: _settle(snapshot.sightings.get(device.name), device.health, now=now, policy=policy)
        for device in inventory.devices
    }
    return Snapshot(inventory=inventory, sightings=sightings)


def lose(snapshot: Snapshot, reason: str) -> Snapshot:
    """The snapshot while the backend is down: the last inventory stays published, its health is unknown."""
    return msgspec.structs.replace(snapshot, lost=reason or "the backend is not running")


def next_settling(snapshot: Snapshot, *, policy: HealthPolicy) -> float | None:
    """When, on the clock of `observe`, a device's state will settle if nothing changes; None: nothing is pending."""
    times = [
        sighting.contradicted_since + (policy.healthy_after if sighting.sick else policy.unhealthy_after)
        for sighting in snapshot.sightings.values()
        if sighting.contradicted_since is not None
    ]
    return min(times, default=None)


def build_pool(
    snapshot: Snapshot,
    *,
    driver: str,
    pool: str,
    policy: HealthPolicy,
    condemned: Mapping[str, str] = {},
) -> Published:
    """The pool named `pool` (by custom the node's name), in the inventory's order.

    `condemned` maps devices whose claims kill the backend to a reason in one word; they are tainted too.
    """
    problems: list[str] = []
    counter_sets = _sift(snapshot.inventory.counter_sets, "counter set", check_counter_set, problems)
    counters = {counter_set.name: frozenset(counter_set.counters) for counter_set in counter_sets}

    def check(device: Device) -> Iterator[str]:
        yield from check_device(device)
        yield from check_references(device, counters)

    devices = _sift(snapshot.inventory.devices, "device", check, problems)
    published = tuple(
        _taint(device, _own_taints(device, snapshot, driver, policy, condemned=condemned, problems=problems), problems)
        for device in devices
    )
    return Published(
        pool=Pool(name=pool, devices=published, counter_sets=counter_sets),
        health=tuple(_build_health(pool, device.name, snapshot) for device in devices),
        problems=tuple(problems),
    )


def _settle(before: Sighting | None, reported: Health, *, now: float, policy: HealthPolicy) -> Sighting:
    if before is None:  # a device that is sick when it is first seen was sick before: no claim may get it
        sick = reported.status is HealthStatus.UNHEALTHY
        return Sighting(sick=sick, reported=reported, cause=reported if sick else Health())
    contrary = HealthStatus.HEALTHY if before.sick else HealthStatus.UNHEALTHY
    if reported.status is not contrary:
        cause = reported if before.sick and reported.status is HealthStatus.UNHEALTHY else before.cause
        return Sighting(sick=before.sick, reported=reported, cause=cause)
    since = now if before.contradicted_since is None else before.contradicted_since
    if now - since >= (policy.healthy_after if before.sick else policy.unhealthy_after):
        return Sighting(sick=not before.sick, reported=reported, cause=Health() if before.sick else reported)
    return Sighting(sick=before.sick, reported=reported, cause=before.cause, contradicted_since=since)


def _sift(
    things: Iterable[Named], kind: str, check: Callable[[Named], Iterator[str]], problems: list[str]
) -> tuple[Named, ...]:
    """Those without a fault and of a name not seen before; the faults of the others go to `problems`."""
    kept: dict[str, Named] = {}
    for thing in things:
        faults = list(check(thing))
        if thing.name in kept:
            faults.append("a name that another has already; the first is kept")
        if faults:
            problems.append(f"{kind} {thing.name!r} is not published: " + "; ".join(faults))
        else:
            kept[thing.name] = thing
    return tuple(kept.values())


def _own_taints(
    device: Device,
    snapshot: Snapshot,
    driver: str,
    policy: HealthPolicy,
    *,
    condemned: Mapping[str, str],
    problems: list[str],
) -> tuple[Taint, ...]:
    taints: list[Taint] = []
    sighting = snapshot.sightings.get(device.name)
    if sighting is not None and sighting.sick and policy.effect is not None:
        cause = sighting.cause
        key = cause.taint if "/" in cause.taint else f"{driver}/{cause.taint}"
        if not is_label_key(key):
            problems.append(f"device {device.name!r}: {key!r} cannot be the key of a taint; it is tainted as unhealthy")
            key = f"{driver}/unhealthy"
        taints.append(Taint(key=key, value=_label_value(cause.reason), effect=cause.effect or policy.effect))
    if device.name in condemned:
        value = _label_value(condemned[device.name])
        taints.append(Taint(key=f"{driver}/condemned", value=value, effect=TaintEffect.NO_SCHEDULE))
    return tuple(taints)


def _taint(device: Device, own: tuple[Taint, ...], problems: list[str]) -> Device:
    if not own:
        return device
    keys = {taint.key for taint in own}
    theirs = tuple(taint for taint in device.taints if taint.key not in keys)
    room = TAINTS - len(own)
    if len(theirs) > room:
        problems.append(f"device {device.name!r}: no room for all its taints, left out: {theirs[room:]}")
    return msgspec.structs.replace(device, taints=(*own, *theirs[:room]))


def _build_health(pool: str, device: str, snapshot: Snapshot) -> DeviceHealth:
    sighting = snapshot.sightings.get(device)
    if snapshot.lost or sighting is None:
        return DeviceHealth(
            pool=pool, device=device, status=HealthStatus.UNKNOWN, message=snapshot.lost or "not yet reported"
        )
    if sighting.reported.status is HealthStatus.UNKNOWN:
        return DeviceHealth(pool=pool, device=device, status=HealthStatus.UNKNOWN, message=sighting.reported.message)
    if not sighting.sick:
        message = sighting.reported.message if sighting.reported.status is HealthStatus.HEALTHY else ""
        return DeviceHealth(pool=pool, device=device, status=HealthStatus.HEALTHY, message=message)
    return DeviceHealth(pool=pool, device=device, status=HealthStatus.UNHEALTHY, message=sighting.cause.message)


def _label_value(word: str) -> str:
    """The word as a label value: what does not fit becomes a dash."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", word)[:63].strip("-_.")
