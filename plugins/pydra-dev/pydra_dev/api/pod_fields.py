"""What the fields of a pod say: whether it has ended, its claims, its conditions. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pydra_dev.api.errors import JsonObject


def is_finished(pod: JsonObject) -> bool:
    """Whether the pod will run no more."""
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


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
