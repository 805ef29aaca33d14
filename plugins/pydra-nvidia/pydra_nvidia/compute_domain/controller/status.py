"""A domain's status: NVIDIA's `status` and `nodes`, and conditions that say which node waits for what. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from pydra.controllers import JsonObject
from pydra_nvidia.compute_domain.controller.cliques import OUTSIDE, Member, choose_pods
from pydra_nvidia.compute_domain.controller.domain_view import View
from pydra_nvidia.compute_domain.controller.object_fields import (
    find_condition,
    get_num_nodes,
    get_pod_ip,
    is_deleting,
    is_pod_ready,
    shorten,
)
from pydra_nvidia.compute_domain.controller.settings import ControllerSettings
from pydra_nvidia.compute_domain.names import DRIVER, IMEX_CONDITION

READY, CREATED, UPDATED, DELETING = "Ready", "ObjectsCreated", "DaemonsUpToDate", "Deleting"
CONNECTED = "Connected"
"""The types of conditions."""
DEGRADED = "DomainDegraded"
"""The reason why a daemon, which is ready, says that its peers are not connected, or have another driver."""
NAMED = 5
"""How many nodes a condition names."""
_NO_AGENT = f"its slice of {DRIVER}, which reports its clique, does not exist: no agent serves the node"


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One condition, as it should be now."""

    type: str
    status: bool
    reason: str
    message: str


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the domain: ready, or what it waits for. `member` is None before it has an address and a clique.

    `degraded` is what the daemon says of its peers.
    """

    node: str
    waits_for: str
    member: Member | None = None
    degraded: str = ""


def list_node_states(view: View, members: Mapping[str, Member], settings: ControllerSettings) -> Sequence[NodeState]:
    """All nodes that the domain has, or that pods of it are on, sorted; without those that leave it."""
    pods = choose_pods(view.pods)
    staying = (node for node, pod in pods.items() if not is_deleting(pod))
    nodes = {*view.own_nodes, *staying, *(claim.node for claim in view.own_claims)}
    return [
        NodeState(
            node=node,
            waits_for=_find_wait(view, node, pods.get(node), members.get(node), settings),
            member=members.get(node),
            degraded=_find_degraded(pods.get(node)),
        )
        for node in sorted(nodes)
    ]


def _find_degraded(pod: JsonObject | None) -> str:
    imex = find_condition(pod, IMEX_CONDITION) if pod is not None and is_pod_ready(pod) else {}
    return shorten(str(imex.get("message") or "")) if imex.get("reason") == DEGRADED else ""


def _find_wait(
    view: View, node: str, pod: JsonObject | None, member: Member | None, settings: ControllerSettings
) -> str:
    """What the node waits for; empty if it is ready."""
    if member is not None and member.index is None:
        return (
            f"its clique {member.clique} has {settings.max_nodes} other nodes of this domain already, and no more are "
            "allowed (maxNodesPerDomain)"
        )
    if pod is not None and is_pod_ready(pod) and member is not None:
        return ""
    domain = view.node_domains.get(node)
    if domain not in (None, view.uid):
        return f"the node is in the ComputeDomain {view.describe(domain or '')}, and can be in one at a time"
    if pod is None:
        no_label = "the node has no label yet" if node in view.node_uids else _NO_AGENT
        return "no daemon pod yet" if domain else no_label
    name = pod["metadata"]["name"]
    if is_deleting(pod):
        return f"its daemon pod {name} is being deleted"
    if reason := find_pod_trouble(pod):
        return f"its daemon pod {name}: {reason}"
    if get_pod_ip(pod) and member is None:
        return _NO_AGENT
    return f"its daemon pod {name} is not ready yet"


def find_pod_trouble(pod: JsonObject) -> str:
    """Why a pod does not run or is not ready, as the kubelet, the scheduler or the daemon itself says it."""
    scheduled = find_condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return shorten(f"not scheduled: {scheduled.get('message') or scheduled.get('reason') or ''}")
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return shorten(f"{waiting['reason']}: {waiting.get('message') or ''}".rstrip(": "))
        if ended:
            return shorten(f"ended with code {ended.get('exitCode')}: {ended.get('message') or ended.get('reason')}")
    imex = find_condition(pod, IMEX_CONDITION)
    if imex.get("status") == "False":
        return shorten(str(imex.get("message") or imex.get("reason") or ""))
    ready = find_condition(pod, "Ready")
    return shorten(str(ready.get("message") or "")) if ready.get("status") == "False" else ""


def judge_ready(
    view: View, states: Sequence[NodeState], problem: Condition | None, settings: ControllerSettings
) -> Condition:
    """The condition Ready; `problem` is what keeps objects from being created."""
    if is_deleting(view.domain):
        return _ready("Deleting", "the domain is being deleted")
    if problem is not None:
        return _ready(problem.reason, problem.message)
    if settings.host_managed:
        return _ready(
            "HostManaged", "the hosts run their IMEX daemons; what is ready is known on each node", ready=True
        )
    wanted = max(1, get_num_nodes(view.domain))
    waiting = [state for state in states if state.waits_for]
    ready = len(states) - len(waiting)
    if not states:
        return _ready("NoNodes", "no pod with a channel of this domain is allocated to a node yet")
    if waiting:
        named = "; ".join(f"{state.node}: {state.waits_for}" for state in waiting[:NAMED])
        more = f"; and {len(waiting) - NAMED} more" if len(waiting) > NAMED else ""
        return _ready("NodesNotReady", f"{ready} of {len(states)} nodes are ready; {named}{more}")
    if ready < wanted:
        return _ready("TooFewNodes", f"nodes that are ready: {ready}, and spec.numNodes is {wanted}")
    return _ready("NodesReady", f"all {ready} nodes are ready", ready=True)


def judge_connected(view: View, states: Sequence[NodeState]) -> Sequence[Condition]:
    """The condition Connected, once a daemon has said of its peers that something is wrong."""
    degraded = [f"{state.node}: {state.degraded}" for state in states if state.degraded]
    if degraded:
        more = f"; and {len(degraded) - NAMED} more" if len(degraded) > NAMED else ""
        message = "; ".join(degraded[:NAMED]) + more
        return [Condition(type=CONNECTED, status=False, reason=DEGRADED, message=message)]
    if not find_condition(view.domain, CONNECTED):
        return []
    return [Condition(type=CONNECTED, status=True, reason="NodesConnected", message="no daemon misses a peer")]


def _ready(reason: str, message: str, *, ready: bool = False) -> Condition:
    return Condition(type=READY, status=ready, reason=reason, message=message)


def build_status(view: View, states: Sequence[NodeState], conditions: Sequence[Condition], now: str) -> JsonObject:
    """The whole status, as NVIDIA's without `nodes` when there are none; `now` is in RFC 3339.

    A condition keeps the time of its last transition until it changes.
    """
    generation = int(view.domain["metadata"].get("generation") or 0)
    ready = next(one for one in conditions if one.type == READY)
    count = sum(not state.waits_for for state in states)
    nodes = [_build_node(state) for state in states if state.member is not None]
    old = {one.get("type"): one for one in (view.domain.get("status") or {}).get("conditions") or ()}
    return {
        "status": "Ready" if ready.status else "NotReady",
        "summary": f"{count}/{max(len(states), get_num_nodes(view.domain))}",
        "observedGeneration": generation,
        "conditions": [_build_condition(one, old.get(one.type) or {}, generation, now) for one in conditions],
        **({"nodes": nodes} if nodes else {}),
    }


def _build_condition(condition: Condition, old: JsonObject, generation: int, now: str) -> JsonObject:
    status = "True" if condition.status else "False"
    since = old.get("lastTransitionTime") if old.get("status") == status else None
    return {
        "type": condition.type,
        "status": status,
        "reason": condition.reason,
        "message": condition.message,
        "observedGeneration": generation,
        "lastTransitionTime": since or now,
    }


def _build_node(state: NodeState) -> JsonObject:
    assert state.member is not None
    member = state.member
    index = OUTSIDE if member.index is None else member.index
    node = {"name": member.node, "ipAddress": member.address, "cliqueID": member.clique, "index": index}
    changed = (
        f"the daemon was started for this clique, and the node is in {member.other_clique or 'none'} now; "
        "delete the daemon's pod when no pod on the node uses the domain"
        if member.other_clique is not None
        else ""
    )
    message = state.waits_for or changed or state.degraded
    return {**node, "status": "NotReady" if state.waits_for else "Ready", **({"message": message} if message else {})}
