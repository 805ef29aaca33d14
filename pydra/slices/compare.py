"""Whether two specs of a slice mean the same to the API server. Pure.

Null, absent and empty are equal, also false for a switch; quantities are compared by value (the server rewrites
`1024Mi` to `1Gi`), times by instant; the order of devices, taints and lists counts, that of attributes does not.
A taint without `timeAdded` equals one with any, and a second of difference is none: the server fills it in and
keeps whole seconds. Fields that pydra does not know are compared as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydra.kube.resources import JsonObject
from pydra.quantity import parse_quantity

CONTENT = (
    "devices",
    "sharedCounters",
    "perDeviceNodeSelection",
    "nodeSelector",
    "allNodes",
    "partitionTypeAttribute",
    "skipNodeOperations",
)
"""What of a spec may change, but for `pool`; the rest (driver, nodeName) is immutable."""
SECONDS_TOLERATED = 1.0

Same = Callable[[Any, Any], bool]


def same_content(wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> bool:
    """Whether the stored spec holds the wanted one's content."""
    return all(_same(wanted.get(field), stored.get(field), _CONTENT_RULES.get(field, _plain)) for field in CONTENT)


def keep_times(wanted: Sequence[JsonObject], stored: Sequence[JsonObject]) -> list[JsonObject]:
    """The wanted devices with `timeAdded` taken over from the same taint of the same-named stored device.

    Without it, a rewrite of the slice would restart the clock of every eviction.
    """
    taints = {device.get("name"): device.get("taints") or () for device in stored}
    kept = []
    for device in wanted:
        theirs = taints.get(device["name"], ())
        ours = [_with_time(taint, theirs) for taint in device.get("taints") or ()]
        kept.append({**device, "taints": ours} if ours else device)
    return kept


def _with_time(taint: JsonObject, stored: Sequence[JsonObject]) -> JsonObject:
    if taint.get("timeAdded"):
        return taint
    for other in stored:
        if other.get("timeAdded") and _taint_identity(other) == _taint_identity(taint):
            return {**taint, "timeAdded": other["timeAdded"]}
    return taint


def _taint_identity(taint: JsonObject) -> tuple[Any, ...]:
    return taint.get("key"), taint.get("value") or "", taint.get("effect")


def _same(a: Any, b: Any, rule: Same) -> bool:
    if not a or not b:  # absent, null, empty, false; zero and "0" never stand alone where a rule looks
        return not a and not b
    return rule(a, b)


def _plain(a: Any, b: Any) -> bool:
    """Values without quantities or times, with null and empty members left out."""
    if isinstance(a, dict) and isinstance(b, dict):
        return all(_same(a.get(key), b.get(key), _plain) for key in a.keys() | b.keys())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_plain, a, b))
    return bool(a == b)


def _exact(a: Any, b: Any) -> bool:
    return bool(a == b)


def _quantity(a: Any, b: Any) -> bool:
    if a == b:
        return True
    try:
        return parse_quantity(a) == parse_quantity(b)
    except (ValueError, TypeError):
        return False


def _time(a: Any, b: Any) -> bool:
    try:
        difference = datetime.fromisoformat(a) - datetime.fromisoformat(b)
    except (ValueError, TypeError):
        return bool(a == b)
    return abs(difference.total_seconds()) <= SECONDS_TOLERATED


def _any_or_time(a: Any, b: Any) -> bool:
    return not a or not b or _time(a, b)


def _list_of(rule: Same) -> Same:
    def same(a: Any, b: Any) -> bool:
        return len(a) == len(b) and all(map(rule, a, b))

    return same


def _map_of(rule: Same) -> Same:
    def same(a: Any, b: Any) -> bool:
        return a.keys() == b.keys() and all(rule(a[key], b[key]) for key in a)

    return same


def _struct(**rules: Same) -> Same:
    """An object: the named members by their rules, all others plainly."""

    def same(a: Any, b: Any) -> bool:
        return a == b or all(
            rules[key](a.get(key), b.get(key)) if key in rules else _same(a.get(key), b.get(key), _plain)
            for key in a.keys() | b.keys()
        )

    return same


def _or_absent(rule: Same) -> Same:
    def same(a: Any, b: Any) -> bool:
        return _same(a, b, rule)

    return same


_AMOUNTS = _or_absent(_map_of(_struct(value=_quantity)))
_POLICY = _struct(
    default=_or_absent(_quantity),
    validValues=_or_absent(_list_of(_quantity)),
    validRange=_or_absent(_struct(min=_or_absent(_quantity), max=_or_absent(_quantity), step=_or_absent(_quantity))),
)
_DEVICE = _struct(
    attributes=_or_absent(_map_of(_exact)),  # a false or a zero is a value here, and never the same as none
    capacity=_or_absent(_map_of(_struct(value=_quantity, requestPolicy=_or_absent(_POLICY)))),
    consumesCounters=_or_absent(_list_of(_struct(counters=_AMOUNTS))),
    taints=_or_absent(_list_of(_struct(timeAdded=_any_or_time))),
)
_CONTENT_RULES: Mapping[str, Same] = {
    "devices": _list_of(_DEVICE),
    "sharedCounters": _list_of(_struct(counters=_AMOUNTS)),
}
