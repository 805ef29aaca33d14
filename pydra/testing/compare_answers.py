"""How two answers of a backend's `discover`, `plan` or `prepare` differ, and so whether steps were undone. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pydra.backends.child.conformance_main import Observation
from pydra.backends.wire import Method
from pydra.claim import Claim, ClaimStep
from pydra.devices import Device, Inventory


def find_changes(before: Inventory, after: Inventory) -> list[str]:
    """Return how two answers of `discover` differ, but for health; the order counts only if nothing else differs."""
    old, new = ({device.name: device for device in one.devices} for one in (before, after))
    changes = [f"device {name} is gone" for name in sorted(old.keys() - new.keys())]
    changes += [f"device {name} is new" for name in sorted(new.keys() - old.keys())]
    for name in sorted(old.keys() & new.keys()):
        changes += [f"device {name}: {change}" for change in _compare(old[name], new[name])]
    changes += _compare_fields(before, after, ("counter_sets", "partition_type", "unreadable"))
    if not changes and list(old) != list(new):
        changes.append("the devices come in another order")
    return changes


def _compare(before: Device, after: Device) -> Iterator[str]:
    """Yield what differs, single attributes and capacities by name."""
    for what in ("attributes", "capacity"):
        old, new = getattr(before, what), getattr(after, what)
        for name in sorted(old.keys() | new.keys()):
            if repr(old.get(name)) != repr(new.get(name)):  # 1 is not True to the API server
                yield f"{what}: {name} changed from {old.get(name)!r} to {new.get(name)!r}"
    others = [field for field in Device.__struct_fields__ if field not in ("attributes", "capacity", "health")]
    yield from _compare_fields(before, after, others)


def _compare_fields(before: object, after: object, fields: Sequence[str]) -> Iterator[str]:
    for field in fields:
        if getattr(before, field) != getattr(after, field):
            yield f"{field} changed from {getattr(before, field)} to {getattr(after, field)}"


def find_plan_changes(first: Claim, again: Claim) -> list[str]:
    """Return how two answers of `plan` for one claim differ, each step by its place."""
    changes = [] if first.plan == again.plan else [f"plan answered {first.plan!r}, then {again.plan!r}"]
    if len(first.steps) != len(again.steps):
        changes.append(f"the number of steps was {len(first.steps)}, then {len(again.steps)}")
    for place, (one, other) in enumerate(zip(first.steps, again.steps, strict=False)):
        if one != other:
            changes.append(f"plan: steps[{place}] was {one.step!r}, then {other.step!r}")
    return changes


def find_differences(first: Any, again: Any, path: str = "$") -> Iterator[str]:
    """Yield how two answers of `prepare` for one claim differ, each value by its path."""
    if isinstance(first, msgspec.Struct) and type(first) is type(again):
        first, again = msgspec.structs.asdict(first), msgspec.structs.asdict(again)
    if isinstance(first, Mapping) and isinstance(again, Mapping):
        for name in {**first, **again}:
            yield from find_differences(first.get(name), again.get(name), f"{path}.{name}")
    elif isinstance(first, list | tuple) and isinstance(again, list | tuple) and len(first) == len(again):
        for place, (one, other) in enumerate(zip(first, again, strict=True)):
            yield from find_differences(one, other, f"{path}[{place}]")
    elif first != again:
        yield f"{path} was {first!r}, then {again!r}"


def find_not_restored(before: Sequence[ClaimStep], again: Sequence[ClaimStep]) -> list[str]:
    """Return which steps of a claim find another state than before, when it is planned again after it was undone.

    A step that is not planned again says nothing: its change may be one that stays.
    """
    known = {one.key: one.step for one in before}
    return [
        f"undo has not restored what step {one.label} found: {difference}, when the claim was planned again"
        for one in again
        for difference in find_differences(known.get(one.key, one.step), one.step)
    ]


def find_undone_by_nothing(steps: Sequence[ClaimStep], observed: Sequence[Observation]) -> list[str]:
    """Return which steps, carried out and undone last, were changes, and undone without any that Python shows."""
    applied, undone = ([one for one in observed if one.method is what] for what in (Method.APPLY, Method.UNDO))
    pairs = zip(reversed(steps), reversed(applied), undone[len(undone) - len(steps) :], strict=False)
    return [
        f"undo of step {step.label} changes nothing that Python shows; apply did: {', '.join(did.changes)}"
        for step, did, undid in pairs
        if did.changes and not undid.changes
    ]
