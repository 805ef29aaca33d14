"""The tables that `kubectl get` shows: the server prints the columns of each kind. Pure.

Columns that say nothing on an embedded node are left out, and ages are in one unit. Source: Kubernetes 1.36,
pkg/printers/internalversion/printers.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from pydra_dev.api.errors import JsonObject
from pydra_dev.api.kinds import (
    DEVICE_TAINT_RULES,
    EVENTS,
    NAMESPACES,
    NEW_EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from pydra_dev.api.pod_fields import is_finished
from pydra_dev.apiserver.core_rules import store_form

VERSION = "meta.k8s.io/v1"
_FIRST_CHOICE = frozenset({"application/json", "as=Table", "g=meta.k8s.io", "v=v1"})


class Column(msgspec.Struct, frozen=True):
    """A column: its name, what makes its cell of an object at a time, and whether only `-o wide` shows it."""

    name: str
    build_cell: Callable[[JsonObject, str], str]
    wide: bool = False


def wants_table(accept: str) -> bool:
    """Whether an Accept header prefers a Table to the object itself, as that of kubectl does."""
    return {part.strip() for part in accept.partition(",")[0].split(";")} == _FIRST_CHOICE


def build_table(
    kind: Kind, objects: Iterable[JsonObject], metadata: JsonObject, *, now: str, include: str
) -> JsonObject:
    """Objects of a kind as a Table; `include` is the query's includeObject."""
    columns = COLUMNS.get(kind, PLAIN)
    # By the format kubectl finds the column of names, which it prints with the kind where several kinds are asked for.
    definitions = [
        {"name": one.name, "type": "string", "format": "name" if one is _NAME else "", "priority": int(one.wide)}
        for one in columns
    ]
    rows = [
        {"cells": [one.build_cell(store_form(obj), now) for one in columns], **_build_object(obj, include)}
        for obj in objects
    ]
    return {
        "kind": "Table",
        "apiVersion": VERSION,
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    }


def _build_object(obj: JsonObject, include: str) -> JsonObject:
    if include == "None":
        return {}
    if include == "Object":
        return {"object": obj}
    return {"object": {"kind": "PartialObjectMetadata", "apiVersion": VERSION, "metadata": obj["metadata"]}}


def describe_age(since: str | None, now: str) -> str:
    """`5s`, `3m`, `2d`: how long ago a time was, in the largest unit of which there are two."""
    if not since:
        return "<unknown>"
    seconds = max(0, int((datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds()))
    units = {"d": 86_400, "h": 3600, "m": 60}
    unit = next((unit for unit, size in units.items() if seconds >= 2 * size), "s")
    return f"{seconds // units.get(unit, 1)}{unit}"


def _count_ready(pod: JsonObject, _now: str) -> str:
    ready = sum(one.get("ready", False) for one in (pod.get("status") or {}).get("containerStatuses") or ())
    return f"{ready}/{len(pod['spec']['containers'])}"


def describe_pod(pod: JsonObject, _now: str = "") -> str:
    """The status of a pod in one word."""
    if "deletionTimestamp" in pod["metadata"] and not is_finished(pod):
        return "Terminating"
    phase = str((pod.get("status") or {}).get("phase", ""))
    return "Completed" if phase == "Succeeded" else phase


def _describe_node(node: JsonObject, _now: str) -> str:
    conditions = {one["type"]: one["status"] for one in (node.get("status") or {}).get("conditions") or ()}
    known = "Ready" if conditions.get("Ready") == "True" else "NotReady"
    return f"{known},SchedulingDisabled" if node["spec"].get("unschedulable") else known


def _describe_last_seen(event: JsonObject, now: str) -> str:
    last = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp")
    return describe_age(last or event.get("eventTime"), now)


def _name_involved(event: JsonObject, _now: str) -> str:
    about = event["involvedObject"]
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def describe_claim(claim: JsonObject, _now: str = "") -> str:
    """The state of a claim in a few words."""
    status = claim.get("status") or {}
    deleted = "deletionTimestamp" in claim["metadata"]
    states = ["deleted"] if deleted else []
    if status.get("allocation") is not None:
        states += ["allocated", *(["reserved"] if status.get("reservedFor") else [])]
    elif not deleted:
        states.append("pending")
    return ",".join(states)


def _field(name: str, path: str, *, wide: bool = False) -> Column:
    """A column with what is in a field."""

    def read(obj: JsonObject, _now: str) -> str:
        value: Any = obj
        for part in path.split("."):
            value = (value or {}).get(part)
        return str(value or "").strip()

    return Column(name, read, wide)


_NAME = _field("Name", "metadata.name")
_AGE = Column("Age", lambda obj, now: describe_age(obj["metadata"].get("creationTimestamp"), now))
PLAIN = (_NAME, _AGE)
_EVENT_COLUMNS = (
    Column("Last Seen", _describe_last_seen),
    _field("Type", "type"),
    _field("Reason", "reason"),
    Column("Object", _name_involved),
    _field("Message", "message"),
)
COLUMNS: Mapping[Kind, Sequence[Column]] = {
    PODS: (
        _NAME,
        Column("Ready", _count_ready),
        Column("Status", describe_pod),
        Column("Restarts", lambda _pod, _now: "0"),
        _AGE,
        _field("IP", "status.podIP", wide=True),
        _field("Node", "spec.nodeName", wide=True),
    ),
    NODES: (_NAME, Column("Status", _describe_node), _AGE, _field("Version", "status.nodeInfo.kubeletVersion")),
    EVENTS: _EVENT_COLUMNS,
    NEW_EVENTS: _EVENT_COLUMNS,
    NAMESPACES: (_NAME, _field("Status", "status.phase"), _AGE),
    RESOURCE_CLAIMS: (_NAME, Column("State", describe_claim), _AGE),
    RESOURCE_SLICES: (
        _NAME,
        _field("Node", "spec.nodeName"),
        _field("Driver", "spec.driver"),
        _field("Pool", "spec.pool.name"),
        _AGE,
    ),
    DEVICE_TAINT_RULES: (
        _NAME,
        _field("Key", "spec.taint.key"),
        _field("Value", "spec.taint.value"),
        _field("Effect", "spec.taint.effect"),
        _AGE,
    ),
}
"""Those that differ from PLAIN."""
