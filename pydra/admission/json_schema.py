"""Exports a backend's config types as JSON Schema (2020-12).

The schema is the one that msgspec generates, with additions: apiVersion and kind, and that unknown fields are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import msgspec

from pydra.admission.config_types import KnownBackend
from pydra.backends.claim_config import build_header, describe_kinds
from pydra.errors import BackendError, SettingsError

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def build_schema(backend: KnownBackend, *, kind: str = "") -> dict[str, Any]:
    """Return the schema of one kind (`GpuConfig`, or with its apiVersion before it), or of any of the backend's kinds.

    Raises:
        SettingsError: the backend has no such kind, or several, or none at all.
        BackendError: a type has no JSON Schema.
    """
    chosen = _choose(backend, kind)
    try:
        roots, definitions = msgspec.json.schema_components(
            [backend.types[one] for one in chosen], ref_template="#/$defs/{name}"
        )
    except TypeError as error:
        raise BackendError(backend.name, f"its configs have no JSON Schema: {error}") from error
    closed: dict[str, Any] = {name: _close(one) for name, one in sorted(definitions.items())}
    tops = [_head(one, root, closed) for one, root in zip(chosen, roots, strict=True)]
    inner = _still_used(tops, closed)
    top = tops[0] if len(tops) == 1 else {"title": f"Configs of {backend.driver or backend.name}", "oneOf": tops}
    return {"$schema": DIALECT, **top, **({"$defs": inner} if inner else {})}


def _choose(backend: KnownBackend, kind: str) -> list[str]:
    kinds = sorted(backend.types)
    found = [one for one in kinds if not kind or kind in (one, one.rpartition("/")[2])]
    listed = describe_kinds(kinds)
    if not found:
        wanted = f"no config of kind {kind}" if kind else "no config"
        raise SettingsError([f"backend {backend.name} has {wanted}; its kinds: {listed}"])
    if kind and len(found) > 1:
        raise SettingsError([f"backend {backend.name} has {kind} in several versions, name one: {', '.join(found)}"])
    return found


def _close(schema: Any) -> Any:
    """Objects with fields take no others, whatever the type says: pydra's own decoding refuses them."""
    if isinstance(schema, list):
        return [_close(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    closed = {key: _close_keyword(key, value) for key, value in schema.items()}
    if closed.get("type") == "object" and "properties" in closed:
        closed.setdefault("additionalProperties", False)
    return closed


def _close_keyword(key: str, value: Any) -> Any:
    match key:
        case "default" | "const" | "enum":
            return value
        case "properties":  # named by the author, perhaps like a keyword
            return {name: _close(one) for name, one in value.items()}
        case "description":
            return inspect.cleandoc(value)
        case _:
            return _close(value)


def _head(kind: str, root: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object of one kind, with its apiVersion and kind before its own fields."""
    body = definitions[root["$ref"].rpartition("/")[2]]
    header = {name: {"const": value} for name, value in build_header(kind).items()}
    properties = {**header, **{name: one for name, one in body.get("properties", {}).items() if name not in header}}
    required = [*header, *(name for name in body.get("required", ()) if name not in header)]
    return {**body, "properties": properties, "required": required}


def _still_used(tops: list[dict[str, Any]], definitions: Mapping[str, Any]) -> dict[str, Any]:
    used: dict[str, Any] = {}
    waiting = [name for top in tops for name in _references(top)]
    while waiting:
        name = waiting.pop()
        if name not in used:
            used[name] = definitions[name]
            waiting += _references(used[name])
    return dict(sorted(used.items()))


def _references(schema: Any) -> list[str]:
    if isinstance(schema, list):
        return [name for one in schema for name in _references(one)]
    if not isinstance(schema, Mapping):
        return []
    own = [schema["$ref"].rpartition("/")[2]] if isinstance(schema.get("$ref"), str) else []
    return own + [name for one in schema.values() for name in _references(one)]
