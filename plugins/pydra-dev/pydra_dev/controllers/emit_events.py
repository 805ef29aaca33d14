"""The Events that the controllers and the scheduler write."""

from __future__ import annotations

from pydra_dev.api.errors import JsonObject, attempt
from pydra_dev.api.kinds import EVENTS
from pydra_dev.apiserver.object_meta import build_suffix
from pydra_dev.apiserver.verbs import Api, Query

SCHEDULER = "default-scheduler"


def emit_event(
    api: Api, about: JsonObject, type_: str, reason: str, message: str, *, component: str = SCHEDULER
) -> None:
    """Write an Event about a namespaced object."""
    metadata, now = about["metadata"], api.now
    involved = {"kind": about["kind"], "apiVersion": about["apiVersion"]}
    involved |= {key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion")}
    body = {
        "metadata": {"name": f"{metadata['name']}.{build_suffix(api.random)}{build_suffix(api.random)}"},
        "involvedObject": involved,
        "reason": reason,
        "message": message,
        "type": type_,
        "source": {"component": component},
        "reportingComponent": component,
        "reportingInstance": "",
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
    }
    with attempt(f"write event {reason}"):
        api.create(EVENTS, body, namespace=metadata["namespace"])


def emit_event_once(api: Api, about: JsonObject, type_: str, reason: str, message: str, *, component: str) -> None:
    """Write an Event about a namespaced object unless the same one is there: to write it wakes its writer again."""
    metadata = about["metadata"]
    known = api.list(EVENTS, Query(namespace=metadata["namespace"])).items
    if all((one["involvedObject"].get("uid"), one.get("message")) != (metadata["uid"], message) for one in known):
        emit_event(api, about, type_, reason, message, component=component)
