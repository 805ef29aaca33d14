"""The API objects of the measurements: a node, claims that are allocated already, a scenario of many devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

DRIVER = "sim.pydra.dev"
NODE = "bench-node"
PER_GROUP = 200
CONFIG = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "SimConfig", "clockMHz": 1200}
"""A configuration of the simulated accelerators."""


def node() -> dict[str, Any]:
    """The node that the slices belong to."""
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}


def device_name(number: int) -> str:
    """The name of the simulated accelerator with this number."""
    return f"g{number // PER_GROUP}-{number % PER_GROUP}"


def scenario(devices: int) -> str:
    """A machine with this many whole accelerators, in YAML."""
    groups = []
    for first in range(0, devices, PER_GROUP):
        count = min(PER_GROUP, devices - first)
        groups.append(f"  - {{name: g{first // PER_GROUP}, count: {count}}}")
    return "groups:\n" + "\n".join(groups) + "\n"


def claim(
    name: str, driver: str, devices: Sequence[str], config: dict[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A claim for devices of the class that is called as its driver, and the status that a scheduler would give it."""
    configs = [{"opaque": {"driver": driver, "parameters": config}}] if config else []
    request = {"name": "devices", "exactly": {"deviceClassName": driver, "count": len(devices)}}
    made = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request], "config": configs}},
    }
    results = [{"request": "devices", "driver": driver, "pool": NODE, "device": device} for device in devices]
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}]
    status = {
        "allocation": {
            "devices": {"results": results, "config": [{"source": "FromClaim", **one} for one in configs]},
            "nodeSelector": {"nodeSelectorTerms": terms},
        },
        "reservedFor": [{"resource": "pods", "name": f"pod-{name}", "uid": f"pod-{name}-uid"}],
    }
    return made, status
