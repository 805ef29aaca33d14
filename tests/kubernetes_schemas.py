"""The schemas of the API of Kubernetes, which know no other fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource


@cache
def _build_validator(version: str, kind: str, api_version: str) -> Draft202012Validator:
    group, _, plain = api_version.rpartition("/")
    name = f"{kind.lower()}-{group.partition('.')[0]}-{plain}" if group else f"{kind.lower()}-{plain}"
    return Draft202012Validator(_schema(version, name), registry=_definitions(version))


def _schema(version: str, name: str) -> Any:
    return schema_contents(f"kubernetes-json-schema/v{version}.0-local-strict/{name}.json", version)


@cache
def _definitions(version: str) -> Registry[Any]:
    resource: Resource[Any] = Resource.from_contents(_schema(version, "_definitions"))
    registry: Registry[Any] = Registry().with_resource("_definitions.json", resource)
    return registry.crawl()


def find_faults(version: str, one: Mapping[str, Any]) -> list[str]:
    """Return what the schemas of this version find wrong with an object of Kubernetes."""
    return _find_faults(version, json.dumps(one))


@cache
def _find_faults(version: str, text: str) -> list[str]:
    # Most objects are the same for most values of the chart.
    one = json.loads(text)
    checked = _build_validator(version, one["kind"], one["apiVersion"])
    name = f"{one['kind']} {one['metadata']['name']}"
    return [f"{name}: {error.json_path}: {error.message}" for error in checked.iter_errors(one)]
