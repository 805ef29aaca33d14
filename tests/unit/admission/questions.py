"""AdmissionReviews as the API server sends them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydra.admission.review import GROUP, Question, parse_review

KINDS = {
    "resourceclaims": "ResourceClaim",
    "resourceclaimtemplates": "ResourceClaimTemplate",
    "deviceclasses": "DeviceClass",
}


def entry(driver: str, parameters: Any, **more: Any) -> dict[str, Any]:
    """An entry in a list of configs."""
    return {"opaque": {"driver": driver, "parameters": parameters}, **more}


def build_object(resource: str, configs: Sequence[Any], *, version: str = "v1") -> dict[str, Any]:
    """An object of the resource with these configs, with what else it must have in that version."""
    exactly = {"deviceClassName": "gpu.example.com"}
    request = {"name": "gpu", **(exactly if version == "v1beta1" else {"exactly": exactly})}
    devices = {"requests": [request], "config": list(configs)}
    specs: dict[str, dict[str, Any]] = {
        "resourceclaims": {"devices": devices},
        "resourceclaimtemplates": {"spec": {"devices": devices}},
        "deviceclasses": {"config": list(configs)},
    }
    metadata = {"name": "a"} if resource == "deviceclasses" else {"name": "a", "namespace": "ns"}
    return {"apiVersion": f"{GROUP}/{version}", "kind": KINDS[resource], "metadata": metadata, "spec": specs[resource]}


def build_body(
    resource: str = "resourceclaims",
    configs: Sequence[Any] = (),
    *,
    version: str = "v1",
    operation: str = "CREATE",
    old: Sequence[Any] | None = None,
    **request: Any,
) -> dict[str, Any]:
    """An AdmissionReview. `old` are the configs of the stored object."""
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": GROUP, "version": version, "kind": KINDS.get(resource, "Other")},
            "resource": {"group": GROUP, "version": version, "resource": resource},
            "name": "a",
            "operation": operation,
            "userInfo": {"username": "admin", "groups": ["system:authenticated"]},
            "object": build_object(resource, configs, version=version) if resource in KINDS else {},
            "oldObject": None if old is None else build_object(resource, old, version=version),
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            **request,
        },
    }


def ask(*arguments: Any, **options: Any) -> Question:
    """The question in such a review."""
    return parse_review(encode(build_body(*arguments, **options)))


def encode(body: Mapping[str, Any]) -> bytes:
    """The review as bytes."""
    return json.dumps(body).encode()
