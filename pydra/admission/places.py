"""Where opaque configs are in the objects of resource.k8s.io. Pure.

The same in v1, v1beta2 and v1beta1, which differ in requests and devices only. What does not have the shape of the
API is passed over: the API server itself refuses it. Sources: k8s.io/api/resource/{v1,v1beta2,v1beta1}/types.go;
for what may change, ValidateResourceClaimUpdate and its neighbours in k8s.io/kubernetes/pkg/apis/resource/validation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

GROUP = "resource.k8s.io"
VERSIONS = ("v1", "v1beta1", "v1beta2")
PLACES: Mapping[str, tuple[str, ...]] = {
    "deviceclasses": ("spec", "config"),
    "resourceclaims": ("spec", "devices", "config"),
    "resourceclaimtemplates": ("spec", "spec", "devices", "config"),
}
"""From the resource to the way to its list of configs."""

OPERATIONS: Mapping[str, tuple[str, ...]] = {
    "deviceclasses": ("CREATE", "UPDATE"),
    "resourceclaims": ("CREATE",),
    "resourceclaimtemplates": ("CREATE",),
}
"""The writes that can bring a config. Claims and templates keep theirs, and nothing may stand in the way of a claim's
updates: the scheduler adds a finalizer by one before it allocates, and another takes it off when the claim is deleted.
"""

MOST_CONFIGS = 32
"""In one object, as the API has it; further ones are not looked at."""

MOST_PARAMETERS = 10 * 1024
"""Bytes of a config's parameters, as the API has it."""


def build_rules() -> list[dict[str, list[str]]]:
    """What to ask about, for `rules` of a webhook's configuration and `resourceRules` of a policy."""
    rules = []
    for operations in dict.fromkeys(OPERATIONS.values()):
        resources = [resource for resource, those in OPERATIONS.items() if those == operations]
        versions = {"apiGroups": [GROUP], "apiVersions": list(VERSIONS)}
        rules.append({**versions, "operations": list(operations), "resources": resources})
    return rules


class FoundConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An opaque config: `path` leads to its parameters, as in `spec.devices.config[1].opaque.parameters`."""

    path: str
    driver: str
    parameters: Any


def find_configs(resource: str, found: Any) -> Iterator[FoundConfig]:
    """Every opaque config of an object of this resource (`resourceclaims`, ...), in order."""
    way = PLACES.get(resource, ())
    for step in way:
        found = found.get(step) if isinstance(found, Mapping) else None
    for index, entry in enumerate(found[:MOST_CONFIGS] if isinstance(found, list) else ()):
        opaque = entry.get("opaque") if isinstance(entry, Mapping) else None
        driver = opaque.get("driver") if isinstance(opaque, Mapping) else None
        if isinstance(opaque, Mapping) and isinstance(driver, str):
            path = f"{'.'.join(way)}[{index}].opaque.parameters"
            yield FoundConfig(path=path, driver=driver, parameters=opaque.get("parameters"))
