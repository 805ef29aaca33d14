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
from pydra_dev.apiserver.core_rules import convert_event

NONE = "<none>"


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a kind: names, those that only `-o wide` shows, and what makes a row's cells at a time."""

    names: tuple[str, ...]
    wide: frozenset[str] = frozenset()
    build_cells: Callable[[JsonObject, str], Sequence[Any]]


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
                "name": name,
                "type": "string",
                "format": "name" if name == "Name" else "",
                "description": "",
                "priority": int(name in columns.wide),
            }
            for name in columns.names
        ],
        "rows": [
            {"cells": list(columns.build_cells(obj, now)), **_build_object(obj, version, include)} for obj in objects
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


def _plain_cells(obj: JsonObject, now: str) -> Sequence[Any]:
    return obj["metadata"]["name"], _age(obj, now)


def _pod_cells(pod: JsonObject, now: str) -> Sequence[Any]:
    status, spec = pod.get("status") or {}, pod["spec"]
    containers = status.get("containerStatuses") or ()
    ready = sum(1 for one in containers if one.get("ready") and "running" in one.get("state", {}))
    restarts = sum(one.get("restartCount", 0) for one in containers)
    addresses = status.get("podIPs") or ()
    return (
        pod["metadata"]["name"],
        f"{ready}/{len(spec['containers'])}",
        _describe_pod(pod, status, containers),
        str(restarts),
        _age(pod, now),
        addresses[0].get("ip", NONE) if addresses else NONE,
        spec.get("nodeName") or NONE,
        status.get("nominatedNodeName") or NONE,
        NONE,
    )


def _describe_pod(pod: JsonObject, status: JsonObject, containers: Sequence[JsonObject]) -> str:
    phase = status.get("phase", "")
    reason: str = status.get("reason") or phase
    if any(one.get("reason") == "SchedulingGated" for one in status.get("conditions") or ()):
        reason = "SchedulingGated"
    for container in reversed(containers):
        state: Mapping[str, JsonObject] = container.get("state") or {}
        if told := state.get("waiting", {}).get("reason"):
            reason = told
        elif "terminated" in state:
            ended = state["terminated"]
            reason = ended.get("reason") or f"ExitCode:{ended.get('exitCode', 0)}"
    ending = "deletionTimestamp" in pod["metadata"] and phase not in ("Succeeded", "Failed")
    return "Terminating" if ending else reason


def _node_cells(node: JsonObject, now: str) -> Sequence[Any]:
    status = node.get("status") or {}
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    known = {"True": "Ready", None: "Unknown"}.get(conditions.get("Ready"), "NotReady")
    roles = sorted(
        name.removeprefix("node-role.kubernetes.io/")
        for name in node["metadata"].get("labels") or {}
        if name.startswith("node-role.kubernetes.io/")
    )
    addresses = {one["type"]: one["address"] for one in status.get("addresses") or ()}
    told = status.get("nodeInfo") or {}
    return (
        node["metadata"]["name"],
        f"{known},SchedulingDisabled" if node["spec"].get("unschedulable") else known,
        ",".join(roles) or NONE,
        _age(node, now),
        told.get("kubeletVersion", ""),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        *(told.get(name) or "<unknown>" for name in ("osImage", "kernelVersion", "containerRuntimeVersion")),
    )


def _event_cells(given: JsonObject, now: str) -> Sequence[Any]:
    event = convert_event(given, api_version="v1") if given["apiVersion"] != "v1" else given
    first = describe_age(event.get("firstTimestamp") or event.get("eventTime"), now)
    series = event.get("series") or {}
    last_seen = series.get("lastObservedTime") or event.get("lastTimestamp")
    about = event["involvedObject"]
    source = event.get("source") or {}
    names = (source.get("component") or event.get("reportingComponent", ""), event.get("reportingInstance", ""))
    return (
        describe_age(last_seen, now) if last_seen else first,
        event.get("type", ""),
        event.get("reason", ""),
        "/".join(filter(None, (about.get("kind", "").lower(), about.get("name")))),
        about.get("fieldPath", ""),
        ", ".join(filter(None, names)),
        event.get("message", "").strip(),
        first,
        str(series.get("count") or event.get("count") or 1),
        event["metadata"]["name"],
    )


def _namespace_cells(namespace: JsonObject, now: str) -> Sequence[Any]:
    return namespace["metadata"]["name"], (namespace.get("status") or {}).get("phase", ""), _age(namespace, now)


def _claim_cells(claim: JsonObject, now: str) -> Sequence[Any]:
    status = claim.get("status") or {}
    deleted = "deletionTimestamp" in claim["metadata"]
    states = ["deleted"] if deleted else []
    if status.get("allocation") is not None:
        states += ["allocated", *(["reserved"] if status.get("reservedFor") else [])]
    elif not deleted:
        states.append("pending")
    return claim["metadata"]["name"], ",".join(states), _age(claim, now)


def _slice_cells(obj: JsonObject, now: str) -> Sequence[Any]:
    spec = obj["spec"]
    return obj["metadata"]["name"], spec.get("nodeName", ""), spec["driver"], spec["pool"]["name"], _age(obj, now)


def _taint_rule_cells(rule: JsonObject, now: str) -> Sequence[Any]:
    taint = rule["spec"]["taint"]
    added = describe_age(taint.get("timeAdded"), now)
    return rule["metadata"]["name"], taint["key"], taint.get("value", ""), taint["effect"], added, _age(rule, now)


PLAIN = Columns(names=("Name", "Age"), build_cells=_plain_cells)
_EVENT_COLUMNS = Columns(
    names=("Last Seen", "Type", "Reason", "Object", "Subobject", "Source", "Message", "First Seen", "Count", "Name"),
    wide=frozenset({"Subobject", "Source", "First Seen", "Count", "Name"}),
    build_cells=_event_cells,
)
COLUMNS: Mapping[Kind, Columns] = {
    PODS: Columns(
        names=("Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates"),
        wide=frozenset({"IP", "Node", "Nominated Node", "Readiness Gates"}),
        build_cells=_pod_cells,
    ),
    NODES: Columns(
        names=(
            *("Name", "Status", "Roles", "Age", "Version"),
            *("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"),
        ),
        wide=frozenset({"Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"}),
        build_cells=_node_cells,
    ),
    EVENTS: _EVENT_COLUMNS,
    NEW_EVENTS: _EVENT_COLUMNS,
    NAMESPACES: Columns(names=("Name", "Status", "Age"), build_cells=_namespace_cells),
    RESOURCE_CLAIMS: Columns(names=("Name", "State", "Age"), build_cells=_claim_cells),
    RESOURCE_SLICES: Columns(names=("Name", "Node", "Driver", "Pool", "Age"), build_cells=_slice_cells),
    DEVICE_TAINT_RULES: Columns(
        names=("Name", "Key", "Value", "Effect", "TimeAdded", "Age"), build_cells=_taint_rule_cells
    ),
}
"""Those that differ from PLAIN."""
