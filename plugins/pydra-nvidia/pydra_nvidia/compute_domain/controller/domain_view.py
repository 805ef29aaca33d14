"""The view of one domain: those of all objects that decisions about it depend on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

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
from pydra_nvidia.compute_domain.controller.object_fields import (
    CLIQUES,
    COMPUTE_DOMAINS,
    DAEMON_SETS,
    ChannelClaim,
    get_label,
    get_uid,
    is_updating,
    parse_channel_claims,
    parse_slice,
    template_key,
)
from pydra_nvidia.compute_domain.names import clique_name, daemon_name


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decisions about one domain depend on.

    `node_domains` has the UID in the label of each labelled node and `node_versions` their resource versions;
    `domain_names` has namespace/name of those domains that exist, by UID;
    `node_cliques` has the clique that each node's slice reports, empty outside a fabric, and `node_uids` its uid there.
    `updating` names another domain whose daemons are being replaced.
    """

    domain: JsonObject
    daemon_set: JsonObject | None = None
    daemon_template: JsonObject | None = None
    workload_template: JsonObject | None = None
    pods: tuple[JsonObject, ...] = ()
    cliques: tuple[JsonObject, ...] = ()
    claims: tuple[ChannelClaim, ...] = ()
    node_domains: Mapping[str, str] = msgspec.field(default_factory=dict)
    domain_names: Mapping[str, str] = msgspec.field(default_factory=dict)
    node_versions: Mapping[str, str] = msgspec.field(default_factory=dict)
    node_cliques: Mapping[str, str] = msgspec.field(default_factory=dict)
    node_uids: Mapping[str, str] = msgspec.field(default_factory=dict)
    updating: str = ""

    @property
    def uid(self) -> str:
        """Of the domain."""
        return get_uid(self.domain)

    @property
    def namespace(self) -> str:
        """Of the domain."""
        return str(self.domain["metadata"]["namespace"])

    @property
    def own_claims(self) -> Sequence[ChannelClaim]:
        """The claims that may use the domain: those of its namespace."""
        return [claim for claim in self.claims if claim.namespace == self.namespace]

    @property
    def own_nodes(self) -> Sequence[str]:
        """The nodes with the label of this domain."""
        return sorted(node for node, domain in self.node_domains.items() if domain == self.uid)

    def describe(self, uid: str) -> str:
        """Another domain, for a message."""
        return self.domain_names.get(uid) or f"with the UID {uid}"


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
        cliques=tuple(one for one in objects[CLIQUES] if one["metadata"]["name"].startswith(clique_name(uid, ""))),
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
