"""What becomes of an object that is created or changed, by its kind. Pure.

The order is a real server's: fill in metadata, drop what the writer may not set, drop disabled fields, default,
validate everything at once. The input is never changed. The rules themselves are in `core_rules`, `claim_rules` and
`slice_rules`. Source: `pkg/registry/*/*/strategy.go`, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import replace

from pydra_dev.api import schema
from pydra_dev.api.errors import JsonObject, invalid, invalid_object
from pydra_dev.api.feature_gates import LISTS, SHARES, Gates, drop_disabled
from pydra_dev.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    EVENTS,
    NEW_EVENTS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from pydra_dev.apiserver import claim_rules, slice_rules
from pydra_dev.apiserver.core_rules import CREATE, UPDATE, Admitted
from pydra_dev.apiserver.name_and_list_validation import Errors, check_label, check_subdomain
from pydra_dev.cel.environment import CelFeatures

SpecT = TypeVar("SpecT", bound=msgspec.Struct)

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
    def cel(self) -> CelFeatures:
        """What selectors may read."""
        return CelFeatures(lists=self.gates[LISTS], shares=self.gates[SHARES])

    @property
    def admin_allowed(self) -> bool:
        """Whether claims in this namespace may ask for admin access."""
        return self.namespace_labels.get(ADMIN_LABEL) == "true"


def check_name(kind: str, path: str, name: str) -> Errors:
    """A namespace's name is a DNS label, every other one a DNS subdomain."""
    if kind == "Namespace":
        yield from check_label(path, name)
    else:
        yield from check_subdomain(path, name)


def admit_create(kind: Kind, obj: JsonObject, context: Context) -> JsonObject:
    """The object as it will be stored; raises a 422 StatusError with every fault."""
    if kind in _SPECS:
        begun = {**obj, "status": {}} if kind == RESOURCE_CLAIMS else obj
        body, errors = _admit_spec(kind, begun, None, context)
    else:
        body, errors = CREATE[kind](obj) if kind in CREATE else (obj, [])
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
        body, errors = UPDATE[kind](obj, old) if kind in UPDATE else (obj, [])
    if errors:
        raise invalid_object(kind, obj["metadata"]["name"], errors)
    return body


def _keep_other_half(obj: JsonObject, old: JsonObject, *, status: bool) -> JsonObject:
    kept = "spec" if status else "status"
    merged = {key: value for key, value in obj.items() if key != kept}
    return {**merged, kept: old[kept]} if kept in old else merged


_HEAD = ("kind", "apiVersion", "metadata")


def _head(obj: JsonObject, **parts: Any) -> JsonObject:
    kept = {key: obj[key] for key in _HEAD}
    return {**kept, **{key: value for key, value in parts.items() if value is not None}}


class _SpecRules(msgspec.Struct, Generic[SpecT], frozen=True, kw_only=True):
    """How the spec of a kind of Dynamic Resource Allocation is read, filled in and checked."""

    type: type[SpecT]
    default: Callable[[SpecT, SpecT | None, Context], SpecT] = lambda spec, _old, _context: spec
    """A spec with what is absent filled in; the second one is the stored one of an update."""
    check: Callable[[SpecT, SpecT | None, Context], Errors]
    """Everything wrong with a spec; the second one is the stored one of an update."""
    immutable: bool = False


def _default_taint_rule(
    spec: schema.TaintRuleSpec, old: schema.TaintRuleSpec | None, context: Context
) -> schema.TaintRuleSpec:
    """The rule with the time of its taint: from 1.36 on, when it got its effect."""
    taint, before = spec.taint, old.taint if old is not None else None
    is_older = before is not None and taint.time_added == before.time_added and taint.effect != before.effect
    if taint.time_added and not (is_older and context.minor >= 36):
        return spec
    return replace(spec, taint=replace(taint, time_added=schema.Time(context.now)))


def _check_claim(spec: schema.ClaimSpec, context: Context, path: str = "spec") -> Errors:
    return claim_rules.check_claim(spec, admin_allowed=context.admin_allowed, cel=context.cel, path=path)


_SPECS: Mapping[Kind, _SpecRules[Any]] = {
    RESOURCE_SLICES: _SpecRules[schema.SliceSpec](
        type=schema.SliceSpec,
        default=lambda spec, _old, context: slice_rules.default_slice(spec, context.now),
        check=lambda spec, old, context: slice_rules.check_slice(spec, old, slice_rules.find_rules(context.minor)),
    ),
    RESOURCE_CLAIMS: _SpecRules[schema.ClaimSpec](
        type=schema.ClaimSpec,
        default=lambda spec, _old, _context: claim_rules.default_claim(spec),
        check=lambda spec, _old, context: _check_claim(spec, context),
        immutable=True,
    ),
    RESOURCE_CLAIM_TEMPLATES: _SpecRules[schema.TemplateSpec](
        type=schema.TemplateSpec,
        default=lambda template, _old, _context: replace(template, spec=claim_rules.default_claim(template.spec)),
        check=lambda template, _old, context: _check_claim(template.spec, context, "spec.spec"),
        immutable=True,
    ),
    DEVICE_CLASSES: _SpecRules[schema.ClassSpec](
        type=schema.ClassSpec,
        check=lambda spec, _old, context: claim_rules.check_class(spec, cel=context.cel),
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
        spec = one.get("spec")
        return schema.parse_fields(kind.kind, rules.type, {} if spec is None else spec)

    spec, before = parse(obj), parse(old) if old is not None else None
    if old is None or not rules.immutable:
        spec = rules.default(drop_disabled(spec, before, context.gates, context.minor), before, context)
        errors = list(rules.check(spec, before, context))
        built = schema.build_fields(spec)
    else:
        built = schema.build_fields(rules.default(spec, before, context))
        errors = [invalid("spec", built, "field is immutable")] if built != old["spec"] else []
    return _head(obj, spec=built, status=obj.get("status") if kind.status else None), errors


def _update_claim_status(obj: JsonObject, old: JsonObject, context: Context) -> Admitted:
    def parse(one: JsonObject) -> schema.ClaimStatus:
        status = one.get("status")
        return schema.parse_fields("ResourceClaim", schema.ClaimStatus, {} if status is None else status)

    before = parse(old)
    status = drop_disabled(parse(obj), before, context.gates, context.minor)
    status = claim_rules.drop_stale_devices(status, before)
    spec = schema.parse_fields("ResourceClaim", schema.ClaimSpec, old["spec"])
    deleting, allowed = "deletionTimestamp" in old["metadata"], context.admin_allowed
    errors = claim_rules.check_claim_status(status, before, spec, deleting=deleting, admin_allowed=allowed)
    # A status update leaves labels, annotations, finalizers and owners as they were.
    body = _head({**obj, "metadata": old["metadata"]}, spec=old["spec"], status=schema.build_fields(status))
    return body, list(errors)
