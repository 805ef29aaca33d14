"""The tables that `kubectl get` shows: the server prints the columns of each kind. Pure.

Source: Kubernetes 1.36, pkg/printers/internalversion/printers.go; apimachinery, pkg/util/duration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from pydra_dev.api.errors import JsonObject, StatusError, bad_request
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
from pydra_dev.apiserver.core_rules import store_form

NONE = "<none>"


class Column(msgspec.Struct, frozen=True):
    """A column: its name, what makes its cell of an object at a time, and whether only `-o wide` shows it."""

    name: str
    build_cell: Callable[[JsonObject, str], str]
    wide: bool = False


def wants_table(accept: str) -> str:
    """The API version of the Table that an Accept header prefers; empty when it wants the object itself.

    Raises a 406 StatusError for another transformation.
    """
    for choice in accept.split(","):
        media, *parameters = (part.strip() for part in choice.split(";"))
        given = dict(parameter.partition("=")[::2] for parameter in parameters)
        if media not in ("application/json", "application/*", "*/*", ""):
            continue
        if "as" not in given:
            return ""
        if given["as"] == "Table" and given.get("g") == "meta.k8s.io" and given.get("v") in ("v1", "v1beta1"):
            return f"meta.k8s.io/{given['v']}"
    if not accept:
        return ""
    supported = "application/json"
    raise StatusError(406, "NotAcceptable", f"only the following media types are accepted: {supported}")


def build_table(
    kind: Kind, objects: Iterable[JsonObject], metadata: JsonObject, *, version: str, now: str, include: str = ""
) -> JsonObject:
    """Objects of a kind as a Table; `include` is the query's includeObject. Raises a 400 StatusError."""
    if include not in ("", "Metadata", "Object", "None"):
        raise bad_request(f'unrecognized includeObject value: "{include}"')
    columns = COLUMNS.get(kind, PLAIN)
    return {
        "kind": "Table",
        "apiVersion": version,
        "metadata": metadata,
        "columnDefinitions": [
            {
                "name": one.name,
                "type": "string",
                "format": "name" if one.name == "Name" else "",
                "description": "",
                "priority": int(one.wide),
            }
            for one in columns
        ],
        "rows": [
            {"cells": [one.build_cell(store_form(obj), now) for one in columns], **_build_object(obj, version, include)}
            for obj in objects
        ],
    }


def _build_object(obj: JsonObject, version: str, include: str) -> JsonObject:
    if include == "None":
        return {}
    if include == "Object":
        return {"object": obj}
    return {"object": {"kind": "PartialObjectMetadata", "apiVersion": version, "metadata": obj["metadata"]}}


def describe_age(since: str | None, now: str) -> str:
    """`5s`, `3m20s`, `2d`: how long ago a time was."""
    if not since:
        return "<unknown>"
    seconds = int((datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds())
    minutes, hours = seconds // 60, seconds // 3600
    if seconds < 0:
        return "0s" if seconds >= -1 else "<invalid>"
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _join(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _join(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    return _join(hours // 24, "d", hours % 24, "h") if hours < 192 else f"{hours // 24}d"


def _join(first: int, first_unit: str, second: int, second_unit: str) -> str:
    return f"{first}{first_unit}" + (f"{second}{second_unit}" if second else "")


def _age(obj: JsonObject, now: str) -> str:
    return describe_age(obj["metadata"].get("creationTimestamp"), now)


def _list_containers(pod: JsonObject) -> Sequence[JsonObject]:
    return (pod.get("status") or {}).get("containerStatuses") or ()


def _count_ready(pod: JsonObject, _now: str) -> str:
    ready = sum(1 for one in _list_containers(pod) if one.get("ready") and "running" in one.get("state", {}))
    return f"{ready}/{len(pod['spec']['containers'])}"


def describe_pod(pod: JsonObject, _now: str = "") -> str:
    """The status of a pod in one word."""
    status = pod.get("status") or {}
    phase = status.get("phase", "")
    reason: str = status.get("reason") or phase
    if any(one.get("reason") == "SchedulingGated" for one in status.get("conditions") or ()):
        reason = "SchedulingGated"
    for container in reversed(_list_containers(pod)):
        state: Mapping[str, JsonObject] = container.get("state") or {}
        if told := state.get("waiting", {}).get("reason"):
            reason = told
        elif "terminated" in state:
            ended = state["terminated"]
            reason = ended.get("reason") or f"ExitCode:{ended.get('exitCode', 0)}"
    ending = "deletionTimestamp" in pod["metadata"] and phase not in ("Succeeded", "Failed")
    return "Terminating" if ending else reason


def _describe_node(node: JsonObject, _now: str) -> str:
    conditions = {one["type"]: one["status"] for one in (node.get("status") or {}).get("conditions") or ()}
    known = {"True": "Ready", None: "Unknown"}.get(conditions.get("Ready"), "NotReady")
    return f"{known},SchedulingDisabled" if node["spec"].get("unschedulable") else known


def _list_roles(node: JsonObject, _now: str) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    return ",".join(sorted(one.removeprefix(prefix) for one in labels if one.startswith(prefix))) or NONE


def _describe_last_seen(event: JsonObject, now: str) -> str:
    last = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp")
    return describe_age(last or event.get("firstTimestamp") or event.get("eventTime"), now)


def _name_involved(event: JsonObject, _now: str) -> str:
    about = event["involvedObject"]
    return "/".join(filter(None, (about.get("kind", "").lower(), about.get("name"))))


def _name_source(event: JsonObject, _now: str) -> str:
    component = (event.get("source") or {}).get("component") or event.get("reportingComponent", "")
    return ", ".join(filter(None, (component, event.get("reportingInstance", ""))))


def _count_event(event: JsonObject, _now: str) -> str:
    return str((event.get("series") or {}).get("count") or event.get("count") or 1)


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


def _field(name: str, *path: str, wide: bool = False, absent: str = "") -> Column:
    """A column with what is in a field."""

    def read(obj: JsonObject, _now: str) -> str:
        value: Any = obj
        for part in path:
            value = (value or {}).get(part)
        return str(value or absent).strip()

    return Column(name, read, wide)


_NAME, _AGE = _field("Name", "metadata", "name"), Column("Age", _age)
PLAIN = (_NAME, _AGE)
_EVENT_COLUMNS = (
    Column("Last Seen", _describe_last_seen),
    _field("Type", "type"),
    _field("Reason", "reason"),
    Column("Object", _name_involved),
    Column("Source", _name_source, wide=True),
    _field("Message", "message"),
    Column("Count", _count_event, wide=True),
    _field("Name", "metadata", "name", wide=True),
)
COLUMNS: Mapping[Kind, Sequence[Column]] = {
    PODS: (
        _NAME,
        Column("Ready", _count_ready),
        Column("Status", describe_pod),
        Column("Restarts", lambda pod, _now: str(sum(one.get("restartCount", 0) for one in _list_containers(pod)))),
        _AGE,
        _field("IP", "status", "podIP", wide=True, absent=NONE),
        _field("Node", "spec", "nodeName", wide=True, absent=NONE),
    ),
    NODES: (
        _NAME,
        Column("Status", _describe_node),
        Column("Roles", _list_roles),
        _AGE,
        _field("Version", "status", "nodeInfo", "kubeletVersion"),
    ),
    EVENTS: _EVENT_COLUMNS,
    NEW_EVENTS: _EVENT_COLUMNS,
    NAMESPACES: (_NAME, _field("Status", "status", "phase"), _AGE),
    RESOURCE_CLAIMS: (_NAME, Column("State", describe_claim), _AGE),
    RESOURCE_SLICES: (
        _NAME,
        _field("Node", "spec", "nodeName"),
        _field("Driver", "spec", "driver"),
        _field("Pool", "spec", "pool", "name"),
        _AGE,
    ),
    DEVICE_TAINT_RULES: (
        _NAME,
        _field("Key", "spec", "taint", "key"),
        _field("Value", "spec", "taint", "value"),
        _field("Effect", "spec", "taint", "effect"),
        Column("TimeAdded", lambda rule, now: describe_age(rule["spec"]["taint"].get("timeAdded"), now)),
        _AGE,
    ),
}
"""Those that differ from PLAIN."""
