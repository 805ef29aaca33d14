"""The ResourceClaim controller: claims from templates, and their release when pods are gone.

Source: kube-controller-manager's resourceclaim controller, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydra_dev.api.errors import JsonObject, StatusError, attempt
from pydra_dev.api.kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from pydra_dev.api.pod_fields import claim_names, is_finished, template_claims
from pydra_dev.apiserver.claim_rules import MAX_RESERVED
from pydra_dev.apiserver.object_meta import SUFFIX_LENGTH
from pydra_dev.apiserver.verbs import Api, Query
from pydra_dev.controllers.emit_events import emit_event_once

CLAIM_NAME_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
FINALIZER = "resource.kubernetes.io/delete-protection"
COMPONENT = "resource_claim"
FAILED_CREATION = "FailedResourceClaimCreation"
"""The reason of the Event on a pod whose claim cannot be made from its template."""
_MAX_BASE = 63 - SUFFIX_LENGTH - 1


def step_claims(api: Api) -> None:
    """Give every pod the claims that its templates stand for, and those that have a node their reservations.

    A generated claim that was deleted is made again. The scheduler reserves claims for the pods that it gives a node.
    """
    for pod in api.list(PODS).items:
        if not pod["spec"].get("resourceClaims") or "deletionTimestamp" in pod["metadata"] or is_finished(pod):
            continue
        with attempt(f"give pod {pod['metadata']['name']} its claims"):
            _sync_pod(api, pod)


def _sync_pod(api: Api, pod: JsonObject) -> None:
    namespace, known, templates = pod["metadata"]["namespace"], claim_names(pod), template_claims(pod)
    claims = {name: api.find(RESOURCE_CLAIMS, name, namespace=namespace) for name in known.values() if name}
    for pod_claim, template in templates.items():
        claim = claims.get(known[pod_claim] or "")
        if claim is not None and is_owned(claim, pod):
            continue
        try:
            _generate_claim(api, pod, pod_claim, template)
        except StatusError as error:
            message = f"PodResourceClaim {pod_claim}: {error}"
            emit_event_once(api, pod, "Warning", FAILED_CREATION, message, component=COMPONENT)
            return
    if not pod["spec"].get("nodeName"):
        return
    for pod_claim, name in known.items():
        claim = claims.get(name or "")
        if claim is not None and (pod_claim not in templates or is_owned(claim, pod)):
            _reserve(api, claim, pod)


def _reserve(api: Api, claim: JsonObject, pod: JsonObject) -> None:
    status, metadata = claim["status"], pod["metadata"]
    reserved = status.get("reservedFor") or []
    if "allocation" not in status or len(reserved) >= MAX_RESERVED:
        return
    if all(one["uid"] != metadata["uid"] for one in reserved):
        consumer = {"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}
        api.write_status(RESOURCE_CLAIMS, claim, {**status, "reservedFor": [*reserved, consumer]})


def _generate_claim(api: Api, pod: JsonObject, pod_claim: str, template_name: str) -> None:
    namespace = pod["metadata"]["namespace"]
    claims = api.list(RESOURCE_CLAIMS, Query(namespace=namespace)).items
    claim = find_generated(pod, pod_claim, claims)
    if claim is None:
        template = api.get(RESOURCE_CLAIM_TEMPLATES, template_name, namespace=namespace)
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


def claim_base_name(pod: str, claim: str) -> str:
    """`<pod>-<claim>-`, both cut in proportion to their length when they leave no room for the suffix."""
    length = len(pod) + 1 + len(claim)
    if length > _MAX_BASE:
        claim = claim[: max(1, len(claim) * _MAX_BASE // length)]
        room = _MAX_BASE - 1 - len(claim)
        pod = pod[: max(1, min(room, len(pod) * _MAX_BASE // length))]
    return f"{pod}-{claim}-"


def find_generated(pod: JsonObject, pod_claim: str, claims: Iterable[JsonObject]) -> JsonObject | None:
    """The claim that was made for this pod's claim already, if any."""
    return next(
        (
            claim
            for claim in claims
            if is_owned(claim, pod)
            and (claim["metadata"].get("annotations") or {}).get(CLAIM_NAME_ANNOTATION) == pod_claim
        ),
        None,
    )


def is_owned(claim: JsonObject, pod: JsonObject) -> bool:
    """Whether the pod is the claim's controlling owner."""
    return any(
        owner.get("controller") and owner["uid"] == pod["metadata"]["uid"]
        for owner in claim["metadata"].get("ownerReferences") or ()
    )


def build_claim(pod: JsonObject, pod_claim: str, template: JsonObject) -> JsonObject:
    """The claim that a template gives a pod."""
    spec, metadata = template["spec"], template["spec"].get("metadata") or {}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
    return {
        "metadata": {
            "generateName": claim_base_name(pod["metadata"]["name"], pod_claim),
            "labels": metadata.get("labels") or {},
            "annotations": {**(metadata.get("annotations") or {}), CLAIM_NAME_ANNOTATION: pod_claim},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": spec["spec"],
    }


def live_consumers(claim: JsonObject, pods: Mapping[str, JsonObject]) -> Sequence[JsonObject]:
    """The claim's consumers that still need it; `pods` are all pods by uid. Others than pods stay."""
    return [
        consumer
        for consumer in claim.get("status", {}).get("reservedFor") or ()
        if consumer["resource"] != "pods" or (consumer["uid"] in pods and not is_finished(pods[consumer["uid"]]))
    ]


def is_orphan(claim: JsonObject, pods: Mapping[str, JsonObject]) -> bool:
    """Whether the claim was made for a pod that is gone or finished."""
    owners = [owner for owner in claim["metadata"].get("ownerReferences") or () if owner.get("controller")]
    return any(
        owner["kind"] == "Pod" and (owner["uid"] not in pods or is_finished(pods[owner["uid"]])) for owner in owners
    )
