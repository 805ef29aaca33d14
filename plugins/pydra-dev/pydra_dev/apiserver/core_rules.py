"""What the API server demands of pods, nodes and Events, and what it fills in. Pure.

As far as a node agent, a kubelet and `kubectl` meet it. Source: `pkg/apis/core/validation`, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydra_dev.api.errors import FieldError, JsonObject, duplicate, forbidden, invalid, required, unknown, unsupported
from pydra_dev.api.kinds import EVENTS, NAMESPACES, NEW_EVENTS, NODES, PODS, Kind
from pydra_dev.apiserver.name_and_list_validation import Errors, check_label, check_required, check_subdomain

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
    seen = set()
    for group in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(group) or []):
            at, name = f"{path}.{group}[{index}]", container.get("name")
            yield from _check_container(at, container, names)
            if name in seen:
                yield duplicate(f"{at}.name", name)
            seen.add(name)


def _check_pod_claims(path: str, claims: list[JsonObject]) -> Errors:
    seen = set()
    for index, claim in enumerate(claims):
        at, name = f"{path}[{index}]", str(claim.get("name") or "")
        yield from check_required(f"{at}.name", name)
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
        for field in ("resourceClaimName", "resourceClaimTemplateName"):
            if claim.get(field):
                yield from check_subdomain(f"{at}.{field}", claim[field])


def _check_container(path: str, container: JsonObject, claims: set[Any]) -> Errors:
    yield from check_required(f"{path}.name", str(container.get("name") or ""))
    if not container.get("image"):
        yield required(f"{path}.image")
    resources = container.get("resources") or {}
    used: set[tuple[str, str]] = set()
    for index, claim in enumerate(resources.get("claims") or []):
        at, name, request = f"{path}.resources.claims[{index}]", claim.get("name") or "", claim.get("request") or ""
        if not name:
            yield required(at)
        if request:
            # A container names a request, also where the claim got one of its subrequests.
            yield from check_label(f"{at}.request", request)
        if used & {(name, ""), (name, request)} or (not request and any(other == name for other, _ in used)):
            yield duplicate(at, f"{name}/{request}".rstrip("/"))
        used.add((name, request))
        if name not in claims:
            detail = "must be one of the names in pod.spec.resourceClaims: " + ", ".join(sorted(map(str, claims)))
            yield unknown(at, name, detail if claims else "")


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


def store_form(obj: JsonObject) -> JsonObject:
    """An object as it is stored, whichever version showed it."""
    return convert_event(obj, api_version="v1") if obj.get("apiVersion") == NEW_EVENTS.api_version else obj


Admitted = tuple[JsonObject, list[FieldError]]


def _create_pod(obj: JsonObject) -> Admitted:
    spec = default_pod(obj.get("spec") or {})
    return {**obj, "spec": spec, "status": {"phase": "Pending", "qosClass": "BestEffort"}}, list(check_pod(spec))


def _update_pod(obj: JsonObject, old: JsonObject) -> Admitted:
    spec = default_pod(obj.get("spec") or {})
    return {**obj, "spec": spec}, list(check_pod_update(spec, old["spec"]))


def _create_namespace(obj: JsonObject) -> Admitted:
    metadata = {**obj["metadata"], "labels": {**(obj["metadata"].get("labels") or {})}}
    metadata["labels"]["kubernetes.io/metadata.name"] = metadata["name"]
    spec = {"finalizers": ["kubernetes"]}
    return {**obj, "metadata": metadata, "spec": spec, "status": {"phase": "Active"}}, []


def _create_new_event(obj: JsonObject) -> Admitted:
    core = default_event(convert_event(obj, api_version="v1"))
    return core, [*check_new_event(core), *check_event(core)]


CREATE: Mapping[Kind, Callable[[JsonObject], Admitted]] = {
    PODS: _create_pod,
    NAMESPACES: _create_namespace,
    NODES: lambda obj: ({"spec": {}, "status": {}, **obj}, list(check_node(obj))),
    EVENTS: lambda obj: (default_event(obj), list(check_event(obj))),
    NEW_EVENTS: _create_new_event,
}
UPDATE: Mapping[Kind, Callable[[JsonObject, JsonObject], Admitted]] = {
    PODS: _update_pod,
    NODES: lambda obj, _old: (obj, list(check_node(obj))),
}
