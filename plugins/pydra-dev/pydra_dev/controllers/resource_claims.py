"""The ResourceClaim controller: claims from templates, and their release when pods are gone.

Source: kube-controller-manager's resourceclaim controller, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydra_dev.api.errors import JsonObject
from pydra_dev.api.kinds import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS
from pydra_dev.apiserver.verbs import Api, Query
from pydra_dev.controllers.events import attempt
from pydra_dev.controllers.pods_and_claims import (
    FINALIZER,
    build_claim,
    claim_names,
    find_generated,
    is_finished,
    is_orphan,
    live_consumers,
    template_claims,
)


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
