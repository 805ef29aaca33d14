"""What to do next with a pod, and what its status says. Pure; times are seconds of a clock that goes on.

Containers are not real processes. One whose command is `sleep N` ends after N seconds; any other
runs until it is stopped. A pod whose restart policy is Always, the default, never ends by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias

import msgspec

JsonObject: TypeAlias = Mapping[str, Any]


class Phase(Enum):
    """How far the kubelet is with a pod."""

    NEW = "new"
    RUNNING = "running"
    STOPPED = "stopped"
    CLEAN = "clean"
    ENDED = "ended"


class Todo(Enum):
    """The next thing to do."""

    START = "start"
    WAIT = "wait"
    STOP = "stop"
    CLEAN = "clean"
    FINISH = "finish"
    DELETE = "delete"
    LEAVE = "leave"


class PodState(msgspec.Struct, frozen=True, kw_only=True):
    """What the kubelet did with a pod; `ends` is when its containers end by themselves, None for never."""

    phase: Phase = Phase.NEW
    ends: float | None = None


class ResourceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `allocatedResourcesStatus[].resources`."""

    resource_id: str
    health: str
    message: str = ""


def adopt_state(pod: JsonObject, now: float) -> PodState:
    """Where a kubelet that has just started finds a pod: containers run on while it is down."""
    phase = pod.get("status", {}).get("phase")
    if phase == "Running":
        return PodState(phase=Phase.RUNNING, ends=find_end(pod, now))
    if phase in ("Succeeded", "Failed"):
        return PodState(phase=Phase.STOPPED)
    return PodState()


def plan_pod(pod: JsonObject | None, state: PodState, now: float) -> Todo:
    """What to do with a pod as the API server has it, None when it is gone there.

    Claims of a pod that is gone are found by the reconciliation, as in the original.
    """
    if pod is None:
        return Todo.STOP if state.phase is Phase.RUNNING else Todo.LEAVE
    ending = "deletionTimestamp" in pod["metadata"]
    match state.phase:
        case Phase.NEW:
            # Nothing runs, but claims may have been prepared by an attempt that failed later.
            return Todo.CLEAN if ending else Todo.START
        case Phase.RUNNING:
            return Todo.STOP if ending or (state.ends is not None and state.ends <= now) else Todo.WAIT
        case Phase.STOPPED:
            return Todo.CLEAN
        case Phase.CLEAN:
            return Todo.FINISH
        case Phase.ENDED:
            return Todo.DELETE if ending else Todo.WAIT


def find_end(pod: JsonObject, now: float) -> float | None:
    """When the containers of a pod that starts now end by themselves."""
    if pod["spec"].get("restartPolicy", "Always") == "Always":
        return None
    seconds = [_run_seconds(container) for container in pod["spec"]["containers"]]
    known = [one for one in seconds if one is not None]
    return now + max(known, default=0.0) if len(known) == len(seconds) else None


def _run_seconds(container: JsonObject) -> float | None:
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    match words:
        case ["sleep" | "/bin/sleep", str(seconds)]:
            try:
                return float(seconds)
            except ValueError:
                return None
    return None


def build_status(
    pod: JsonObject,
    phase: str,
    started: str,
    *,
    state: JsonObject,
    resources: Mapping[str, Sequence[tuple[str, Sequence[ResourceHealth]]]],
) -> dict[str, Any]:
    """The kubelet's part of a pod's status: `state` of each container, and by container its resources' health.

    `started` is a time as the API writes it. Conditions that others wrote stay.
    """
    running = "running" in state
    containers = [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "ready": running,
            "started": running,
            "restartCount": 0,
            "state": dict(state),
        }
        | _allocated(resources.get(container["name"], ()))
        for container in pod["spec"]["containers"]
    ]
    conditions = [{"type": kind, "status": "True" if running else "False"} for kind in ("Ready", "ContainersReady")]
    kept = [
        one for one in pod.get("status", {}).get("conditions") or () if one["type"] not in ("Ready", "ContainersReady")
    ]
    return {
        "phase": phase,
        "startTime": started,
        "conditions": [*kept, *conditions],
        "containerStatuses": containers,
    }


def _allocated(claims: Sequence[tuple[str, Sequence[ResourceHealth]]]) -> dict[str, Any]:
    entries = [
        {"name": name, "resources": [_health_entry(one) for one in {one.resource_id: one for one in devices}.values()]}
        for name, devices in claims
        if devices
    ]
    return {"allocatedResourcesStatus": entries} if entries else {}


def _health_entry(one: ResourceHealth) -> dict[str, str]:
    entry = {"resourceID": one.resource_id, "health": one.health}
    return {**entry, "message": one.message} if one.message else entry
