"""Kinds that a CustomResourceDefinition describes: what is pruned, filled in and refused. Pure.

Served from the start, not by creating a definition: `serve_api` takes them. Structural schemas with the types, bounds,
enums, defaults, list maps and CEL rules (`self`, `oldSelf`) that definitions here use; another keyword is
refused when the definition is read, so that none is passed over. Source: apiextensions-apiserver, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from cel_expr_python import cel

from pydra_dev.api.errors import FieldError, JsonObject, duplicate, invalid, invalid_object, required, unsupported
from pydra_dev.api.kinds import Kind

_RULES = "x-kubernetes-validations"
_KNOWN = frozenset(
    {
        *("type", "properties", "items", "required", "enum", "default", "description", "format", "nullable"),
        *("minimum", "maxLength"),
        *("x-kubernetes-list-type", "x-kubernetes-list-map-keys", _RULES),
    }
)
_TYPES: Mapping[str, type] = {
    "array": list,
    "integer": int,
    "object": dict,
    "string": str,
}
_HEAD = ("apiVersion", "kind", "metadata")


class CustomKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind and the schema of its objects."""

    kind: Kind
    schema: JsonObject


def parse_definition(body: JsonObject) -> CustomKind:
    """A CustomResourceDefinition with one version; raises ValueError for what is not understood here."""
    spec, names = body["spec"], body["spec"]["names"]
    [version] = spec["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    _check_schema(schema, names["kind"])
    kind = Kind(
        group=spec["group"],
        version=version["name"],
        plural=names["plural"],
        kind=names["kind"],
        singular=names["singular"],
        namespaced=spec["scope"] == "Namespaced",
        short=tuple(names.get("shortNames") or ()),
        subresources=("status",) if "status" in (version.get("subresources") or {}) else (),
        generation=True,
    )
    return CustomKind(kind=kind, schema=schema)


def _check_schema(schema: JsonObject, path: str) -> None:
    if unknown := sorted(set(schema) - _KNOWN):
        raise ValueError(f"{path}: keywords that are not supported here: {', '.join(unknown)}")
    for name, part in (schema.get("properties") or {}).items():
        _check_schema(part, f"{path}.{name}")
    if "items" in schema:
        _check_schema(schema["items"], f"{path}[]")


def admit_custom(custom: CustomKind, obj: JsonObject, old: JsonObject | None) -> JsonObject:
    """The object as it will be stored; raises a 422 StatusError with every fault."""
    head = {key: obj[key] for key in _HEAD if key in obj}
    body = {key: value for key, value in obj.items() if key not in _HEAD}
    if old is None and custom.kind.status:
        body.pop("status", None)
    schema = {**custom.schema, "properties": _without_head(custom.schema)}
    body = _fill(schema, _prune(schema, body))
    before = None if old is None else {key: value for key, value in old.items() if key not in _HEAD}
    errors = list(_check(schema, body, before, ""))
    if errors:
        raise invalid_object(custom.kind, obj["metadata"]["name"], errors)
    return {**head, **body}


def _without_head(schema: JsonObject) -> JsonObject:
    return {name: part for name, part in schema.get("properties", {}).items() if name not in _HEAD}


def _prune(schema: JsonObject, value: Any) -> Any:
    if isinstance(value, dict):
        known = schema.get("properties") or {}
        return {name: _prune(known[name], part) for name, part in value.items() if name in known and part is not None}
    if isinstance(value, list):
        return [_prune(schema.get("items") or {}, part) for part in value]
    return value


def _fill(schema: JsonObject, value: Any) -> Any:
    if isinstance(value, dict):
        known = schema.get("properties") or {}
        filled = dict(value)
        for name, part in known.items():
            if name not in filled and "default" in part:
                filled[name] = part["default"]
            if name in filled:
                filled[name] = _fill(part, filled[name])
        return filled
    if isinstance(value, list):
        return [_fill(schema.get("items") or {}, part) for part in value]
    return value


def _check(schema: JsonObject, value: Any, old: Any, path: str) -> Iterator[FieldError]:
    expected = schema.get("type", "object")
    if not isinstance(value, _TYPES[expected]) or isinstance(value, bool):
        yield invalid(path, value, f'{path} in body must be of type {expected}: "{type(value).__name__}"')
        return
    if "enum" in schema and value not in schema["enum"]:
        yield unsupported(path, value, schema["enum"])
    if isinstance(value, str):
        if len(value) > schema.get("maxLength", len(value)):
            yield invalid(path, value, f"{path} in body should be at most {schema['maxLength']} chars long")
    elif isinstance(value, int):
        if value < schema.get("minimum", value):
            yield invalid(path, value, f"{path} in body should be greater than or equal to {schema['minimum']}")
    elif isinstance(value, list):
        yield from _check_list(schema, value, old, path)
    elif isinstance(value, dict):
        yield from _check_object(schema, value, old, path)
    for rule in schema.get(_RULES) or ():
        applies = old is not None or "oldSelf" not in rule["rule"]
        if applies and not _holds(rule["rule"], value, old):
            yield invalid(path, value, rule.get("message") or f"failed rule: {rule['rule']}")


def _check_object(schema: JsonObject, value: JsonObject, old: Any, path: str) -> Iterator[FieldError]:
    before = old if isinstance(old, dict) else {}
    yield from (required(_join(path, name)) for name in schema.get("required") or () if name not in value)
    for name, part in value.items():
        yield from _check(schema["properties"][name], part, before.get(name), _join(path, name))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _check_list(schema: JsonObject, value: list[Any], old: Any, path: str) -> Iterator[FieldError]:
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    before = {_key(item, keys): item for item in old or () if isinstance(item, dict)} if keys else {}
    seen = set()
    for index, item in enumerate(value):
        key = _key(item, keys) if keys and isinstance(item, dict) else None
        if key is not None:
            if key in seen:
                yield duplicate(f"{path}[{index}]", dict(zip(keys, key, strict=True)))
            seen.add(key)
        yield from _check(schema.get("items") or {}, item, before.get(key) if key else None, f"{path}[{index}]")


def _key(item: JsonObject, keys: tuple[str, ...] | list[str]) -> tuple[Any, ...]:
    return tuple(item.get(name) for name in keys)


def _holds(rule: str, value: Any, old: Any) -> bool:
    environment = cel.NewEnv(variables={"self": cel.Type.DYN, "oldSelf": cel.Type.DYN})
    result = environment.compile(rule).eval(data={"self": value, "oldSelf": old})
    return bool(result.plain_value())
