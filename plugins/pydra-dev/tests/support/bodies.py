"""Objects that the API server's tests begin with."""

from __future__ import annotations

from typing import Any

from tests.integration.api_handle import Scratch

JsonObject = dict[str, Any]


def slice_body(scratch: Scratch, name: str = "", **spec: Any) -> JsonObject:
    """A valid ResourceSlice with one device; a keyword replaces a part of the spec, None takes it out."""
    pool = {"name": scratch.node, "generation": 1, "resourceSliceCount": 1}
    parts = {"driver": scratch.driver, "nodeName": scratch.node, "pool": pool, "devices": [{"name": "dev-0"}], **spec}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"{scratch.namespace}-slice"},
        "spec": {key: value for key, value in parts.items() if value is not None},
    }


def claim_body(name: str = "claim", **extra: Any) -> JsonObject:
    """A valid ResourceClaim with one request `gpu`."""
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": requests}},
        **extra,
    }


def pod_body(name: str = "pod", **spec: Any) -> JsonObject:
    """A valid Pod that no scheduler takes."""
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"schedulerName": "nobody", "containers": [container], **spec},
    }


def allocation(scratch: Scratch, device: str = "dev-0", **result: Any) -> JsonObject:
    """An allocation of one device for the request `gpu`."""
    one = {"request": "gpu", "driver": scratch.driver, "pool": scratch.node, "device": device, **result}
    return {"devices": {"results": [one]}}
