"""Whether an answer of a backend keeps the contract: classes, shapes, and that it fits the question.

Pure. Each function returns every violation at once, as sentences for the backend's author.
The classes are looked at in the backend's process, where answers are still Python objects; the rest
in the agent, which trusts nothing that comes from there.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pydra.backends.mismatches import find_mismatches
from pydra.backends.wire import Method
from pydra.cdi.edits import ContainerEdits
from pydra.claim import Claim, Inheritance, InheritedClaim, PreparedDevice
from pydra.devices import CounterSet, Device, Inventory, Sample

MAX_STATE = 256 * 1024
"""Bytes of JSON that the states of one claim may take; all are written durably with the claim's record."""

MAX_DEPTH = 64

_METRIC = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def find_answer_type_violations(method: Method, answer: Any) -> tuple[str, ...]:
    """Values of other classes than the contract's, seen where they are still Python objects."""
    return tuple(_answer_type_violations(method, answer))


def _answer_type_violations(method: Method, answer: Any) -> Iterator[str]:
    name = method.value
    match method:
        case Method.DISCOVER:
            if not isinstance(answer, Inventory):
                yield f"{name} returned a {type(answer).__name__}, not a pydra.Inventory"
                return
            yield from _wrong_items(f"{name}: devices", answer.devices, Device)
            yield from _wrong_items(f"{name}: counter_sets", answer.counter_sets, CounterSet)
        case Method.PREPARE:
            yield from _wrong_items(name, answer, PreparedDevice)
            for one in answer if isinstance(answer, list | tuple) else ():
                edits: object = getattr(one, "edits", None)
                if isinstance(one, PreparedDevice) and not isinstance(edits, ContainerEdits):
                    yield f"{name}: edits of {one.device} are a {type(edits).__name__}, not pydra.ContainerEdits"
        case Method.MEASURE:
            yield from _wrong_items(name, answer, Sample)
        case Method.INHERIT:
            if not isinstance(answer, Inheritance):
                yield f"{name} returned a {type(answer).__name__}, not a pydra.Inheritance"
                return
            yield from _wrong_items(f"{name}: claims", answer.claims, InheritedClaim)
        case Method.PLAN:
            yield from find_plan_violations(answer)
        case Method.UNPREPARE | Method.WAIT_CHANGED | Method.RESTORE:
            if answer is not None:
                yield f"{name} returned a {type(answer).__name__}; it must return nothing"


def _wrong_items(where: str, items: Any, wanted: type) -> Iterator[str]:
    if not isinstance(items, list | tuple):
        yield f"{where} is a {type(items).__name__}, not a list or tuple of pydra.{wanted.__name__}"
        return
    for index, item in enumerate(items):
        if not isinstance(item, wanted):
            yield f"{where}[{index}] is a {type(item).__name__}, not a pydra.{wanted.__name__}"


def find_value_violations(body: msgspec.Raw, wanted: Any) -> tuple[str, ...]:
    """Every place in an encoded answer that does not fit the type."""
    try:
        value = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return (f"the answer cannot be decoded: {error}",)
    return find_mismatches(value, wanted)


def find_inventory_violations(inventory: Inventory) -> tuple[str, ...]:
    """Names given twice, and counters that no counter set has."""
    return tuple(_inventory_violations(inventory))


def _inventory_violations(inventory: Inventory) -> Iterator[str]:
    yield from (f"device {name} is listed {n} times" for name, n in _repeated(d.name for d in inventory.devices))
    yield from (
        f"counter set {name} is listed {n} times" for name, n in _repeated(s.name for s in inventory.counter_sets)
    )
    counters = {one.name: one.counters for one in inventory.counter_sets}
    for device in inventory.devices:
        for taken in device.consumes_counters:
            if taken.counter_set not in counters:
                yield f"device {device.name} consumes from counter set {taken.counter_set}, which is not listed"
                continue
            for absent in sorted(set(taken.counters) - set(counters[taken.counter_set])):
                yield f"device {device.name} consumes counter {absent}, which counter set {taken.counter_set} lacks"


def find_prepared_violations(claim: Claim, prepared: Sequence[PreparedDevice]) -> tuple[str, ...]:
    """Whether there is exactly one entry for each of the claim's devices, and each state is JSON."""
    return tuple(_prepared_violations(claim, prepared))


def _prepared_violations(claim: Claim, prepared: Sequence[PreparedDevice]) -> Iterator[str]:
    wanted = Counter(_identity(device) for device in claim.devices)
    given = Counter(_identity(device) for device in prepared)
    for identity in sorted(wanted - given):
        yield f"prepare returned nothing for {_spell(identity)}"
    for identity in sorted(given - wanted):
        why = "twice" if identity in wanted else "which the claim does not have"
        yield f"prepare returned {_spell(identity)}, {why}"
    problems = [p for d in prepared for p in find_json_problems(d.state, f"state of {_spell(_identity(d))}")]
    if problems:
        yield from problems
        return
    size = sum(len(msgspec.json.encode(device.state)) for device in prepared)
    if size > MAX_STATE:
        yield f"the states of the claim's devices take {size} bytes of JSON, the limit is {MAX_STATE}"


def find_plan_violations(plan: Any) -> tuple[str, ...]:
    """Whether the plan is JSON, and small enough for the claim's record."""
    problems = tuple(find_json_problems(plan, "the plan"))
    if not problems and (size := len(msgspec.json.encode(plan))) > MAX_STATE:
        return (f"plan returned {size} bytes of JSON, the limit is {MAX_STATE}",)
    return tuple(f"plan: {problem}" for problem in problems)


def find_inheritance_violations(inheritance: Inheritance) -> tuple[str, ...]:
    """Claims given twice, and claims whose devices and prepared devices do not fit."""
    twice = _repeated(one.claim.uid for one in inheritance.claims)
    return (
        *(f"inherit: the claim with uid {uid} is listed {n} times" for uid, n in twice),
        *(
            f"inherit: claim {one.claim.uid}: {violation}"
            for one in inheritance.claims
            for violation in find_prepared_violations(one.claim, one.prepared)
        ),
    )


def find_sample_violations(samples: Sequence[Sample]) -> tuple[str, ...]:
    """Names that Prometheus does not take."""
    return tuple(
        f"measure: {what} {name!r} must match {_METRIC.pattern}"
        for sample in samples
        for what, name in [("sample name", sample.name), *(("label name", label) for label in sample.labels)]
        if not _METRIC.fullmatch(name)
    )


def find_json_problems(value: Any, path: str, depth: int = 0) -> Iterator[str]:
    """The parts of the value that JSON cannot keep exactly."""
    match value:
        case None | bool() | str():
            pass
        case _ if depth > MAX_DEPTH:
            yield f"{path} is nested more than {MAX_DEPTH} deep"
        case int():
            if not -(2**63) <= value < 2**64:
                yield f"{path} is an integer of more than 64 bits"
        case float():
            if not math.isfinite(value):
                yield f"{path} is {value}, which JSON does not have"
        case list() | tuple():
            for index, item in enumerate(value):
                yield from find_json_problems(item, f"{path}[{index}]", depth + 1)
        case Mapping():
            for key, item in value.items():
                if not isinstance(key, str):
                    yield f"{path} has the key {key!r}; keys of JSON objects are strings"
                yield from find_json_problems(item, f"{path}.{key}", depth + 1)
        case _:
            yield f"{path} is a {type(value).__name__}, which is not JSON"


def _identity(device: Any) -> tuple[str, str, str, str]:
    return (device.request, device.pool, device.device, device.share_id or "")


def _spell(identity: tuple[str, str, str, str]) -> str:
    request, pool, device, share = identity
    return f"device {device} of pool {pool} for request {request}" + (f" (share {share})" if share else "")


def _repeated(names: Iterator[str]) -> list[tuple[str, int]]:
    return sorted((name, n) for name, n in Counter(names).items() if n > 1)
