"""Which daemon has which index in its clique, and what the ComputeDomainCliques must say. Pure.

The controller writes the cliques, and daemons only read them: N daemons that each add themselves conflict N times with
each other. NVIDIA's daemons write their own entries; those are kept, so both may run in one cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pydra.controllers import JsonObject
from pydra_nvidia.compute_domain.controller.domain_view import View
from pydra_nvidia.compute_domain.controller.object_fields import (
    CLIQUES,
    get_node,
    get_pod_clique,
    get_pod_ip,
    get_uid,
    is_deleting,
    is_pod_ready,
)
from pydra_nvidia.compute_domain.controller.requests import Create, Delete, Replace, Request
from pydra_nvidia.compute_domain.names import CLIQUE_LABEL, DOMAIN_LABEL, clique_name

OUTSIDE = -1
"""The index of a node outside all cliques."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A node with a daemon that has an address and whose clique is known; `index` is None in a clique that is full.

    `other_clique` is what the node's slice says now, where the daemon was started for another clique.
    """

    node: str
    address: str
    clique: str
    ready: bool
    index: int | None = None
    other_clique: str | None = None


def choose_pods(pods: Sequence[JsonObject]) -> Mapping[str, JsonObject]:
    """The daemon's pod of each node: one that stays before one that goes, the newest of several."""

    def rank(pod: JsonObject) -> tuple[bool, str, str]:
        metadata = pod["metadata"]
        return not is_deleting(pod), str(metadata.get("creationTimestamp", "")), str(metadata["name"])

    chosen: dict[str, JsonObject] = {}
    for pod in sorted(pods, key=rank):
        if node := get_node(pod):
            chosen[node] = pod
    return dict(sorted(chosen.items()))


def find_members(view: View, max_nodes: int) -> Mapping[str, Member]:
    """The members of all cliques of a domain, by node, each with its index."""
    entries = _list_entries(view)
    entered = {(one.get("nodeName"), one.get("ipAddress")): str(one.get("cliqueID", "")) for one in entries}
    held = {(str(one.get("cliqueID", "")), str(one.get("nodeName"))): one.get("index") for one in entries}
    members: list[Member] = []
    for node, pod in choose_pods(view.pods).items():
        address, published = get_pod_ip(pod), view.node_cliques.get(node)
        if not address:
            continue
        clique = get_pod_clique(pod)
        if clique is None:
            clique = entered.get((node, address), published)
        if clique is None:
            continue
        other = published if published is not None and published != clique else None
        members.append(Member(node=node, address=address, clique=clique, ready=is_pod_ready(pod), other_clique=other))
    return {member.node: member for member in _number(members, held, max_nodes)}


def _number(members: Sequence[Member], held: Mapping[tuple[str, str], Any], max_nodes: int) -> Sequence[Member]:
    taken: dict[str, set[int]] = {}
    kept: dict[str, int] = {}
    for member in members:  # those that have an index keep it
        index, used = held.get((member.clique, member.node)), taken.setdefault(member.clique, set())
        if member.clique and isinstance(index, int) and 0 <= index < max_nodes and index not in used:
            kept[member.node] = index
            used.add(index)
    numbered = []
    for member in members:
        index = kept.get(member.node, OUTSIDE if not member.clique else None)
        if index is None:
            used = taken[member.clique]
            index = next((free for free in range(max_nodes) if free not in used), None)
            used.update(() if index is None else (index,))
        numbered.append(msgspec.structs.replace(member, index=index))
    return numbered


def _list_entries(view: View) -> Sequence[JsonObject]:
    """What the cliques say of their nodes; of a clique that somebody has deleted, the status still says it."""
    known = {found["metadata"]["name"] for found in view.cliques}
    nodes = (view.domain.get("status") or {}).get("nodes") or ()
    lost = [one for one in nodes if one.get("cliqueID") and clique_name(view.uid, one["cliqueID"]) not in known]
    daemons = [one for found in view.cliques for one in found.get("daemons") or ()]
    return [*({**one, "nodeName": one.get("name")} for one in lost), *daemons]


def plan_cliques(view: View, members: Mapping[str, Member], namespace: str) -> Sequence[Request]:
    """What makes the cliques list the members: written at most once each, deleted when nobody is left."""
    wanted: dict[str, list[JsonObject]] = {}
    for member in members.values():
        if member.clique and member.index is not None:
            wanted.setdefault(member.clique, []).append(
                {
                    "nodeName": member.node,
                    "ipAddress": member.address,
                    "cliqueID": member.clique,
                    "index": member.index,
                    "status": "Ready" if member.ready else "NotReady",
                }
            )
    found = {one["metadata"]["name"]: one for one in view.cliques}
    requests: list[Request] = []
    for clique, entries in sorted(wanted.items()):
        body = _build_clique(view, clique, sorted(entries, key=lambda entry: entry["index"]), namespace)
        old = found.pop(body["metadata"]["name"], None)
        if old is None:
            requests.append(Create(CLIQUES, body))
        elif not is_deleting(old) and _differs(old, body):
            labels = {**(old["metadata"].get("labels") or {}), **body["metadata"]["labels"]}
            metadata = {**old["metadata"], "labels": labels}
            requests.append(Replace(CLIQUES, {**old, "metadata": metadata, "daemons": body["daemons"]}))
    for name, old in sorted(found.items()):
        if not is_deleting(old):
            requests.append(Delete(resource=CLIQUES, namespace=namespace, name=name, uid=get_uid(old)))
    return requests


def _differs(old: JsonObject, body: JsonObject) -> bool:
    labels = old["metadata"].get("labels") or {}
    return _by_node(old) != _by_node(body) or not body["metadata"]["labels"].items() <= labels.items()


def _by_node(clique: JsonObject) -> Mapping[str, JsonObject]:
    return {str(entry.get("nodeName")): entry for entry in clique.get("daemons") or ()}


def _build_clique(view: View, clique: str, daemons: Sequence[JsonObject], namespace: str) -> JsonObject:
    labels = {DOMAIN_LABEL: view.uid, CLIQUE_LABEL: clique}
    metadata = {"name": clique_name(view.uid, clique), "namespace": namespace, "labels": labels}
    return {"metadata": metadata, "daemons": list(daemons)}
