"""The server's OpenAPI documents: what kubectl must know to leave the validation of fields to the server. Pure.

They have no schemas; what the server accepts is in `api.schema` and the rules.
"""

from __future__ import annotations

from pydra_dev.api.errors import JsonObject
from pydra_dev.api.kinds import Kind


def build_openapi(release: str, path: str, kinds: tuple[Kind, ...]) -> JsonObject:
    """The document of one version of a group."""
    validation = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    paths: dict[str, JsonObject] = {}
    for kind in kinds:
        namespace = "/namespaces/{namespace}" if kind.namespaced else ""
        identity = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        operation = {"x-kubernetes-group-version-kind": identity, "parameters": [validation], "responses": {}}
        paths[f"{path}{namespace}/{kind.plural}/{{name}}"] = {"patch": operation, "get": operation}
    info = {"title": "Kubernetes", "version": release}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}
