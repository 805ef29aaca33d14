"""Garbage collection: of pods of lost nodes, and of what belongs to objects that are gone."""

from __future__ import annotations

from collections.abc import Sequence

from pydra_dev.api.errors import JsonObject, attempt
from pydra_dev.api.kinds import NODES, PODS, Kind
from pydra_dev.apiserver.verbs import Api
from pydra_dev.controllers.emit_events import emit_event


def step_pods(api: Api) -> None:
    """Finish the deletion of pods whose node no longer exists: no kubelet will."""
    nodes = {node["metadata"]["name"] for node in api.list(NODES).items}
    for pod in api.list(PODS).items:
        node = pod["spec"].get("nodeName")
        if "deletionTimestamp" in pod["metadata"] and node not in nodes:
            emit_event(api, pod, "Normal", "DeletingOrphanedPod", f"node {node} does not exist")
            api.delete_object(PODS, pod, {"gracePeriodSeconds": 0})


def step_owners(api: Api) -> None:
    """Delete what belongs only to objects that no longer exist."""
    owned = [
        (kind, obj)
        for kind in list_stored_kinds(api)
        for obj in api.list(kind).items
        if obj["metadata"].get("ownerReferences")
    ]
    for kind, obj in owned:
        metadata = obj["metadata"]
        if "deletionTimestamp" in metadata or any(_exists(api, obj, owner) for owner in metadata["ownerReferences"]):
            continue
        with attempt(f"collect {kind.plural} {metadata['name']}"):
            api.delete_object(kind, obj, {"preconditions": {"uid": metadata["uid"]}})


def list_stored_kinds(api: Api) -> Sequence[Kind]:
    """The kinds whose objects are stored."""
    return [kind for kind in api.kinds if not kind.stores]


def _exists(api: Api, obj: JsonObject, owner: JsonObject) -> bool:
    identity = (owner["apiVersion"], owner["kind"])
    kind = next((kind for kind in api.kinds if (kind.api_version, kind.kind) == identity), None)
    if kind is None:
        return True  # of a kind that is not served here: nobody can say
    found = api.find(kind, owner["name"], namespace=obj["metadata"].get("namespace", ""))
    return found is not None and found["metadata"]["uid"] == owner["uid"]
