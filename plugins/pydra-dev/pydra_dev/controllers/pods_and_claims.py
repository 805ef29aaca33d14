"""What controllers and the scheduler read in pods and claims, and decide about them. Pure.

Source: kube-controller-manager's resourceclaim controller and the scheduler's DRA plugin, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydra_dev.api.errors import JsonObject
from pydra_dev.apiserver.object_meta import SUFFIX_LENGTH

CLAIM_NAME_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
FINALIZER = "resource.kubernetes.io/delete-protection"
SCHEDULER = "default-scheduler"
_MAX_BASE = 63 - SUFFIX_LENGTH - 1


def full_name(obj: JsonObject) -> str:
    """`namespace/name`."""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def is_finished(pod: JsonObject) -> bool:
    """Whether the pod will run no more."""
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def claim_base_name(pod: str, claim: str) -> str:
    """`<pod>-<claim>-`, both cut in proportion to their length when they leave no room for the suffix."""
    length = len(pod) + 1 + len(claim)
    if length > _MAX_BASE:
        claim = claim[: max(1, len(claim) * _MAX_BASE // length)]
        room = _MAX_BASE - 1 - len(claim)
        pod = pod[: max(1, min(room, len(pod) * _MAX_BASE // length))]
    return f"{pod}-{claim}-"


def template_claims(pod: JsonObject) -> Mapping[str, str]:
    """The pod's claims that come from a template: their names in the pod to the template's name."""
    return {
        claim["name"]: claim["resourceClaimTemplateName"]
        for claim in pod["spec"].get("resourceClaims") or ()
        if claim.get("resourceClaimTemplateName")
    }


def claim_names(pod: JsonObject) -> Mapping[str, str | None]:
    """The pod's claims: their names in the pod to the ResourceClaim's name, None while there is none yet."""
    generated = {
        status["name"]: status.get("resourceClaimName")
        for status in pod.get("status", {}).get("resourceClaimStatuses") or ()
    }
    return {
        claim["name"]: claim.get("resourceClaimName") or generated.get(claim["name"])
        for claim in pod["spec"].get("resourceClaims") or ()
    }


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
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": spec["spec"],
    }


def is_schedulable(pod: JsonObject) -> bool:
    """Whether a pod waits for this scheduler."""
    return (
        not pod["spec"].get("nodeName")
        and pod["spec"].get("schedulerName", SCHEDULER) == SCHEDULER
        and not pod["spec"].get("schedulingGates")
        and "deletionTimestamp" not in pod["metadata"]
        and not is_finished(pod)
    )


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


def build_condition(type_: str, *, status: bool, now: str, reason: str = "", message: str = "") -> JsonObject:
    """A pod condition."""
    condition = {"type": type_, "status": str(status), "lastProbeTime": None, "lastTransitionTime": now}
    extra = {"reason": reason, "message": message}
    return {**condition, **{key: value for key, value in extra.items() if value}}


def set_condition(status: JsonObject, condition: JsonObject) -> JsonObject:
    """The pod's status with a condition; the same status when it says so already."""
    conditions = status.get("conditions") or []
    for index, present in enumerate(conditions):
        if present["type"] == condition["type"]:
            if all(present.get(key) == condition.get(key) for key in ("status", "reason", "message")):
                return status
            return {**status, "conditions": [*conditions[:index], condition, *conditions[index + 1 :]]}
    return {**status, "conditions": [*conditions, condition]}
