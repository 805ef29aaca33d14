"""Garbage collection: of pods of lost nodes, of what belongs to objects that are gone, and of deleted namespaces."""

from __future__ import annotations

from collections.abc import Sequence

from pydra_dev.api.errors import JsonObject, attempt
from pydra_dev.api.kinds import NAMESPACES, NODES, PODS, Kind
from pydra_dev.apiserver.verbs import Api, Query
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
        for kind in _list_stored_kinds(api)
        for obj in api.list(kind).items
        if obj["metadata"].get("ownerReferences")
    ]
    for kind, obj in owned:
        metadata = obj["metadata"]
        if "deletionTimestamp" in metadata or any(_exists(api, obj, owner) for owner in metadata["ownerReferences"]):
            continue
        with attempt(f"collect {kind.plural} {metadata['name']}"):
            api.delete_object(kind, obj, {"preconditions": {"uid": metadata["uid"]}})


def _exists(api: Api, obj: JsonObject, owner: JsonObject) -> bool:
    identity = (owner["apiVersion"], owner["kind"])
    kind = next((kind for kind in api.kinds if (kind.api_version, kind.kind) == identity), None)
    if kind is None:
        return True  # of a kind that is not served here: nobody can say
    found = api.find(kind, owner["name"], namespace=obj["metadata"].get("namespace", ""))
    return found is not None and found["metadata"]["uid"] == owner["uid"]


def step_namespaces(api: Api) -> None:
    """Empty the namespaces that are being deleted, then remove them."""
    for namespace in api.list(NAMESPACES).items:
        name = namespace["metadata"]["name"]
        if "deletionTimestamp" not in namespace["metadata"]:
            continue
        content = [
            (kind, obj)
            for kind in _list_stored_kinds(api)
            if kind.namespaced
            for obj in api.list(kind, Query(namespace=name)).items
        ]
        for kind, obj in content:
            if "deletionTimestamp" not in obj["metadata"]:
                api.delete_object(kind, obj)
        if not content:
            api.remove_namespace(name)


def _list_stored_kinds(api: Api) -> Sequence[Kind]:
    """Those whose objects are not another kind's."""
    return [kind for kind in api.kinds if not kind.stores]
