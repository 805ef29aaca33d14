"""What the API server demands of the few core kinds it serves, and what it fills in. Pure.

Only what a node agent, a kubelet and `kubectl` meet: pods keep most of their fields unchecked.
Source: `pkg/apis/core/validation`, `pkg/registry/core/*/strategy.go`, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydra_dev.formats import Errors, check_label, check_subdomain
from pydra_dev.status import JsonObject, duplicate, forbidden, invalid, required, unknown, unsupported

POD_DEFAULTS: Mapping[str, Any] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "serviceAccountName": "default",
    "securityContext": {},
    "enableServiceLinks": True,
    "preemptionPolicy": "PreemptLowerPriority",
    "priority": 0,
    "tolerations": [
        {"key": f"node.kubernetes.io/{state}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for state in ("not-ready", "unreachable")
    ],
}
_CONTAINER_DEFAULTS: Mapping[str, Any] = {
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "resources": {},
}
_EVENT_TYPES = frozenset({"Normal", "Warning"})
_MUTABLE_POD_FIELDS = ("activeDeadlineSeconds", "terminationGracePeriodSeconds", "tolerations", "schedulingGates")


def default_pod(spec: JsonObject) -> JsonObject:
    """A pod's spec with what is absent filled in."""
    filled = {**POD_DEFAULTS, **spec}
    for group in ("containers", "initContainers"):
        if group in filled:
            filled[group] = [_default_container(container) for container in filled[group]]
    return filled


def _default_container(container: JsonObject) -> JsonObject:
    image = str(container.get("image", ""))
    pinned = "@" in image or (":" in image.rpartition("/")[2] and not image.endswith(":latest"))
    return {**_CONTAINER_DEFAULTS, "imagePullPolicy": "IfNotPresent" if pinned else "Always", **container}


def check_pod(spec: JsonObject, path: str = "spec") -> Errors:
    """Containers, and the claims that the pod and its containers name."""
    containers = spec.get("containers") or []
    if not containers:
        yield required(f"{path}.containers")
    claims = spec.get("resourceClaims") or []
    yield from _check_pod_claims(f"{path}.resourceClaims", claims)
    names = {claim.get("name") for claim in claims}
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or []):
            yield from _check_container(f"{path}.{group}[{index}]", container, names)


def _check_pod_claims(path: str, claims: list[JsonObject]) -> Errors:
    seen = set()
    for index, claim in enumerate(claims):
        at, name = f"{path}[{index}]", str(claim.get("name") or "")
        if name:
            yield from check_label(f"{at}.name", name)
        else:
            yield required(f"{at}.name")
        if name in seen:
            yield duplicate(f"{at}.name", name)
        seen.add(name)
        sources = [claim.get("resourceClaimName"), claim.get("resourceClaimTemplateName")]
        if all(sources):
            yield invalid(
                at, claim, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified"
            )
        elif not any(sources):
            yield invalid(at, claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")


def _check_container(path: str, container: JsonObject, claims: set[Any]) -> Errors:
    if container.get("name"):
        yield from check_label(f"{path}.name", str(container["name"]))
    else:
        yield required(f"{path}.name")
    if not container.get("image"):
        yield required(f"{path}.image")
    resources = container.get("resources") or {}
    for index, claim in enumerate(resources.get("claims") or []):
        if claim.get("name") not in claims:
            detail = "must be one of the names in pod.spec.resourceClaims: " + ", ".join(sorted(map(str, claims)))
            yield unknown(f"{path}.resources.claims[{index}]", claim.get("name", ""), detail if claims else "")


def check_pod_update(spec: JsonObject, old: JsonObject) -> Errors:
    """Almost all of a pod's spec is immutable."""
    if _frozen_part(spec) != _frozen_part(old):
        yield forbidden(
            "spec",
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
            "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
            "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        )


def _frozen_part(spec: JsonObject) -> JsonObject:
    frozen = {key: value for key, value in spec.items() if key not in _MUTABLE_POD_FIELDS and value not in ([], None)}
    for group in ("containers", "initContainers"):
        if group in frozen:
            frozen[group] = [{**container, "image": ""} for container in frozen[group]]
    return frozen


def check_event(obj: JsonObject) -> Errors:
    """An event lies in the namespace of what it is about, or in `default` when that has none."""
    involved = obj.get("involvedObject") or {}
    namespace = obj["metadata"].get("namespace", "")
    own = involved.get("namespace", "")
    if own != namespace and not (not own and namespace in {"default", "kube-system"}):
        yield invalid("involvedObject.namespace", own, "does not match event.namespace")
    if not obj.get("eventTime"):
        return
    if not (obj.get("reportingComponent") or obj.get("reportingController")):
        yield required("reportingController")
    for field in ("reportingInstance", "action", "reason"):
        if not obj.get(field):
            yield required(field)
    if obj.get("type") not in _EVENT_TYPES:
        yield invalid("type", obj.get("type", ""), f"has invalid value: {obj.get('type', '')}")


def default_event(obj: JsonObject) -> JsonObject:
    """An event with the fields that are shown even when nobody set them."""
    empty: JsonObject = {"eventTime": None, "firstTimestamp": None, "lastTimestamp": None, "source": {}}
    return {**empty, "reportingComponent": "", "reportingInstance": "", **obj}


def check_new_event(obj: JsonObject) -> Errors:
    """What events.k8s.io/v1 asks for beyond core v1, on creation."""
    if not obj.get("eventTime"):
        yield required("eventTime")
        if obj.get("type") not in _EVENT_TYPES:
            yield invalid("type", obj.get("type", ""), f"has invalid value: {obj.get('type', '')}")


def check_node(obj: JsonObject) -> Errors:
    """Taints on a node have an effect."""
    for index, taint in enumerate((obj.get("spec") or {}).get("taints") or []):
        if taint.get("effect") not in {"NoSchedule", "PreferNoSchedule", "NoExecute"}:
            effects = ("NoExecute", "NoSchedule", "PreferNoSchedule")
            yield unsupported(f"spec.taints[{index}].effect", taint.get("effect", ""), effects)


def check_name(kind: str, path: str, name: str) -> Errors:
    """A namespace's name is a DNS label, every other one a DNS subdomain."""
    if kind == "Namespace":
        yield from check_label(path, name)
    else:
        yield from check_subdomain(path, name)


_NEW_TO_CORE = {
    "note": "message",
    "regarding": "involvedObject",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedCount": "count",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
}
_CORE_TO_NEW = {core: new for new, core in _NEW_TO_CORE.items()}


def convert_event(obj: JsonObject, *, api_version: str) -> JsonObject:
    """The same event as core v1 or events.k8s.io/v1 shows it."""
    names = _NEW_TO_CORE if api_version == "v1" else _CORE_TO_NEW
    return {**{names.get(key, key): value for key, value in obj.items()}, "apiVersion": api_version}
