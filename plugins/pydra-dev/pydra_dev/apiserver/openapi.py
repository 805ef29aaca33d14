"""The server's OpenAPI documents: the fields of the kinds of Dynamic Resource Allocation, for `kubectl explain`.

Types and descriptions are those of kubernetes-asyncio, which is generated from the documents of a real server. They are
for readers: what the server accepts is in `api.schema` and the rules. Other kinds have no schema.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from pydra.kube.lean_imports import import_models
from pydra_dev.api.errors import JsonObject
from pydra_dev.api.kinds import Kind

_DESCRIBED = "resource.k8s.io"
_OF_VERSION = re.compile(r"(?:[A-Z][a-z]+)?V(\d+(?:(?:alpha|beta)\d+)?)(?=[A-Z])")
_TYPES: dict[str, JsonObject] = {
    "str": {"type": "string"},
    "int": {"type": "integer", "format": "int64"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "datetime": {"type": "string", "format": "date-time"},
    "object": {"type": "object"},
}


def build_openapi(release: str, path: str, kinds: tuple[Kind, ...]) -> JsonObject:
    """The document of one version of a group: its schemas, and that the server validates fields itself."""
    validation = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    paths: dict[str, JsonObject] = {}
    for kind in kinds:
        namespace = "/namespaces/{namespace}" if kind.namespaced else ""
        operation = {"x-kubernetes-group-version-kind": _identify(kind), "parameters": [validation], "responses": {}}
        paths[f"{path}{namespace}/{kind.plural}/{{name}}"] = {"patch": operation, "get": operation}
    info = {"title": "Kubernetes", "version": release}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": _build_schemas(kinds)}}


@lru_cache(maxsize=8)
def _build_schemas(kinds: tuple[Kind, ...]) -> JsonObject:
    described = {name: kind for kind in kinds if kind.group == _DESCRIBED for name in _name_models(kind)}
    models = import_models(described) if described else {}
    return {_name_schema(name): _build_schema(model, described.get(name)) for name, model in sorted(models.items())}


def _name_models(kind: Kind) -> Iterable[str]:
    """What the model of a kind may be called: with its group where another has a kind of that name."""
    name = f"{kind.version.capitalize()}{kind.kind}"
    return (name, f"{kind.group.partition('.')[0].capitalize()}{name}")


def _build_schema(model: Any, kind: Kind | None) -> JsonObject:
    names = model.attribute_map
    properties = {names[name]: _build_field(model, name, of) for name, of in model.openapi_types.items()}
    schema: JsonObject = {"type": "object", "properties": properties}
    return {**schema, "x-kubernetes-group-version-kind": [_identify(kind)]} if kind is not None else schema


def _build_field(model: Any, name: str, of: str) -> JsonObject:
    text = inspect.getdoc(getattr(model, name)) or ""
    description = text.replace("  # noqa: E501", "").partition("\n\n")[2].partition("\n\n:return")[0].strip()
    return {**_build_type(of), "description": "" if description.startswith(":return") else description}


def _build_type(of: str) -> JsonObject:
    if of.startswith("list["):
        return {"type": "array", "items": _build_type(of[5:-1])}
    if of.startswith("dict("):
        return {"type": "object", "additionalProperties": _build_type(of[5:-1].partition(", ")[2])}
    return _TYPES.get(of) or {"allOf": [{"$ref": f"#/components/schemas/{_name_schema(of)}"}]}


def _name_schema(model: str) -> str:
    """`v1.DeviceClaim` for V1DeviceClaim: kubectl shows what follows the last dot."""
    return _OF_VERSION.sub(lambda found: f"v{found[1]}.", model, count=1)


def _identify(kind: Kind) -> JsonObject:
    return {"group": kind.group, "version": kind.version, "kind": kind.kind}
