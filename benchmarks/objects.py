"""The API objects of the measurements: a node, claims that are allocated already, a scenario of many devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

DRIVER = "sim.pydra.dev"
NODE = "bench-node"
PER_GROUP = 200


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


def claim(number: int) -> dict[str, Any]:
    """A claim for one accelerator, with a configuration, as its author writes it."""
    parameters = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "SimConfig", "clockMHz": 1200}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": f"claim-{number}", "namespace": "default"},
        "spec": {
            "devices": {
                "requests": [{"name": "accel", "exactly": {"deviceClassName": DRIVER}}],
                "config": [{"opaque": {"driver": DRIVER, "parameters": parameters}}],
            }
        },
    }


def allocation(number: int) -> dict[str, Any]:
    """The status that a scheduler would give the claim."""
    parameters = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "SimConfig", "clockMHz": 1200}
    return _status(
        f"pod-{number}",
        {
            "results": [{"request": "accel", "driver": DRIVER, "pool": NODE, "device": device_name(number)}],
            "config": [{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}],
        },
    )


def plain_claim(name: str, driver: str, count: int) -> dict[str, Any]:
    """A claim for so many devices of the class that is called as its driver."""
    request = {"name": "devices", "exactly": {"deviceClassName": driver, "count": count}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"devices": {"requests": [request]}},
    }


def plain_allocation(name: str, driver: str, devices: Sequence[str]) -> dict[str, Any]:
    """The status that a scheduler would give such a claim, with these devices."""
    results = [{"request": "devices", "driver": driver, "pool": NODE, "device": device} for device in devices]
    return _status(f"pod-{name}", {"results": results})


def _status(pod: str, devices: dict[str, Any]) -> dict[str, Any]:
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}]
    return {
        "allocation": {"devices": devices, "nodeSelector": {"nodeSelectorTerms": terms}},
        "reservedFor": [{"resource": "pods", "name": pod, "uid": f"{pod}-uid"}],
    }
