"""What becomes of an object that is created or changed, by its kind. Pure.

The order is a real server's: fill in metadata, drop what the writer may not set, drop disabled fields, default,
validate everything at once. The input is never changed. The rules for core kinds are here, as far as a node agent, a
kubelet and `kubectl` meet them; those for devices are in `claim_rules` and `slice_rules`. Source:
`pkg/apis/core/validation`, `pkg/registry/core/*/strategy.go`, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from pydra_dev import claim_rules, slice_rules
from pydra_dev.api import schema
from pydra_dev.api.errors import (
    FieldError,
    JsonObject,
    duplicate,
    forbidden,
    invalid,
    invalid_object,
    required,
    unknown,
    unsupported,
)
from pydra_dev.api.gates import LISTS, Gates, drop_disabled
from pydra_dev.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    EVENTS,
    NAMESPACES,
    NEW_EVENTS,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from pydra_dev.metadata import Errors, check_label, check_required, check_subdomain

SpecT = TypeVar("SpecT", bound=msgspec.Struct)

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


def _check_container(path: str, container: JsonObject, claims: set[Any]) -> Errors:
    yield from check_required(f"{path}.name", str(container.get("name") or ""))
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


ADMIN_LABEL = "resource.kubernetes.io/admin-access"


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule may need beside the object: gates, the time in RFC 3339, the labels of its namespace.

    The release is 1.`minor`.
    """

    minor: int
    gates: Gates
    now: str
    namespace_labels: Mapping[str, str] = {}

    @property
    def admin_allowed(self) -> bool:
        """Whether claims in this namespace may ask for admin access."""
        return self.namespace_labels.get(ADMIN_LABEL) == "true"


def admit_create(kind: Kind, obj: JsonObject, context: Context) -> JsonObject:
    """The object as it will be stored; raises a 422 StatusError with every fault."""
    if kind in _SPECS:
        begun = {**obj, "status": {}} if kind == RESOURCE_CLAIMS else obj
        body, errors = _admit_spec(kind, begun, None, context)
    else:
        body, errors = _CREATE.get(kind, _create_plain)(obj)
    name = obj["metadata"]["name"]
    found = [*check_name(kind.kind, "metadata.name", name), *errors]
    if found:
        raise invalid_object(EVENTS if kind == NEW_EVENTS else kind, name, found)
    return body


def admit_update(kind: Kind, obj: JsonObject, old: JsonObject, context: Context, *, status: bool) -> JsonObject:
    """The object as it will be stored after an update, of its status or of everything else."""
    if kind.status:
        obj = _keep_other_half(obj, old, status=status)
    if status:
        body, errors = _update_claim_status(obj, old, context) if kind == RESOURCE_CLAIMS else (obj, [])
    elif kind in _SPECS:
        body, errors = _admit_spec(kind, obj, old, context)
    else:
        body, errors = _UPDATE.get(kind, _update_plain)(obj, old)
    if errors:
        raise invalid_object(kind, obj["metadata"]["name"], errors)
    return body


def _keep_other_half(obj: JsonObject, old: JsonObject, *, status: bool) -> JsonObject:
    kept = "spec" if status else "status"
    merged = {key: value for key, value in obj.items() if key != kept}
    return {**merged, kept: old[kept]} if kept in old else merged


Admitted = tuple[JsonObject, list[FieldError]]
_HEAD = ("kind", "apiVersion", "metadata")


def _create_plain(obj: JsonObject) -> Admitted:
    return obj, []


def _update_plain(obj: JsonObject, _old: JsonObject) -> Admitted:
    return obj, []


def _head(obj: JsonObject, **parts: Any) -> JsonObject:
    kept = {key: obj[key] for key in _HEAD}
    return {**kept, **{key: value for key, value in parts.items() if value is not None}}


class _SpecRules(msgspec.Struct, Generic[SpecT], frozen=True, kw_only=True):
    """How the spec of a kind of Dynamic Resource Allocation is read, filled in and checked."""

    type: type[SpecT]
    default: Callable[[SpecT, Context], SpecT] = lambda spec, _context: spec
    check: Callable[[SpecT, SpecT | None, Context], Errors]
    """Everything wrong with a spec; the second one is the stored one of an update."""
    immutable: bool = False


def _default_taint_rule(spec: schema.TaintRuleSpec, context: Context) -> schema.TaintRuleSpec:
    return replace(spec, taint=replace(spec.taint, time_added=spec.taint.time_added or context.now))


def _check_claim(spec: schema.ClaimSpec, context: Context, path: str = "spec") -> Errors:
    return claim_rules.check_claim(spec, admin_allowed=context.admin_allowed, lists=context.gates[LISTS], path=path)


_SPECS: Mapping[Kind, _SpecRules[Any]] = {
    RESOURCE_SLICES: _SpecRules[schema.SliceSpec](
        type=schema.SliceSpec,
        default=lambda spec, context: slice_rules.default_slice(spec, context.now),
        check=lambda spec, old, context: slice_rules.check_slice(spec, old, slice_rules.find_rules(context.minor)),
    ),
    RESOURCE_CLAIMS: _SpecRules[schema.ClaimSpec](
        type=schema.ClaimSpec,
        default=lambda spec, _context: claim_rules.default_claim(spec),
        check=lambda spec, _old, context: _check_claim(spec, context),
        immutable=True,
    ),
    RESOURCE_CLAIM_TEMPLATES: _SpecRules[schema.TemplateSpec](
        type=schema.TemplateSpec,
        default=lambda template, _context: replace(template, spec=claim_rules.default_claim(template.spec)),
        check=lambda template, _old, context: _check_claim(template.spec, context, "spec.spec"),
        immutable=True,
    ),
    DEVICE_CLASSES: _SpecRules[schema.ClassSpec](
        type=schema.ClassSpec,
        check=lambda spec, _old, context: claim_rules.check_class(spec, lists=context.gates[LISTS]),
    ),
    DEVICE_TAINT_RULES: _SpecRules[schema.TaintRuleSpec](
        type=schema.TaintRuleSpec,
        default=_default_taint_rule,
        check=lambda spec, _old, context: slice_rules.check_taint_rule(spec, slice_rules.find_rules(context.minor)),
    ),
}


def find_unknown_fields(kind: Kind, obj: JsonObject) -> tuple[str, ...]:
    """The paths of the fields that will be dropped, sorted."""
    if kind not in _SPECS:
        return ()
    parts = {"spec": _SPECS[kind].type, **({"status": schema.ClaimStatus} if kind == RESOURCE_CLAIMS else {})}
    found = [key for key in obj if key not in {*_HEAD, *parts} and not (key == "status" and kind.status)]
    for name, type_ in parts.items():
        found += _walk(msgspec.inspect.type_info(type_), obj.get(name), name)
    return tuple(sorted(found))


def _walk(type_: msgspec.inspect.Type, value: Any, path: str) -> Iterator[str]:
    if isinstance(type_, msgspec.inspect.UnionType):
        for member in type_.types:
            yield from _walk(member, value, path)
    elif isinstance(type_, msgspec.inspect.StructType) and isinstance(value, dict):
        known = {field.encode_name: field.type for field in type_.fields}
        for key, member_value in value.items():
            if key in known:
                yield from _walk(known[key], member_value, f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(type_, msgspec.inspect.VarTupleType) and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(type_.item_type, item, f"{path}[{index}]")
    elif isinstance(type_, msgspec.inspect.DictType) and isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(type_.value_type, item, f"{path}.{key}")


def _admit_spec(kind: Kind, obj: JsonObject, old: JsonObject | None, context: Context) -> Admitted:
    rules = _SPECS[kind]

    def parse(one: JsonObject) -> Any:
        return schema.parse_fields(kind.kind, rules.type, one.get("spec") or {})

    spec, before = parse(obj), parse(old) if old is not None else None
    if old is None or not rules.immutable:
        spec = rules.default(drop_disabled(spec, before, context.gates, context.minor), context)
        errors = list(rules.check(spec, before, context))
        built = schema.build_fields(spec)
    else:
        built = schema.build_fields(rules.default(spec, context))
        errors = [invalid("spec", built, "field is immutable")] if built != old["spec"] else []
    return _head(obj, spec=built, status=obj.get("status") if kind.status else None), errors


def _update_claim_status(obj: JsonObject, old: JsonObject, context: Context) -> Admitted:
    def parse(one: JsonObject) -> schema.ClaimStatus:
        return schema.parse_fields("ResourceClaim", schema.ClaimStatus, one.get("status") or {})

    before = parse(old)
    status = drop_disabled(parse(obj), before, context.gates, context.minor)
    status = claim_rules.drop_stale_devices(status, before)
    spec = schema.parse_fields("ResourceClaim", schema.ClaimSpec, old["spec"])
    errors = claim_rules.check_claim_status(status, before, spec, deleting="deletionTimestamp" in old["metadata"])
    # A status update leaves labels, annotations, finalizers and owners as they were.
    body = _head({**obj, "metadata": old["metadata"]}, spec=old["spec"], status=schema.build_fields(status))
    return body, list(errors)


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


def _create_node(obj: JsonObject) -> Admitted:
    return {"spec": {}, "status": {}, **obj}, list(check_node(obj))


def _update_node(obj: JsonObject, _old: JsonObject) -> Admitted:
    return obj, list(check_node(obj))


def _create_event(obj: JsonObject) -> Admitted:
    return default_event(obj), list(check_event(obj))


def _create_new_event(obj: JsonObject) -> Admitted:
    core = default_event(convert_event(obj, api_version="v1"))
    return core, [*check_new_event(core), *check_event(core)]


_CREATE: Mapping[Kind, Callable[[JsonObject], Admitted]] = {
    PODS: _create_pod,
    NAMESPACES: _create_namespace,
    NODES: _create_node,
    EVENTS: _create_event,
    NEW_EVENTS: _create_new_event,
}
_UPDATE: Mapping[Kind, Callable[[JsonObject, JsonObject], Admitted]] = {PODS: _update_pod, NODES: _update_node}
