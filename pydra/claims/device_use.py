"""Tracks which claim holds which device, and how much of the counters and capacities of the node's devices.

The last check against giving one device to two claims. No awaits, so looking up and taking are one step. A lookup takes
the same time however many claims there are, unless they use the same counters or share a device.

Two claims may hold one device when either has admin access to it, or when each has a share of its own. Claims with
admin access use no counters and no capacity. Sources: Kubernetes API reference, DeviceRequestAllocationResult
adminAccess and shareID; KEP-4815 (counters); KEP-5075 (capacity); KEP-5963 (compatibility groups).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from pydra.claim import AllocatedDevice, Claim
from pydra.devices import CounterConsumption, CounterSet, Device
from pydra.errors import DeviceInUse, TerminalError
from pydra.inventory.api_rules import is_compatible
from pydra.quantity import parse_quantity

Consumption: TypeAlias = Mapping[str, tuple[CounterConsumption, ...]]
"""What the devices of a claim consume, by `POOL/DEVICE`, as far as they consume counters."""

_Counter: TypeAlias = tuple[str, str, str]
"""Pool, counter set and name of a counter."""


class PublishedPool(msgspec.Struct, frozen=True, kw_only=True):
    """What this node publishes in a pool: devices by name, and the counters that they share."""

    devices: Mapping[str, Device] = {}
    counter_sets: tuple[CounterSet, ...] = ()


Published: TypeAlias = Mapping[str, PublishedPool]
"""The pools of this node by name."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that holds devices, and what they consume.

    `name` is for messages; `left_over` says why a claim that has ended still holds them.
    """

    uid: str
    name: str
    devices: Sequence[AllocatedDevice]
    consumption: Consumption
    left_over: str


def _find_capacity(name: str, device: Device) -> str:
    """Return the name of the device's capacity: the same, or else the only one that differs by a domain."""
    if name in device.capacity:
        return name
    others = [other for other in device.capacity if other.endswith(f"/{name}") or name.endswith(f"/{other}")]
    return others[0] if len(others) == 1 else name


def may_meet(names: Collection[str], other: Claim, published: Published | None) -> bool:
    """Return whether the other claim may use what these devices use: one of them, or a counter set of theirs.

    True unless that is certainly not so, since of the other claim's devices not all may be known.
    """
    if published is None or not other.devices or any(one.device in names for one in other.devices):
        return True
    known = {name: device for pool in published.values() for name, device in pool.devices.items()}
    theirs = [known.get(one.device) for one in other.devices]
    mine = [known.get(name) for name in names]
    if None in theirs or None in mine:
        return True
    sets = [{used.counter_set for one in some if one for used in one.consumes_counters} for some in (mine, theirs)]
    return not sets[0].isdisjoint(sets[1])


class DeviceIndex:
    """Maps devices, by pool and name, and counters to the claims that hold them.

    `published` is what this node publishes; None before the first discover, when only devices are compared.
    """

    def __init__(self, published: Published | None = None) -> None:
        self.published = published
        self._holders: dict[str, Holder] = {}
        self._uses: dict[tuple[str, str], dict[str, list[AllocatedDevice]]] = {}
        self._counters: dict[_Counter, dict[str, Mapping[str, Fraction]]] = {}

    def find_consumption(self, claim: Claim) -> Consumption:
        """Return what the claim's devices consume according to what is published."""
        found: dict[str, tuple[CounterConsumption, ...]] = {}
        for device in claim.devices:
            one = self._find_published(device)
            if one is not None and one.consumes_counters and not device.admin_access:
                found[f"{device.pool}/{device.device}"] = one.consumes_counters
        return found

    def hold(self, claim: Claim, recorded: Consumption = {}, *, left_over: str = "") -> None:  # noqa: B006 - not changed
        """Let the claim hold its devices, and nothing else.

        They consume what is published now, and what was `recorded` of those that are not published any more.
        """
        uid = claim.uid
        consumption = {**recorded, **self.find_consumption(claim)}
        if uid in self._holders:
            self.release(uid)
        self._holders[uid] = Holder(
            uid=uid, name=str(claim), devices=claim.devices, consumption=consumption, left_over=left_over
        )
        for device in claim.devices:
            self._uses.setdefault((device.pool, device.device), {}).setdefault(uid, []).append(device)
        for counter, amounts in _list_counters(consumption).items():
            self._counters.setdefault(counter, {})[uid] = amounts

    def holds(self, uid: str) -> bool:
        """Return whether the claim is known."""
        return uid in self._holders

    def release(self, uid: str) -> None:
        """Release everything that the uid holds."""
        holder = self._holders.pop(uid, None)
        if holder is None:
            return
        for key in {(device.pool, device.device) for device in holder.devices}:
            del self._uses[key][uid]
        for counter in _list_counters(holder.consumption):
            del self._counters[counter][uid]

    def find_conflict(self, claim: Claim) -> DeviceInUse | TerminalError | None:
        """Return the error for the first device of the claim that others hold, or that others leave too little for."""
        for device in claim.devices:
            for uid, uses in self._uses.get((device.pool, device.device), {}).items():
                if uid != claim.uid and not all(_may_share(use, device) for use in uses):
                    return _refuse(device, self._holders[uid])
        for device in claim.devices:
            if device.consumed_capacity and (short := self._find_short_capacity(device, claim)):
                return short
        if not (consumption := self.find_consumption(claim)):
            return None
        return self._find_short_counter(claim, consumption) or self._find_incompatible(claim, consumption)

    def find_unknown(self, claim: Claim) -> AllocatedDevice | None:
        """Return the first device of the claim that is not published, if it is known what is."""
        if self.published is not None:
            for device in claim.devices:
                if self._find_published(device) is None:
                    return device
        return None

    def adopt_capacity_names(self, claim: Claim) -> Claim:
        """Return the claim whose shares have the names of capacities as the devices are published with them.

        From Kubernetes 1.38 on, the scheduler may write `memory` for `DRIVER/memory`, and claims may ask for either.
        """
        devices = list(claim.devices)
        for place, device in enumerate(claim.devices):
            if (one := self._find_published(device)) is not None:
                shares = {_find_capacity(name, one): amount for name, amount in device.consumed_capacity.items()}
                devices[place] = replace(device, consumed_capacity=shares)
        return replace(claim, devices=tuple(devices))

    def _find_published(self, device: AllocatedDevice) -> Device | None:
        pool = self.published.get(device.pool) if self.published is not None else None
        return pool.devices.get(device.device) if pool is not None else None

    def _find_short_capacity(self, device: AllocatedDevice, claim: Claim) -> DeviceInUse | None:
        """Return an error if the other shares of a device leave too little of a capacity for the claim's."""
        one = self._find_published(device)
        if one is None or device.admin_access:
            return None
        shares = self._uses.get((device.pool, device.device), {})
        others = [(uid, use) for uid, uses in shares.items() if uid != claim.uid for use in uses]
        mine = [other for other in claim.devices if (other.pool, other.device) == (device.pool, device.device)]
        for name in device.consumed_capacity:
            total = one.capacity.get(name)
            users = [use for _, use in others if not use.admin_access]
            used = sum(parse_quantity(other.consumed_capacity.get(name, 0)) for other in (*users, *mine))
            if others and total is not None and used > parse_quantity(total.value):
                return _refuse(device, self._holders[others[0][0]], f"not enough {name} is left")
        return None

    def _find_short_counter(self, claim: Claim, consumption: Consumption) -> DeviceInUse | TerminalError | None:
        """Find a counter of which the claim's devices need more than others leave.

        A device consumes its counters once, however many claims have a share of it.
        """
        totals = {
            (pool, counter_set.name, name): parse_quantity(value)
            for pool, one in (self.published or {}).items()
            for counter_set in one.counter_sets
            for name, value in counter_set.counters.items()
        }
        for counter, amounts in _list_counters(consumption).items():
            others = {uid: used for uid, used in self._counters.get(counter, {}).items() if uid != claim.uid}
            taken = {key: amount for used in others.values() for key, amount in used.items()}
            wanted = sum(amount for key, amount in amounts.items() if key not in taken)
            total = totals.get(counter)
            if total is None or wanted + sum(taken.values()) <= total:
                continue
            device = next(one for one in claim.devices if f"{one.pool}/{one.device}" in amounts)
            if wanted > total:
                return TerminalError(
                    f"the devices of the claim need {wanted} of the counter {counter[2]} of {counter[1]}, and there is "
                    f"{total}: they cannot be used together; ask for one of them"
                )
            holder = min(uid for uid, used in others.items() if any(used.values()))
            return _refuse(device, self._holders[holder], f"the counter {counter[2]} of {counter[1]} is used up")
        return None

    def _find_incompatible(self, claim: Claim, consumption: Consumption) -> DeviceInUse | None:
        """Find a device that may not be used beside what others have of its counter sets."""
        for device in claim.devices:
            own = consumption.get(f"{device.pool}/{device.device}", ())
            counters = [(device.pool, one.counter_set, name) for one in own for name in one.counters]
            beside: list[tuple[CounterConsumption, ...]] = []
            for uid in sorted({uid for counter in counters for uid in self._counters.get(counter, ())} - {claim.uid}):
                beside += self._holders[uid].consumption.values()
                if not is_compatible(own, beside):
                    why = "the devices cannot be used at once, by their compatibility groups"
                    return _refuse(device, self._holders[uid], why)
        return None


def _may_share(one: AllocatedDevice, other: AllocatedDevice) -> bool:
    """Return whether two claims may use a device like this at the same time."""
    if one.admin_access or other.admin_access:
        return True
    return one.share_id is not None and other.share_id is not None and one.share_id != other.share_id


def _refuse(device: AllocatedDevice, holder: Holder, why: str = "") -> DeviceInUse:
    name = f"{device.device} of pool {device.pool}"
    return DeviceInUse(name, holder.name, why=why, left_over=holder.left_over, holder_uid=holder.uid)


def _list_counters(consumption: Consumption) -> Mapping[_Counter, Mapping[str, Fraction]]:
    """Return how much of each counter each device consumes, by `POOL/DEVICE`."""
    found: dict[_Counter, dict[str, Fraction]] = {}
    for key, consumed in consumption.items():
        pool = key.rpartition("/")[0]
        for one in consumed:
            for name, amount in one.counters.items():
                amounts = found.setdefault((pool, one.counter_set, name), {})
                amounts[key] = amounts.get(key, Fraction()) + parse_quantity(amount)
    return found
