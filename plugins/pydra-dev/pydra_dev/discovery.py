"""What clients read before they ask for objects: `/version`, `/api`, `/apis` and the lists of resources. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import msgspec

from pydra_dev.kinds import COLLECTION_VERBS, OBJECT_VERBS, Kind
from pydra_dev.status import JsonObject

_VERBS = sorted((*COLLECTION_VERBS, *OBJECT_VERBS))


class Release(msgspec.Struct, frozen=True):
    """A Kubernetes version."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"v{self.major}.{self.minor}.{self.patch}"


def parse_release(text: str) -> Release:
    """`1.36.1` or `v1.36` to a release; raises ValueError."""
    parts = text.removeprefix("v").split(".")
    if len(parts) not in {2, 3} or not all(part.isdecimal() for part in parts):
        raise ValueError(f"{text!r} is not a Kubernetes version such as 1.36.1")
    numbers = [int(part) for part in parts]
    return Release(numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else 0)


def build_documents(release: Release, kinds: Iterable[Kind]) -> Mapping[str, JsonObject]:
    """Every discovery document by its path."""
    served = sorted(kinds, key=lambda kind: (kind.group, kind.version, kind.plural))
    documents: dict[str, JsonObject] = {"/version": _build_version(release)}
    groups: list[JsonObject] = []
    described: dict[str, JsonObject] = {}
    for (group, version), grouped in groupby(served, key=lambda kind: (kind.group, kind.version)):
        members = tuple(grouped)
        path = f"/apis/{group}/{version}" if group else f"/api/{version}"
        documents[path] = _build_resources(group, version, members)
        documents[f"/openapi/v3{path}"] = _build_openapi(release, path, members)
        described[path.removeprefix("/")] = {"serverRelativeURL": f"/openapi/v3{path}"}
        if group:
            entry = {"groupVersion": f"{group}/{version}", "version": version}
            groups.append({"name": group, "versions": [entry], "preferredVersion": entry})
            documents[f"/apis/{group}"] = {"kind": "APIGroup", "apiVersion": "v1", **groups[-1]}
    documents["/openapi/v3"] = {"paths": described}
    addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1"}]
    documents["/api"] = {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}
    documents["/apis"] = {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    return documents


def _build_version(release: Release) -> JsonObject:
    return {
        "major": str(release.major),
        "minor": str(release.minor),
        "gitVersion": f"{release}+pydra-embedded",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "",
    }


def _build_resources(group: str, version: str, kinds: Iterable[Kind]) -> JsonObject:
    resources: list[dict[str, Any]] = []
    for kind in kinds:
        entry = {"name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced, "kind": kind.kind}
        resources.append({**entry, "verbs": _VERBS, **({"shortNames": list(kind.short)} if kind.short else {})})
        for subresource in kind.subresources:
            verbs = ["create"] if subresource == "binding" else ["get", "patch", "update"]
            shown = "Binding" if subresource == "binding" else kind.kind
            name = f"{kind.plural}/{subresource}"
            resources.append({**entry, "name": name, "singularName": "", "kind": shown, "verbs": verbs})
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


def _build_openapi(release: Release, path: str, kinds: Iterable[Kind]) -> JsonObject:
    """No schemas, only what `kubectl` looks for: that the server validates fields itself."""
    validation = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
    paths: dict[str, JsonObject] = {}
    for kind in kinds:
        namespace = "/namespaces/{namespace}" if kind.namespaced else ""
        identity = {"group": kind.group, "version": kind.version, "kind": kind.kind}
        operation = {"x-kubernetes-group-version-kind": identity, "parameters": [validation], "responses": {}}
        paths[f"{path}{namespace}/{kind.plural}/{{name}}"] = {"patch": operation}
    info = {"title": "Kubernetes", "version": str(release)}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}
