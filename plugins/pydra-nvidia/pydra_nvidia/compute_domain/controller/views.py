"""From all objects to those that one domain depends on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydra.controllers import (
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
    object_key,
)
from pydra_nvidia.compute_domain.controller.facts import (
    CLIQUES,
    COMPUTE_DOMAINS,
    DAEMON_SETS,
    View,
    get_label,
    get_uid,
    is_updating,
    parse_channel_claims,
    parse_slice,
    template_key,
)
from pydra_nvidia.compute_domain.names import daemon_name


def build_view(uid: str, objects: Mapping[Resource, Sequence[JsonObject]], namespace: str) -> View | None:
    """Everything about the domain with this UID, whose daemons are in `namespace`; None if it does not exist."""
    domain = next((one for one in objects[COMPUTE_DOMAINS] if get_uid(one) == uid), None)
    if domain is None:
        return None
    own = namespace, daemon_name(uid)
    nodes = [node for node in objects[NODES] if get_label(node) is not None]
    labels = {get_label(node) for node in nodes}
    sets = objects[DAEMON_SETS]
    claims = [claim for one in objects[RESOURCE_CLAIMS] for claim in parse_channel_claims(one)]
    slices = [found for found in map(parse_slice, objects[RESOURCE_SLICES]) if found is not None]
    return View(
        domain=domain,
        daemon_set=_find(sets, own),
        daemon_template=_find(objects[RESOURCE_CLAIM_TEMPLATES], own),
        workload_template=_find(objects[RESOURCE_CLAIM_TEMPLATES], template_key(domain)),
        pods=tuple(pod for pod in objects[PODS] if get_label(pod) == uid),
        cliques=tuple(one for one in objects[CLIQUES] if get_label(one) == uid),
        claims=tuple(claim for claim in claims if claim.domain == uid),
        node_domains={node["metadata"]["name"]: get_label(node) or "" for node in nodes},
        domain_names={
            get_uid(one): "/".join(object_key(one)) for one in objects[COMPUTE_DOMAINS] if get_uid(one) in labels
        },
        node_versions={node["metadata"]["name"]: node["metadata"]["resourceVersion"] for node in nodes},
        node_cliques={node: clique for node, clique, _ in slices},
        node_uids={node: uid for node, _, uid in slices if uid},
        updating=next((one["metadata"]["name"] for one in sets if get_label(one) != uid and is_updating(one)), ""),
    )


def _find(objects: Sequence[JsonObject], key: tuple[str, str]) -> JsonObject | None:
    return next((one for one in objects if object_key(one) == key), None)
