"""The DaemonSet controller: a pod on each node that a DaemonSet selects, and its status.

Nodes are selected by `nodeSelector` alone, and tainted or cordoned ones too. Changes of the template replace pods, as
many at once as `maxUnavailable` says; `OnDelete`, surges and the history of revisions are missing.
Source: kube-controller-manager's daemon controller, Kubernetes 1.36.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from pydra_dev.api.errors import JsonObject, attempt
from pydra_dev.api.kinds import DAEMON_SETS, NODES, PODS
from pydra_dev.api.pod_fields import is_finished
from pydra_dev.apiserver.verbs import Api, Query

HASH_LABEL = "controller-revision-hash"


def step_daemon_sets(api: Api) -> None:
    """Create and delete the pods of all DaemonSets, and write their statuses."""
    for found in api.list(DAEMON_SETS).items:
        if "deletionTimestamp" not in found["metadata"]:
            with attempt(f"run the DaemonSet {found['metadata']['name']}"):
                _run(api, found)


def _run(api: Api, found: JsonObject) -> None:
    namespace, wanted, digest = found["metadata"]["namespace"], _list_nodes(api, found), _hash(found)
    pods = _list_pods(api, found)
    live = {get_daemon_node(pod): pod for pod in pods if "deletionTimestamp" not in pod["metadata"]}
    gone = [pod for node, pod in live.items() if node not in wanted or is_finished(pod)]
    outdated = [pod for node, pod in live.items() if pod["metadata"]["labels"].get(HASH_LABEL) != digest]
    ready = [pod for pod in outdated if _is_ready(pod)]
    away = len(wanted) - sum(_is_ready(pod) for pod in live.values())
    may_go = ready[: max(0, _read_budget(found, len(wanted)) - away)]
    replaced = [pod for pod in outdated if pod not in gone and (pod in may_go or not _is_ready(pod))]
    for pod in [*gone, *replaced]:
        api.delete_object(PODS, pod)
    for node in sorted(set(wanted) - {get_daemon_node(pod) for pod in pods}):
        api.create(PODS, _build_pod(found, node, digest), namespace=namespace)
    _write_status(api, found, wanted, digest)


def _list_nodes(api: Api, found: JsonObject) -> Sequence[str]:
    selector = found["spec"]["template"]["spec"].get("nodeSelector") or {}
    return [
        node["metadata"]["name"]
        for node in api.list(NODES).items
        if selector.items() <= (node["metadata"].get("labels") or {}).items()
    ]


def _list_pods(api: Api, found: JsonObject) -> Sequence[JsonObject]:
    uid, pods = found["metadata"]["uid"], api.list(PODS, Query(namespace=found["metadata"]["namespace"])).items
    return [pod for pod in pods if any(one["uid"] == uid for one in pod["metadata"].get("ownerReferences") or ())]


def get_daemon_node(pod: JsonObject) -> str | None:
    """The node that a pod of a DaemonSet is for, before and after it is scheduled; None for other pods."""
    affinity = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in affinity.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field["key"] == "metadata.name":
                return str(field["values"][0])
    return None


def _build_pod(found: JsonObject, node: str, digest: str) -> JsonObject:
    metadata, template = found["metadata"], found["spec"]["template"]
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": metadata["name"], "uid": metadata["uid"]}
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": fields}]}}
    own = template.get("metadata") or {}
    return {
        "metadata": {
            **own,
            "generateName": f"{metadata['name']}-",
            "labels": {**(own.get("labels") or {}), HASH_LABEL: digest},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {**template["spec"], "affinity": {"nodeAffinity": required}},
    }


def _hash(found: JsonObject) -> str:
    return hashlib.sha256(json.dumps(found["spec"]["template"], sort_keys=True).encode()).hexdigest()[:10]


def _read_budget(found: JsonObject, nodes: int) -> int:
    rolling = (found["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
    most = rolling.get("maxUnavailable", 1)
    return -(-nodes * int(most.rstrip("%")) // 100) if isinstance(most, str) else int(most)


def _is_ready(pod: JsonObject) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _write_status(api: Api, found: JsonObject, wanted: Sequence[str], digest: str) -> None:
    metadata = found["metadata"]
    pods = {get_daemon_node(pod): pod for pod in _list_pods(api, found) if "deletionTimestamp" not in pod["metadata"]}
    placed = [pod for node, pod in pods.items() if node in wanted]
    ready = sum(map(_is_ready, placed))
    status = {
        "observedGeneration": metadata["generation"],
        "desiredNumberScheduled": len(wanted),
        "currentNumberScheduled": len(placed),
        "numberMisscheduled": len(pods) - len(placed),
        "updatedNumberScheduled": sum(pod["metadata"]["labels"].get(HASH_LABEL) == digest for pod in placed),
        "numberReady": ready,
        "numberAvailable": ready,
        "numberUnavailable": len(wanted) - ready,
    }
    if found.get("status") != status:
        api.write_status(DAEMON_SETS, found, status)
