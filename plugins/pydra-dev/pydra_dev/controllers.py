"""The controllers of the embedded control plane: claims from templates, scheduling, clean-up.

Each step looks at everything and does what is due, through the same verbs as an HTTP client;
`run_controllers` takes them in turn after every write, until nothing is left to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import anyio
import anyio.lowlevel

from pydra_dev.api.errors import JsonObject
from pydra_dev.api.kinds import (
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    SERVICE_ACCOUNTS,
    Kind,
)
from pydra_dev.apiserver.verbs import Api, Query
from pydra_dev.controller_decisions import (
    FINALIZER,
    attempt,
    build_claim,
    claim_names,
    emit_event,
    find_generated,
    is_finished,
    is_orphan,
    live_consumers,
    template_claims,
)
from pydra_dev.daemon_sets import step_daemon_sets
from pydra_dev.scheduler.scheduler import Scheduler

Step: TypeAlias = Callable[[], float | None]
"""One look at everything; returns the seconds until the next one is due without a write, if any."""


async def run_controllers(api: Api) -> None:
    """Run every controller until cancelled."""
    steps = build_steps(api)
    while True:
        wakeup, version = api.store.written.event, api.store.version
        delays = [delay for step in steps if (delay := step()) is not None]
        if api.store.version != version:
            await anyio.lowlevel.checkpoint()
            continue
        with anyio.move_on_after(min(delays, default=float("inf"))):
            await wakeup.wait()


def build_steps(api: Api) -> Sequence[Step]:
    """Every controller's step, in the order in which a pod's life needs them."""
    scheduler = Scheduler(api)
    looks = (step_daemon_sets, step_claims, step_release, step_pods, step_owners, step_namespaces)
    return (*(partial(look, api) for look in looks), scheduler.step, scheduler.step_eviction)


def step_claims(api: Api) -> None:
    """Give every pod the claims that its templates stand for, once."""
    for pod in api.list(PODS).items:
        wanted = template_claims(pod)
        if not wanted or "deletionTimestamp" in pod["metadata"] or is_finished(pod):
            continue
        known = claim_names(pod)
        for pod_claim, template in wanted.items():
            if known[pod_claim] is None:
                with attempt(f"create the claim {pod_claim} of pod {pod['metadata']['name']}"):
                    _generate_claim(api, pod, pod_claim, template)


def _generate_claim(api: Api, pod: JsonObject, pod_claim: str, template_name: str) -> None:
    namespace = pod["metadata"]["namespace"]
    claims = api.list(RESOURCE_CLAIMS, Query(namespace=namespace)).items
    claim = find_generated(pod, pod_claim, claims)
    if claim is None:
        template = api.find(RESOURCE_CLAIM_TEMPLATES, template_name, namespace=namespace)
        if template is None:
            return
        claim = api.create(RESOURCE_CLAIMS, build_claim(pod, pod_claim, template), namespace=namespace)
    status = api.get(PODS, pod["metadata"]["name"], namespace=namespace)["status"]
    statuses = [one for one in status.get("resourceClaimStatuses") or () if one["name"] != pod_claim]
    statuses.append({"name": pod_claim, "resourceClaimName": claim["metadata"]["name"]})
    api.write_status(PODS, pod, {**status, "resourceClaimStatuses": statuses})


def step_release(api: Api) -> None:
    """Take claims back from pods that are gone or finished; delete those that were made for them."""
    pods = {pod["metadata"]["uid"]: pod for pod in api.list(PODS).items}
    for claim in api.list(RESOURCE_CLAIMS).items:
        with attempt(f"release claim {claim['metadata']['name']}"):
            reserved = claim["status"].get("reservedFor") or []
            left = list(live_consumers(claim, pods))
            deleting = "deletionTimestamp" in claim["metadata"]
            if len(left) < len(reserved) or (deleting and not reserved):
                claim = _release(api, claim, left)  # noqa: PLW2901 - what is below sees it released
            if is_orphan(claim, pods) and not left and not deleting:
                api.delete_object(RESOURCE_CLAIMS, claim)


def _release(api: Api, claim: JsonObject, left: Sequence[JsonObject]) -> JsonObject:
    status = {**claim["status"], "reservedFor": list(left)}
    if not left:
        status.pop("allocation", None)
    claim = api.write_status(RESOURCE_CLAIMS, claim, status)
    finalizers = claim["metadata"].get("finalizers") or []
    if left or FINALIZER not in finalizers:
        return claim
    # The finalizer last: the claim may vanish only when its devices are given back.
    return api.write_finalizers(RESOURCE_CLAIMS, claim, [one for one in finalizers if one != FINALIZER])


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
        (kind, obj) for kind in _stored(api) for obj in api.list(kind).items if obj["metadata"].get("ownerReferences")
    ]
    for kind, obj in owned:
        metadata = obj["metadata"]
        if "deletionTimestamp" in metadata or any(_exists(api, obj, owner) for owner in metadata["ownerReferences"]):
            continue
        with attempt(f"collect {kind.plural} {metadata['name']}"):
            api.delete_object(kind, obj, {"preconditions": {"uid": metadata["uid"]}})


def _stored(api: Api) -> Sequence[Kind]:
    return [kind for kind in api.kinds if not kind.stores]


def _exists(api: Api, obj: JsonObject, owner: JsonObject) -> bool:
    identity = (owner["apiVersion"], owner["kind"])
    kind = next((kind for kind in api.kinds if (kind.api_version, kind.kind) == identity), None)
    if kind is None:
        return True  # of a kind that is not served here: nobody can say
    found = api.find(kind, owner["name"], namespace=obj["metadata"].get("namespace", ""))
    return found is not None and found["metadata"]["uid"] == owner["uid"]


def step_namespaces(api: Api) -> None:
    """Give each namespace its service account; empty those that are being deleted, then remove them."""
    for namespace in api.list(NAMESPACES).items:
        name = namespace["metadata"]["name"]
        if "deletionTimestamp" not in namespace["metadata"]:
            if api.find(SERVICE_ACCOUNTS, "default", namespace=name) is None:
                api.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace=name)
            continue
        content = [
            (kind, obj)
            for kind in _stored(api)
            if kind.namespaced
            for obj in api.list(kind, Query(namespace=name)).items
        ]
        for kind, obj in content:
            if "deletionTimestamp" not in obj["metadata"]:
                api.delete_object(kind, obj)
        if not content:
            api.remove_namespace(name)
