"""Which claims a pod has and may use, which containers use them, and which drivers must prepare them. Pure.

Source: pkg/kubelet/cm/dra/manager.go, staging/src/k8s.io/dynamic-resource-allocation/resourceclaim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

JsonObject: TypeAlias = Mapping[str, Any]


class ClaimKey(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A claim as it is sent to plugins."""

    namespace: str
    name: str
    uid: str


class PodClaim(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of `spec.resourceClaims` and the ResourceClaim that it stands for; `generated` from a template."""

    entry: str
    claim: str
    generated: bool


class PodClaimError(Exception):
    """The pod cannot be started with its claims as they are; the text is the event's."""


def find_pod_claims(pod: JsonObject) -> tuple[PodClaim, ...]:
    """The claims of a pod; raises PodClaimError while one of a template has not been created yet."""
    statuses = {
        one["name"]: one.get("resourceClaimName") for one in pod.get("status", {}).get("resourceClaimStatuses") or ()
    }
    found = []
    for entry in pod["spec"].get("resourceClaims") or ():
        name = entry["name"]
        if direct := entry.get("resourceClaimName"):
            found.append(PodClaim(entry=name, claim=direct, generated=False))
        elif name not in statuses:
            raise PodClaimError(f'pod claim "{name}": resource claim not created yet')
        elif generated := statuses[name]:
            found.append(PodClaim(entry=name, claim=generated, generated=True))
        # A status without a claim's name says that the template's claim is not needed.
    return tuple(found)


def check_claim(pod: JsonObject, pod_claim: PodClaim, claim: JsonObject) -> None:
    """Raise PodClaimError unless the claim is this pod's to use, and allocated."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    uid, pod_name = pod["metadata"]["uid"], f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    if pod_claim.generated and not any(
        owner["uid"] == uid and owner.get("controller") for owner in metadata.get("ownerReferences") or ()
    ):
        raise PodClaimError(
            f"ResourceClaim {metadata['namespace']}/{metadata['name']} was not created for pod {pod_name}"
        )
    if not any(consumer["uid"] == uid for consumer in status.get("reservedFor") or ()):
        raise PodClaimError(
            f"pod {pod['metadata']['name']} ({uid}) is not allowed to use ResourceClaim "
            f"{metadata['name']} ({metadata['uid']})"
        )
    if not status.get("allocation"):
        raise PodClaimError(f"resource claim {metadata['name']} is not allocated")


def claim_key(claim: JsonObject) -> ClaimKey:
    """The claim's namespace, name and uid."""
    metadata = claim["metadata"]
    return ClaimKey(namespace=metadata["namespace"], name=metadata["name"], uid=metadata["uid"])


def find_drivers(claim: JsonObject) -> tuple[str, ...]:
    """The drivers that have a device in the claim's allocation."""
    results = claim["status"]["allocation"].get("devices", {}).get("results") or ()
    return tuple(sorted({result["driver"] for result in results}))


def group_by_driver(claims: Iterable[tuple[ClaimKey, Sequence[str]]]) -> Mapping[str, tuple[ClaimKey, ...]]:
    """Which claims go to which driver, one call each; drivers and claims in order."""
    calls: dict[str, list[ClaimKey]] = {}
    for key, drivers in claims:
        for driver in drivers:
            calls.setdefault(driver, []).append(key)
    return {driver: tuple(sorted(calls[driver])) for driver in sorted(calls)}


def list_containers(pod: JsonObject) -> tuple[JsonObject, ...]:
    """The pod's containers, in the order in which they are created: init containers first."""
    return (*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"])


def container_requests(container: JsonObject) -> tuple[tuple[str, str], ...]:
    """The pod claims that a container uses, each with the request's name or "" for all of them."""
    used = container.get("resources", {}).get("claims") or ()
    return tuple((one["name"], one.get("request", "")) for one in used)


def explain_missing(
    pod: JsonObject, container: JsonObject, devices: Iterable[tuple[str, Sequence[object]]]
) -> tuple[str, ...]:
    """Why a container has no device of claims of its pod; `devices` are those that it has, by what it names."""
    absent = [label for label, found in devices if "/" in label and not found]
    named = {entry for one in list_containers(pod) for entry, _ in container_requests(one)}
    unnamed = [one.entry for one in find_pod_claims(pod) if one.entry not in named]
    return (
        *(f"no device of {label}: the claim has no such request" for label in absent),
        *(f"no device of claim:{entry}: no container names it in resources.claims" for entry in unnamed),
    )
