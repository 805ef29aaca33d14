"""Judges the agent of this node by its own pages: `/readyz` and `/metrics`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from http.client import HTTPConnection, HTTPException

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pydra.devices import HealthStatus
from pydra.diagnosis import Finding, Level
from pydra.settings import Settings

_DEADLINE = 5.0
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}

_JUDGED = (
    ("pydra_backend_up", 0, "the backend {backend} does not run", "the agent's log and the Event BackendStartFailed"),
    ("pydra_registered", 0, "the kubelet has not registered driver {driver}", "the kubelet's log, and its directories"),
    (
        "pydra_devices_stale",
        1,
        "{driver}: devices cannot be discovered",
        "the Event DevicesStale of the node, or the agent's log",
    ),
    (
        "pydra_resourceslice_fields_dropped",
        1,
        "{driver}: the API server drops fields, since the feature gate {feature} is off",
        "the Event FieldsDropped of the node, or the agent's log; enable the gate on all API servers and schedulers",
    ),
)
"""A gauge, the value that is a problem, what that means, and where to look."""

_COUNTED = (
    ("pydra_devices_dropped", "devices against API rules", "DeviceDropped"),
    (
        "pydra_devices_withheld",
        "devices that the API server refuses, or would store without what makes them safe",
        "FieldsDropped",
    ),
    ("pydra_hardware_unreadable", "pieces of hardware that cannot be read", "HardwareUnreadable"),
)
"""A gauge that should be zero, what it counts, and the Event of the node that says more."""


class AgentState(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent says: why it is not ready, and its metrics. `problem` says why it cannot be asked."""

    problem: str = ""
    missing: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()

    @property
    def drivers(self) -> frozenset[str]:
        """The drivers that it serves, or will serve."""
        return frozenset(one.labels["driver"] for one in self.samples if one.name == "pydra_registered")


def read_agent(settings: Settings) -> AgentState:
    """Ask the agent on this machine. Blocks for seconds at most."""
    if settings.http_endpoint is None:
        return AgentState(problem="the agent's HTTP endpoint is off (httpAddress)")
    host, port = settings.http_endpoint
    try:
        status, ready = _get(_ANY_ADDRESS.get(host, host), port, "/readyz")
        _, metrics = _get(_ANY_ADDRESS.get(host, host), port, "/metrics")
        return AgentState(
            missing=() if status == 200 else tuple(ready.splitlines()),
            samples=tuple(one for family in text_string_to_metric_families(metrics) for one in family.samples),
        )
    except (OSError, HTTPException, ValueError, LookupError) as error:  # LookupError: the page has no metrics
        why = (getattr(error, "strerror", "") or str(error)).lower()
        return AgentState(problem=f"no agent answers at {settings.http_address}: {why}")


def judge_agent(state: AgentState) -> Iterator[Finding]:
    """Yield what the agent says of itself, its backends and devices."""
    if state.problem:
        advice = "is it running (kubectl -n pydra get pods -o wide)? In its pod, --http-address is as the agent has it"
        yield Finding("agent", Level.PROBLEM, state.problem, advice)
        return
    for line in state.missing:
        yield Finding("agent", Level.PROBLEM, line, "docs/troubleshoot.md has the messages")
    if not state.missing:
        served = ", ".join(sorted(state.drivers))
        yield Finding("agent", Level.OK, f"ready, and serves {served}")
    for name, bad, meaning, where in _JUDGED:
        for labels in (one.labels for one in _select(state, name) if one.value == bad):
            yield Finding("agent", Level.PROBLEM, meaning.format_map(labels), f"see {where}")
    for name, counted, event in _COUNTED:
        for one in _select(state, name):
            if one.value:
                found = f"{one.labels['driver']}: {counted}: {one.value:.0f}"
                yield Finding("devices", Level.PROBLEM, found, f"see the Event {event} of the node, or the agent's log")
    yield from _judge_health(state)


def _judge_health(state: AgentState) -> Iterator[Finding]:
    for driver in sorted(state.drivers):
        counts = {
            one.labels["health"]: int(one.value)
            for one in _select(state, "pydra_devices")
            if one.labels["driver"] == driver
        }
        unhealthy = counts.get(HealthStatus.UNHEALTHY.value, 0)
        found = f"{driver}: " + (
            ", ".join(f"{count} {name.lower()}" for name, count in counts.items() if count) or "none"
        )
        level = Level.PROBLEM if unhealthy else Level.OK
        yield Finding("devices", level, found, "pydra slices names them" if unhealthy else "")
    crashes: dict[str, int] = {}
    for one in _select(state, "pydra_backend_crashes_total"):
        crashes[one.labels["backend"]] = crashes.get(one.labels["backend"], 0) + int(one.value)
    for backend, count in sorted(crashes.items()):
        if count:
            found = f"unexpected ends of the backend {backend} since the agent's start: {count}"
            advice = "see the Event BackendDied of the node, and details in the agent's log"
            yield Finding("agent", Level.NOTE, found, advice)


def _select(state: AgentState, name: str) -> Iterable[Sample]:
    return (one for one in state.samples if one.name == name)


def _get(host: str, port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection(host, port, timeout=_DEADLINE)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()
