"""Feature gates of the API server under test: objects that it keeps as they are only where a gate is on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydra.kube.api_resources import DEVICE_CLASSES, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject, Resource

TAINT_RULES = Resource(
    group="resource.k8s.io", version="v1beta2", plural="devicetaintrules", kind="DeviceTaintRule", namespaced=False
)
_TAINT = {"key": "example.com/probe", "effect": "NoSchedule"}
_POOL = {"name": "probe", "generation": 1, "resourceSliceCount": 1}


def _build_slice(**device: Any) -> tuple[Resource, JsonObject]:
    where = {"driver": "probe.example.com", "nodeName": "probe", "pool": _POOL}
    return RESOURCE_SLICES, {**where, "devices": [{"name": "one", **device}]}


PROBES: Mapping[str, tuple[Resource, JsonObject]] = {
    "DRAConsumableCapacity": _build_slice(allowMultipleAllocations=True),
    "DRADeviceTaints": _build_slice(taints=[_TAINT]),
    "DRAPartitionableDevices": _build_slice(
        consumesCounters=[{"counterSet": "one", "counters": {"memory": {"value": "1"}}}]
    ),
    "DRAListTypeAttributes": _build_slice(attributes={"example.com/probe": {"strings": ["one"]}}),
    "DRAExtendedResource": (DEVICE_CLASSES, {"extendedResourceName": "example.com/probe"}),
    "DRADeviceTaintRules": (TAINT_RULES, {"deviceSelector": {"driver": "probe.example.com"}, "taint": _TAINT}),
    "DRAPrioritizedList": (
        RESOURCE_CLAIMS,
        {"devices": {"requests": [{"name": "one", "firstAvailable": [{"name": "a", "deviceClassName": "probe"}]}]}},
    ),
}
"""By gate, a kind and the spec of an object of it."""


def is_kept(asked: Any, stored: Any) -> bool:
    """Whether all that was asked for was stored; the server may have added to it."""
    if isinstance(asked, dict):
        return isinstance(stored, dict) and all(is_kept(value, stored.get(name)) for name, value in asked.items())
    if isinstance(asked, list):
        return isinstance(stored, list) and len(asked) == len(stored) and all(map(is_kept, asked, stored))
    return bool(asked == stored)
