"""One place to ask: what becomes of an object that is created or changed, by its kind. Pure.

The order is a real server's: fill in metadata, drop what the writer may not set, drop disabled
fields, default, validate everything at once. What goes in is never changed; what comes out is new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pydra_dev import claim_rules, core_rules, schema, slice_rules
from pydra_dev.gates import DEVICE_STATUS, Gates, drop_claim_fields, drop_slice_fields
from pydra_dev.kinds import (
    DEVICE_CLASSES,
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
from pydra_dev.status import FieldError, JsonObject, invalid, invalid_object

ADMIN_LABEL = "resource.kubernetes.io/admin-access"


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule may need beside the object: gates, the time in RFC 3339, the labels of its namespace."""

    gates: Gates
    now: str
    namespace_labels: Mapping[str, str] = {}

    @property
    def admin_allowed(self) -> bool:
        """Whether claims in this namespace may ask for admin access."""
        return self.namespace_labels.get(ADMIN_LABEL) == "true"


def admit_create(kind: Kind, obj: JsonObject, context: Context) -> JsonObject:
    """The object as it will be stored; raises a 422 StatusError with every fault."""
    body, errors = _CREATE.get(kind, _create_plain)(obj, context)
    name = obj["metadata"]["name"]
    found = [*core_rules.check_name(kind.kind, "metadata.name", name), *errors]
    if found:
        raise invalid_object(EVENTS if kind == NEW_EVENTS else kind, name, found)
    return body


def admit_update(kind: Kind, obj: JsonObject, old: JsonObject, context: Context, *, status: bool) -> JsonObject:
    """The object as it will be stored after an update, of its status or of everything else."""
    if kind.status:
        obj = _keep_other_half(obj, old, status=status)
    if status:
        body, errors = _UPDATE_STATUS.get(kind, _update_plain)(obj, old, context)
    else:
        body, errors = _UPDATE.get(kind, _update_plain)(obj, old, context)
    if errors:
        raise invalid_object(kind, obj["metadata"]["name"], errors)
    return body


def _keep_other_half(obj: JsonObject, old: JsonObject, *, status: bool) -> JsonObject:
    kept = "spec" if status else "status"
    merged = {key: value for key, value in obj.items() if key != kept}
    return {**merged, kept: old[kept]} if kept in old else merged


Admitted = tuple[JsonObject, list[FieldError]]


def _create_plain(obj: JsonObject, _context: Context) -> Admitted:
    return obj, []


def _update_plain(obj: JsonObject, _old: JsonObject, _context: Context) -> Admitted:
    return obj, []


def _parse_slice(obj: JsonObject) -> schema.SliceSpec:
    return schema.parse_fields("ResourceSlice", schema.SliceSpec, obj.get("spec") or {})


def _create_slice(obj: JsonObject, context: Context) -> Admitted:
    return _admit_slice(obj, None, context)


def _update_slice(obj: JsonObject, old: JsonObject, context: Context) -> Admitted:
    return _admit_slice(obj, _parse_slice(old), context)


def _admit_slice(obj: JsonObject, old: schema.SliceSpec | None, context: Context) -> Admitted:
    spec = drop_slice_fields(_parse_slice(obj), old, context.gates)
    spec = slice_rules.default_slice(spec, context.now)
    return _head(obj, spec=schema.build_fields(spec)), list(slice_rules.check_slice(spec, old))


def _head(obj: JsonObject, **parts: Any) -> JsonObject:
    kept = {key: obj[key] for key in ("kind", "apiVersion", "metadata")}
    return {**kept, **{key: value for key, value in parts.items() if value is not None}}


def _parse_claim(obj: JsonObject) -> schema.ClaimSpec:
    return schema.parse_fields("ResourceClaim", schema.ClaimSpec, obj.get("spec") or {})


def _parse_claim_status(obj: JsonObject) -> schema.ClaimStatus:
    return schema.parse_fields("ResourceClaim", schema.ClaimStatus, obj.get("status") or {})


def _create_claim(obj: JsonObject, context: Context) -> Admitted:
    spec = claim_rules.default_claim(drop_claim_fields(_parse_claim(obj), context.gates))
    errors = claim_rules.check_claim(spec, admin_allowed=context.admin_allowed)
    return _head(obj, spec=schema.build_fields(spec), status={}), list(errors)


def _update_claim(obj: JsonObject, old: JsonObject, _context: Context) -> Admitted:
    spec = schema.build_fields(claim_rules.default_claim(_parse_claim(obj)))
    return _head(obj, spec=spec, status=old.get("status")), _check_immutable(spec, old["spec"])


def _check_immutable(spec: JsonObject, old: JsonObject) -> list[FieldError]:
    return [invalid("spec", spec, "field is immutable")] if spec != old else []


def _update_claim_status(obj: JsonObject, old: JsonObject, context: Context) -> Admitted:
    before = _parse_claim_status(old)
    status = claim_rules.drop_stale_devices(_parse_claim_status(obj), before)
    if not context.gates[DEVICE_STATUS] and not before.devices:
        status = msgspec.structs.replace(status, devices=())
    deleting = "deletionTimestamp" in old["metadata"]
    errors = claim_rules.check_claim_status(status, before, _parse_claim(old), deleting=deleting)
    # A status update leaves labels, annotations, finalizers and owners as they were.
    return _head({**obj, "metadata": old["metadata"]}, spec=old["spec"], status=schema.build_fields(status)), list(
        errors
    )


def _parse_template(obj: JsonObject) -> schema.TemplateSpec:
    return schema.parse_fields("ResourceClaimTemplate", schema.TemplateSpec, obj.get("spec") or {})


def _create_template(obj: JsonObject, context: Context) -> Admitted:
    template = _parse_template(obj)
    spec = claim_rules.default_claim(drop_claim_fields(template.spec, context.gates))
    errors = claim_rules.check_claim(spec, admin_allowed=context.admin_allowed, path="spec.spec")
    return _head(obj, spec=schema.build_fields(msgspec.structs.replace(template, spec=spec))), list(errors)


def _update_template(obj: JsonObject, old: JsonObject, _context: Context) -> Admitted:
    template = _parse_template(obj)
    spec = schema.build_fields(msgspec.structs.replace(template, spec=claim_rules.default_claim(template.spec)))
    return _head(obj, spec=spec), _check_immutable(spec, old["spec"])


def _create_class(obj: JsonObject, _context: Context) -> Admitted:
    spec = schema.parse_fields("DeviceClass", schema.ClassSpec, obj.get("spec") or {})
    return _head(obj, spec=schema.build_fields(spec)), list(claim_rules.check_class(spec))


def _update_class(obj: JsonObject, _old: JsonObject, context: Context) -> Admitted:
    return _create_class(obj, context)


def _create_pod(obj: JsonObject, _context: Context) -> Admitted:
    spec = core_rules.default_pod(obj.get("spec") or {})
    return {**obj, "spec": spec, "status": {"phase": "Pending", "qosClass": "BestEffort"}}, list(
        core_rules.check_pod(spec)
    )


def _update_pod(obj: JsonObject, old: JsonObject, _context: Context) -> Admitted:
    spec = core_rules.default_pod(obj.get("spec") or {})
    return {**obj, "spec": spec}, list(core_rules.check_pod_update(spec, old["spec"]))


def _create_namespace(obj: JsonObject, _context: Context) -> Admitted:
    metadata = {**obj["metadata"], "labels": {**(obj["metadata"].get("labels") or {})}}
    metadata["labels"]["kubernetes.io/metadata.name"] = metadata["name"]
    spec = {"finalizers": ["kubernetes"]}
    return {**obj, "metadata": metadata, "spec": spec, "status": {"phase": "Active"}}, []


def _create_node(obj: JsonObject, _context: Context) -> Admitted:
    return {"spec": {}, "status": {}, **obj}, list(core_rules.check_node(obj))


def _update_node(obj: JsonObject, _old: JsonObject, _context: Context) -> Admitted:
    return obj, list(core_rules.check_node(obj))


def _create_event(obj: JsonObject, _context: Context) -> Admitted:
    return core_rules.default_event(obj), list(core_rules.check_event(obj))


def _create_new_event(obj: JsonObject, _context: Context) -> Admitted:
    core = core_rules.default_event(core_rules.convert_event(obj, api_version="v1"))
    return core, [*core_rules.check_new_event(core), *core_rules.check_event(core)]


_CREATE: Mapping[Kind, Callable[[JsonObject, Context], Admitted]] = {
    RESOURCE_SLICES: _create_slice,
    RESOURCE_CLAIMS: _create_claim,
    RESOURCE_CLAIM_TEMPLATES: _create_template,
    DEVICE_CLASSES: _create_class,
    PODS: _create_pod,
    NAMESPACES: _create_namespace,
    NODES: _create_node,
    EVENTS: _create_event,
    NEW_EVENTS: _create_new_event,
}
_UPDATE: Mapping[Kind, Callable[[JsonObject, JsonObject, Context], Admitted]] = {
    RESOURCE_SLICES: _update_slice,
    RESOURCE_CLAIMS: _update_claim,
    RESOURCE_CLAIM_TEMPLATES: _update_template,
    DEVICE_CLASSES: _update_class,
    PODS: _update_pod,
    NODES: _update_node,
}
_UPDATE_STATUS: Mapping[Kind, Callable[[JsonObject, JsonObject, Context], Admitted]] = {
    RESOURCE_CLAIMS: _update_claim_status,
}
