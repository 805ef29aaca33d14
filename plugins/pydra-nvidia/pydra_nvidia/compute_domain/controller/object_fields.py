"""What is read from fields of the API server's objects. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from pydra.controllers import JsonObject, Resource
from pydra_nvidia.compute_domain.names import (
    CHANNEL_KIND,
    CLIQUE_LABEL,
    DOMAIN_LABEL,
    DRIVER,
    FINALIZER,
    GROUP,
    VERSION,
)

COMPUTE_DOMAINS = Resource(group=GROUP, version=VERSION, plural="computedomains", kind="ComputeDomain", namespaced=True)
CLIQUES = Resource(
    group=GROUP, version=VERSION, plural="computedomaincliques", kind="ComputeDomainClique", namespaced=True
)
DAEMON_SETS = Resource(group="apps", version="v1", plural="daemonsets", kind="DaemonSet", namespaced=True)

WORST_MESSAGE = 300
"""Characters of another's message that a condition repeats."""


class ChannelClaim(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """A claim that has a channel of a node, for the domain with the UID `domain`; `pods` may use it."""

    namespace: str
    name: str
    uid: str
    domain: str
    node: str
    pods: tuple[str, ...]


def get_uid(found: JsonObject) -> str:
    """The UID, empty if it has none."""
    return str(found["metadata"].get("uid") or "")


def template_key(domain: JsonObject) -> tuple[str, str]:
    """Namespace and name of the template for a domain's pods; no name without a spec, which the CRD does not demand."""
    channel = (domain.get("spec") or {}).get("channel") or {}
    name = (channel.get("resourceClaimTemplate") or {}).get("name")
    return str(domain["metadata"]["namespace"]), str(name or "")


def get_num_nodes(domain: JsonObject) -> int:
    """How many nodes its owner wants to be ready, 0 if that is not said."""
    return int((domain.get("spec") or {}).get("numNodes") or 0)


def is_updating(daemon_set: JsonObject) -> bool:
    """Whether the DaemonSet's controller has not replaced all pods yet; it does nothing for one that is deleted.

    Pods that do not exist are not replaced: those that the API server refuses, as by a quota, might never exist.
    """
    status, generation = daemon_set.get("status") or {}, daemon_set["metadata"].get("generation") or 0
    names = ("observedGeneration", "currentNumberScheduled", "updatedNumberScheduled")
    observed, current, updated = (int(status.get(name) or 0) for name in names)
    return not is_deleting(daemon_set) and (observed < generation or updated < current)


def is_status_change(before: JsonObject, after: JsonObject) -> bool:
    """Whether nothing but the status differs, as after a write of the status."""
    return _without_status(before) == _without_status(after)


def _without_status(found: JsonObject) -> JsonObject:
    written = ("resourceVersion", "managedFields")
    metadata = {name: value for name, value in found["metadata"].items() if name not in written}
    return {**found, "metadata": metadata, "status": None}


def get_label(found: JsonObject, label: str = DOMAIN_LABEL) -> str | None:
    """The value of a label, None without it."""
    value = (found["metadata"].get("labels") or {}).get(label)
    return None if value is None else str(value)


def is_deleting(found: JsonObject) -> bool:
    """Whether somebody has deleted it."""
    return "deletionTimestamp" in found["metadata"]


def list_finalizers(found: JsonObject) -> list[str]:
    """All finalizers."""
    return list(found["metadata"].get("finalizers") or ())


def has_finalizer(found: JsonObject) -> bool:
    """Whether it has the one of ComputeDomains."""
    return FINALIZER in list_finalizers(found)


def find_condition(found: JsonObject, kind: str) -> JsonObject:
    """The condition of this type in an object's status; empty without it."""
    conditions = (found.get("status") or {}).get("conditions") or ()
    return next((dict(one) for one in conditions if one.get("type") == kind), {})


def is_pod_ready(pod: JsonObject) -> bool:
    """Whether the kubelet says so, or rather nobody has said since that its node is lost."""
    return not is_deleting(pod) and find_condition(pod, "Ready").get("status") == "True"


def get_pod_ip(pod: JsonObject) -> str:
    """Empty until it has one."""
    return str((pod.get("status") or {}).get("podIP") or "")


def get_node(pod: JsonObject) -> str:
    """Where it is, or must be: pods of a DaemonSet are for one node before they are scheduled."""
    spec = pod.get("spec") or {}
    if name := spec.get("nodeName"):
        return str(name)
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and field.get("operator") == "In" and field.get("values"):
                return str(field["values"][0])
    return ""


def get_pod_clique(pod: JsonObject) -> str | None:
    """The clique in the label that NVIDIA's daemon writes; None without the label."""
    return get_label(pod, CLIQUE_LABEL)


def find_domains(config: Any) -> Iterator[str]:
    """The UIDs of the domains that the opaque configuration of a claim names for channels."""
    for entry in config or ():
        opaque = entry.get("opaque") or {}
        parameters = opaque.get("parameters") or {}
        if (
            opaque.get("driver") == DRIVER
            and isinstance(parameters, dict)
            and parameters.get("kind") == CHANNEL_KIND
            and isinstance(parameters.get("domainID"), str)
        ):
            yield parameters["domainID"]


def list_named_domains(claim: JsonObject) -> Sequence[str]:
    """All domains that a claim names, allocated or not: those that its changes concern."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    requested = ((claim.get("spec") or {}).get("devices") or {}).get("config")
    return sorted({*find_domains(requested), *find_domains((allocation.get("devices") or {}).get("config"))})


def parse_channel_claims(claim: JsonObject) -> Sequence[ChannelClaim]:
    """What an allocated claim has of each domain that it names, on each node; empty for claims for other things."""
    metadata, status = claim["metadata"], claim.get("status") or {}
    devices = (status.get("allocation") or {}).get("devices") or {}
    nodes = {
        str(result.get("pool"))
        for result in devices.get("results") or ()
        if result.get("driver") == DRIVER and str(result.get("device", "")).startswith("channel-")
    }
    pods = sorted(str(one.get("name")) for one in status.get("reservedFor") or ())
    return [
        ChannelClaim(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            domain=domain,
            node=node,
            pods=tuple(pods),
        )
        for domain in sorted(set(find_domains(devices.get("config"))))
        for node in sorted(nodes)
    ]


def parse_slice(found: JsonObject) -> tuple[str, str, str] | None:
    """The node of a slice of this driver, its clique, empty outside a fabric, and its uid; None without a device."""
    spec = found.get("spec") or {}
    node, devices = spec.get("nodeName"), spec.get("devices") or ()
    if not node or not devices:
        return None
    owners = found["metadata"].get("ownerReferences") or ()
    uid = next((str(one["uid"]) for one in owners if (one.get("kind"), one.get("name")) == ("Node", node)), "")
    cliques = (((device.get("attributes") or {}).get("cliqueID") or {}).get("string") for device in devices)
    return str(node), str(next(filter(None, cliques), "")), uid


def shorten(text: str) -> str:
    """Another's message, as a part of one's own."""
    text = " ".join(text.split())
    return text if len(text) <= WORST_MESSAGE else f"{text[: WORST_MESSAGE - 3]}..."
