"""The CustomResourceDefinitions ComputeDomain and ComputeDomainClique: NVIDIA's fields, and what pydra tells beside.

NVIDIA's fields keep their types, defaults and rules, so objects of either controller are valid for both. Beside them
are conditions, `observedGeneration` and a message for each node. `make chart` writes them into the chart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydra_nvidia.compute_domain.names import GROUP, VERSION

_TEXT: Mapping[str, Any] = {"type": "string"}
_STATUS: Mapping[str, Any] = {"type": "string", "enum": ["Ready", "NotReady"], "default": "NotReady"}
_INDEX: Mapping[str, Any] = {
    "type": "integer",
    "description": "The number of the node in its clique; -1 for a node outside all cliques.",
}

_SPEC: Mapping[str, Any] = {
    "type": "object",
    "required": ["channel"],
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "A computeDomain.spec is immutable"}],
    "properties": {
        "numNodes": {
            "type": "integer",
            "minimum": 0,
            "default": 0,
            "description": "How many nodes must be ready for the domain to be; at least one. No pod waits for it.",
        },
        "channel": {
            "type": "object",
            "required": ["resourceClaimTemplate"],
            "properties": {
                "resourceClaimTemplate": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": {
                            **_TEXT,
                            "description": "The template that is made in this namespace, for pods to name.",
                        }
                    },
                },
                "allocationMode": {"type": "string", "enum": ["All", "Single"], "default": "Single"},
            },
        },
    },
}

_CONDITIONS: Mapping[str, Any] = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": {**_TEXT, "maxLength": 316},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": {**_TEXT, "maxLength": 1024},
            "message": {**_TEXT, "maxLength": 32768},
            "observedGeneration": {"type": "integer", "minimum": 0},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
        },
    },
}

_STATUS_OF_DOMAIN: Mapping[str, Any] = {
    "type": "object",
    "required": ["status"],
    "properties": {
        "status": _STATUS,
        "observedGeneration": {"type": "integer", "minimum": 0},
        "summary": {**_TEXT, "description": "How many nodes are ready, as kubectl shows it."},
        "conditions": _CONDITIONS,
        "nodes": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["name", "ipAddress", "cliqueID"],
                "properties": {
                    "name": _TEXT,
                    "ipAddress": _TEXT,
                    "cliqueID": _TEXT,
                    "index": _INDEX,
                    "status": _STATUS,
                    "message": {**_TEXT, "description": "What the node waits for."},
                },
            },
        },
    },
}

_DAEMONS: Mapping[str, Any] = {
    "type": "array",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["nodeName"],
    "items": {
        "type": "object",
        "required": ["nodeName", "ipAddress", "cliqueID", "index"],
        "properties": {
            "nodeName": _TEXT,
            "ipAddress": _TEXT,
            "cliqueID": _TEXT,
            "index": _INDEX,
            "status": _STATUS,
        },
    },
}


def _define(kind: str, schema: Mapping[str, Any], *, status: bool, columns: Mapping[str, str]) -> dict[str, Any]:
    plural = f"{kind.lower()}s"
    head = {name: dict(_TEXT) for name in ("apiVersion", "kind")}
    properties = {**head, "metadata": {"type": "object"}, **schema["properties"]}
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {**schema, "type": "object", "properties": properties}},
        "additionalPrinterColumns": [
            *({"name": name, "type": "string", "jsonPath": path} for name, path in columns.items()),
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ],
    }
    if status:
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "versions": [version],
        },
    }


COMPUTE_DOMAIN_DEFINITION = _define(
    "ComputeDomain",
    {"properties": {"spec": _SPEC, "status": _STATUS_OF_DOMAIN}},
    status=True,
    columns={
        "Status": ".status.status",
        "Nodes": ".status.summary",
        "Reason": ".status.conditions[?(@.type=='Ready')].reason",
    },
)
CLIQUE_DEFINITION = _define("ComputeDomainClique", {"properties": {"daemons": _DAEMONS}}, status=False, columns={})
DEFINITIONS = (COMPUTE_DOMAIN_DEFINITION, CLIQUE_DEFINITION)
