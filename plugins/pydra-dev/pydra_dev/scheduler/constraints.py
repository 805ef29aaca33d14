"""The constraints of a claim, as the scheduler keeps them while it adds and removes devices. Pure.

Source: `constraint.go` and `allocator_*.go` of the structured allocator in k8s.io/dynamic-resource-allocation,
Kubernetes 1.36: the incubating variant for scalars, the experimental one for lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from pydra.message_text import suggest
from pydra_dev.api import schema
from pydra_dev.scheduler.pools import Candidate, DeviceKey

_UNCOMPARED = "the scheduler of Kubernetes 1.36 compares no lists"
"""Not even with the feature gate: it then takes the incubating variant all the same (kubernetes#139332)."""

_Values: TypeAlias = frozenset[tuple[object, object]]
"""An attribute's values, each with its type; a scalar is a set of one."""


def covers(requests: Sequence[str], request: str) -> bool:
    """Whether a list of request names (empty: all) includes a request; a request includes its subrequests."""
    return not requests or request in requests or request.partition("/")[0] in requests


class Constraint:
    """One constraint and the devices that are in it. `lists`: whether the scheduler compares lists."""

    def __init__(self, spec: schema.Constraint, *, lists: bool) -> None:
        self._lists = lists
        self._requests = spec.requests
        self._distinct = spec.match_attribute is None
        self._name = spec.match_attribute or spec.distinct_attribute or ""
        self._common: list[_Values] = []
        # The scheduler remembers one value for each request: the latest, and none after a removal.
        self._latest: dict[str, _Values] = {}
        self._devices = 0
        self._values: dict[DeviceKey, _Values] = {}

    def __str__(self) -> str:
        return f"{'distinctAttribute' if self._distinct else 'matchAttribute'} {self._name}"

    def find_obstacle(self, request: str, candidate: Candidate) -> str:
        """Why a device cannot be added for a request (`req` or `req/sub`); empty if it can."""
        if not covers(self._requests, request):
            return ""
        values = self._read(candidate)
        if not values:
            return f"{self}: the device has no such attribute{_suggest(self._name, candidate)}"
        if self._distinct:
            if self._devices and _is_uncompared(values):
                return f"{self}: has {_show(values)}; {_UNCOMPARED}"
            twice = self._devices and any(values & latest for latest in self._latest.values())
            return f"{self}: another device has {_show(values)} too" if twice else ""
        if self._common and not self._common[-1] & values:
            uncompared = f"; {_UNCOMPARED}" if _is_uncompared(values | self._common[-1]) else ""
            return f"{self}: has {_show(values)}, the devices before it {_show(self._common[-1])}{uncompared}"
        return ""

    def add(self, request: str, candidate: Candidate) -> None:
        """Add a device that nothing is against."""
        if not covers(self._requests, request):
            return
        values = self._read(candidate)
        if self._distinct:
            self._latest[request.partition("/")[0]] = values
            self._devices += 1
        else:
            self._common.append(self._common[-1] & values if self._common else values)

    def _read(self, candidate: Candidate) -> _Values:
        found = self._values.get(candidate.key)
        if found is None:
            found = self._values[candidate.key] = _read_values(candidate, self._name, lists=self._lists)
        return found

    def remove(self, request: str) -> None:
        """Take out the device that was added last."""
        if not covers(self._requests, request):
            return
        if self._distinct:
            self._latest.pop(request.partition("/")[0], None)
            self._devices -= 1
        else:
            self._common.pop()


def _suggest(name: str, candidate: Candidate) -> str:
    driver, domain = candidate.driver, f"{name.rpartition('/')[0]}/"
    known = [one if "/" in one else f"{driver}/{one}" for one in candidate.device.attributes]
    same = [one for one in known if one.startswith(domain)]
    return suggest(name, same, prefix=domain) if same else suggest(name, known)


def _show(values: _Values) -> str:
    return ", ".join(sorted(str(value) for _, value in values))


def _is_uncompared(values: _Values) -> bool:
    return any(isinstance(kind, tuple) for kind, _ in values)


def _read_values(candidate: Candidate, name: str, *, lists: bool) -> _Values:
    attributes = candidate.device.attributes
    domain, _, identifier = name.partition("/")
    attribute = attributes.get(name)
    if attribute is None and domain == candidate.driver:
        attribute = attributes.get(identifier)
    if attribute is None:
        return frozenset()
    # The name of the type tells true from 1, and "1.0.0" from the version 1.0.0.
    return frozenset(
        # A list that is not compared equals no other value, not even that of another device.
        (kind.rstrip("s") if lists or not isinstance(found, list) else (kind, candidate.key), value)
        for kind, found in schema.build_fields(attribute).items()
        for value in (found if isinstance(found, list) else [found])
    )
