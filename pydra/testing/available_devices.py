"""Which devices of an inventory, and which two at once, claims could get, beside those of an agent on this node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from glob import iglob
from itertools import chain, combinations
from typing import Any, TypeAlias

from msgspec.structs import replace

from pydra.backends.discovery import BackendSource
from pydra.checkpoint.record_files import StoredRecord, list_stored
from pydra.claim import Claim
from pydra.claims.device_use import PublishedPool, may_meet
from pydra.devices import Device, HealthStatus, Inventory, TaintEffect
from pydra.errors import CheckpointError
from pydra.inventory.api_rules import is_compatible
from pydra.quantity import parse_quantity
from pydra.settings import parse_settings

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


# Beside an agent


class AgentRecords:
    """Where an agent on this node has records, by its settings file and its variables."""

    def __init__(self, source: BackendSource, environ: Mapping[str, str], config: Mapping[str, Any]) -> None:
        """Raises SettingsError."""
        names = {
            "kubeletRoot": "PYDRA_KUBELET_ROOT",
            "pluginsDir": "PYDRA_PLUGINS_DIR",
            "recordsDir": "PYDRA_RECORDS_DIR",
        }
        given = {key: environ.get(variable) or config.get(key) for key, variable in names.items()}
        places = {key: path for key, path in given.items() if path}
        self._settings = parse_settings({"backends": [source.name], "nodeName": "unknown", **places})
        renamed = dict(one.split("=", 1) for one in environ.get("PYDRA_DRIVER", "").split(",") if "=" in one)
        self._renamed = {**config.get("drivers", {}), **renamed}.get(source.configured_name, "")

    def list(self, driver: str) -> tuple[StoredRecord, ...]:
        """List the records of a driver, or of any if no name is known.

        A directory that cannot be read is a record of an unknown claim.
        """
        names = {driver, self._renamed} - {""} or {"*"}
        patterns = [pattern for name in names for pattern in self._settings.claim_directories(name)]
        return tuple(one for pattern in patterns for path in sorted(iglob(pattern)) for one in _read(path))


def take_free(inventory: Inventory, records: Sequence[StoredRecord]) -> Inventory:
    """Return the inventory without what the claims of the records use, or may use."""
    pool = PublishedPool(devices={one.name: one for one in inventory.devices}, counter_sets=inventory.counter_sets)
    held = [one.claim for one in records]
    free = [one for one in inventory.devices if not any(may_meet({one.name}, claim, {"": pool}) for claim in held)]
    return replace(inventory, devices=tuple(free))


def _read(path: str) -> tuple[StoredRecord, ...]:
    try:
        return list_stored(path)
    except CheckpointError as error:
        unknown = Claim(uid="", namespace="", name="", devices=())
        return (StoredRecord(claim=unknown, path=path, problem=str(error)),)
