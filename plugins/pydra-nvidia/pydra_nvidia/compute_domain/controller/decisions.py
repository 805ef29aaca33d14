"""What a domain needs: from the objects that exist to the requests that are missing, its status and Events. Pure.

Everything follows from what exists, so a controller that dies between any two requests, or two at once, end at the
same: names are fixed, creation is repeatable, and what is replaced or removed has the version or uid that was seen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from pydra.controllers import RESOURCE_CLAIM_TEMPLATES, EventRequest, JsonObject, Resource, Subject, object_key
from pydra_nvidia.compute_domain.controller.cliques import find_members, plan_cliques
from pydra_nvidia.compute_domain.controller.domain_view import View
from pydra_nvidia.compute_domain.controller.object_fields import (
    CLIQUES,
    COMPUTE_DOMAINS,
    DAEMON_SETS,
    ChannelClaim,
    find_condition,
    find_domains,
    get_label,
    get_uid,
    has_finalizer,
    is_deleting,
    is_updating,
    list_finalizers,
    list_named_domains,
    template_key,
)
from pydra_nvidia.compute_domain.controller.objects import (
    HASH_ANNOTATION,
    build_daemon_set,
    build_daemon_template,
    build_workload_template,
)
from pydra_nvidia.compute_domain.controller.requests import (
    Create,
    Delete,
    LabelNode,
    Patch,
    Replace,
    Request,
    UnlabelNode,
    patch_finalizers,
)
from pydra_nvidia.compute_domain.controller.settings import ControllerSettings
from pydra_nvidia.compute_domain.controller.status import (
    CONNECTED,
    CREATED,
    DEGRADED,
    DELETING,
    NAMED,
    READY,
    UPDATED,
    Condition,
    NodeState,
    build_status,
    judge_connected,
    judge_ready,
    list_node_states,
)
from pydra_nvidia.compute_domain.names import DOMAIN_LABEL, FINALIZER

ACTION = "Reconcile"
FAILED, HELD = "RequestFailed", "WaitingForFinalizers"
_WARNINGS = frozenset({"TemplateNameTaken", "SpecMissing", "NodesNotReady", "WaitingForPods", FAILED, HELD, DEGRADED})


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """Requests in their order; one that fails keeps none of the others back but the status, which comes last."""

    requests: tuple[Request, ...] = ()
    events: tuple[EventRequest, ...] = ()


def decide(view: View, settings: ControllerSettings, now: str, failed: str = "") -> Decision:
    """What is to be done for one domain. `now` is in RFC 3339; `failed` is why a request failed, for the status."""
    act = _decide_deletion if is_deleting(view.domain) else _decide_life
    return act(view, settings, now, failed)


def _decide_life(view: View, settings: ControllerSettings, now: str, failed: str) -> Decision:
    requests: list[Request] = []
    if not has_finalizer(view.domain):
        finalizers = [*list_finalizers(view.domain), FINALIZER]
        requests.append(patch_finalizers(COMPUTE_DOMAINS, view.domain, finalizers, comes_first=True))
    problem = _find_problem(view)
    if problem is None:
        wanted = build_workload_template(view.domain)
        requests += _plan_existing(RESOURCE_CLAIM_TEMPLATES, view.workload_template, wanted)
    created = Condition(type=CREATED, status=True, reason="Created", message="all objects are created")
    if failed:
        created = Condition(type=CREATED, status=False, reason=FAILED, message=failed)
    elif held := "; ".join(_list_held(view)):
        created = Condition(type=CREATED, status=False, reason=HELD, message=f"created again after {held}")
    return _serve(view, settings, now, requests, problem or created)


def _serve(
    view: View, settings: ControllerSettings, now: str, requests: list[Request], condition: Condition
) -> Decision:
    """What nodes with a channel need, after these requests; the status has this condition beside those of nodes."""
    conditions = [condition]
    states: Sequence[NodeState] = ()
    if not settings.host_managed:
        wanted = build_daemon_template(view.domain, settings)
        requests += _plan_existing(RESOURCE_CLAIM_TEMPLATES, view.daemon_template, wanted)
        update, updated = _plan_daemon_set(view, settings)
        members = find_members(view, settings.max_nodes)
        requests += [*update, *_plan_labels(view), *plan_cliques(view, members, settings.namespace)]
        conditions.append(updated)
        states = list_node_states(view, members, settings)
    conditions += judge_connected(view, states)
    is_owners = condition.type == CREATED and not condition.status and condition.reason not in (FAILED, HELD)
    problem = condition if is_owners else None
    conditions.insert(0, judge_ready(view, states, problem, settings))
    return _finish(view, requests, build_status(view, states, conditions, now), conditions)


def _find_problem(view: View) -> Condition | None:
    """What keeps the domain from having a template, and is its owner's to change."""
    if template_key(view.domain)[1]:
        return _find_foreign_template(view)
    return Condition(
        type=CREATED,
        status=False,
        reason="SpecMissing",
        message="the domain has no spec, which the API server accepts; set spec.channel.resourceClaimTemplate.name",
    )


def _find_foreign_template(view: View) -> Condition | None:
    """What is wrong when the name of the workload's template belongs to somebody else."""
    found = view.workload_template
    if found is None:
        return None
    spec = ((found.get("spec") or {}).get("spec") or {}).get("devices") or {}
    if set(find_domains(spec.get("config"))) == {view.uid}:
        return None
    namespace, name = object_key(found)
    return Condition(
        type=CREATED,
        status=False,
        reason="TemplateNameTaken",
        message=f"the ResourceClaimTemplate {namespace}/{name} exists and is not of this domain; delete it, or make "
        "another ComputeDomain with another name in spec.channel.resourceClaimTemplate",
    )


def _plan_existing(resource: Resource, found: JsonObject | None, wanted: JsonObject) -> Iterable[Request]:
    """The object exists with its label and finalizer; one being deleted is released, and created again later."""
    if found is None:
        yield Create(resource, wanted)
    elif is_deleting(found):
        if has_finalizer(found):
            yield _drop_finalizer(resource, found)
    elif get_label(found) != wanted["metadata"]["labels"][DOMAIN_LABEL] or not has_finalizer(found):
        metadata = {
            "labels": wanted["metadata"]["labels"],
            "finalizers": sorted({*list_finalizers(found), FINALIZER}),
            "resourceVersion": found["metadata"]["resourceVersion"],
        }
        namespace, name = object_key(found)
        yield Patch(resource=resource, namespace=namespace, name=name, body={"metadata": metadata})


def _plan_daemon_set(view: View, settings: ControllerSettings) -> tuple[Sequence[Request], Condition]:
    wanted, found = build_daemon_set(view.domain, settings), view.daemon_set
    repair = list(_plan_existing(DAEMON_SETS, found, wanted))
    if repair or found is None or is_deleting(found):
        return repair, _updated("Created", "the DaemonSet is created as it should be")
    written = (found["metadata"].get("annotations") or {}).get(HASH_ANNOTATION)
    if written == wanted["metadata"]["annotations"][HASH_ANNOTATION]:
        if is_updating(found):
            return (), _updated("Updating", "the daemons are being replaced", updated=False)
        return (), _updated("UpToDate", "the daemons have the image and settings of the controller")
    if pods := _list_pods(view.own_claims):
        why = (
            "a daemon that restarts ends the imports of running pods; the daemons are replaced when these have ended: "
        )
        return (), _updated("WaitingForPods", why + pods, updated=False)
    if view.updating:
        why = f"waits until the daemons of {view.updating} are replaced"
        return (), _updated("WaitingForOthers", why, updated=False)
    metadata = {**found["metadata"]}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **wanted["metadata"]["annotations"]}
    body = {**found, "metadata": metadata, "spec": wanted["spec"]}
    return [Replace(DAEMON_SETS, body)], _updated("Updating", "the daemons are being replaced", updated=False)


def _updated(reason: str, message: str, *, updated: bool = True) -> Condition:
    return Condition(type=UPDATED, status=updated, reason=reason, message=message)


def _list_pods(claims: Sequence[ChannelClaim]) -> str:
    """The pods that may use the domain now, for a message; empty if there are none."""
    pods = sorted({f"{claim.namespace}/{pod}" for claim in claims for pod in claim.pods})
    more = f" and {len(pods) - NAMED} more" if len(pods) > NAMED else ""
    return ", ".join(pods[:NAMED]) + more


def _plan_labels(view: View) -> Iterable[Request]:
    """Nodes with a channel of the domain have its label, those without have not: the DaemonSet selects by it."""
    needed = {claim.node for claim in view.own_claims}
    for node in sorted((needed & view.node_uids.keys()) - view.node_domains.keys()):
        yield LabelNode(node=node, uid=view.node_uids[node], domain=view.uid)
    for node in view.own_nodes:
        if node not in needed:
            yield UnlabelNode(node=node, version=view.node_versions.get(node, ""))


def _decide_deletion(view: View, settings: ControllerSettings, now: str, failed: str) -> Decision:
    """In order: no new pods, no running pods, no daemons, no labels; then the domain itself.

    Pods that have a channel are served until they end, also those that have not started yet.
    """
    if not has_finalizer(view.domain):
        return Decision()
    requests: list[Request] = []
    if view.workload_template is not None and _find_foreign_template(view) is None:
        requests += _plan_removal(RESOURCE_CLAIM_TEMPLATES, view.workload_template)
    if pods := _list_pods(view.own_claims):
        why = f"deleted when the pods that use it have ended: {pods}"
        reason = FAILED if failed else "WaitingForPods"
        deleting = Condition(type=DELETING, status=False, reason=reason, message=failed or why)
        return _serve(view, settings, now, requests, deleting)
    for resource, found in (
        (DAEMON_SETS, view.daemon_set),
        (RESOURCE_CLAIM_TEMPLATES, view.daemon_template),
        *((CLIQUES, clique) for clique in view.cliques),
    ):
        if found is not None:
            requests += _plan_removal(resource, found)
    requests += [UnlabelNode(node=node, version=view.node_versions.get(node, "")) for node in view.own_nodes]
    gone = view.workload_template is None or _find_foreign_template(view) is not None
    if gone and not (view.daemon_set or view.daemon_template or view.cliques or view.own_nodes):
        requests.append(_drop_finalizer(COMPUTE_DOMAINS, view.domain))
    held = "; ".join(_list_held(view))
    if not failed and not held:
        return Decision(requests=tuple(requests))
    reason = FAILED if failed else HELD
    deleting = Condition(type=DELETING, status=False, reason=reason, message=failed or f"deleted after {held}")
    conditions = [judge_ready(view, (), None, settings), deleting]
    return _finish(view, requests, build_status(view, (), conditions, now), conditions)


def _list_held(view: View) -> Iterable[str]:
    """The domain's objects that others keep from going away."""
    for found in (view.workload_template, view.daemon_set, view.daemon_template, *view.cliques):
        others = [one for one in list_finalizers(found) if one != FINALIZER] if found is not None else []
        if found is not None and others and is_deleting(found) and get_label(found) == view.uid:
            yield f"{'/'.join(object_key(found))}, which has the finalizers {', '.join(others)}"


def _plan_removal(resource: Resource, found: JsonObject) -> Iterable[Request]:
    namespace, name = object_key(found)
    if not is_deleting(found):
        yield Delete(resource=resource, namespace=namespace, name=name, uid=get_uid(found))
    elif has_finalizer(found):
        yield _drop_finalizer(resource, found)


def _drop_finalizer(resource: Resource, found: JsonObject) -> Request:
    return patch_finalizers(resource, found, [one for one in list_finalizers(found) if one != FINALIZER])


def plan_garbage(
    domains: Collection[str], objects: Iterable[tuple[Resource, JsonObject]], nodes: Iterable[JsonObject]
) -> Sequence[Request]:
    """What is left of domains that do not exist: `domains` are the UIDs of all that do, read after `objects`."""
    requests: list[Request] = []
    for resource, found in objects:
        uid = get_label(found)
        if uid and uid not in domains:
            requests += _plan_removal(resource, found)
    for node in nodes:
        uid = get_label(node)
        if uid is not None and uid not in domains:
            metadata = node["metadata"]
            requests.append(UnlabelNode(node=metadata["name"], version=metadata.get("resourceVersion", "")))
    return requests


def _finish(view: View, requests: list[Request], status: JsonObject, conditions: Sequence[Condition]) -> Decision:
    events = [*_list_changes(view, conditions), *_list_claim_events(view)]
    if status != (view.domain.get("status") or {}):
        namespace, name = object_key(view.domain)
        body = {"status": {"nodes": None, **status}}
        requests.append(
            Patch(resource=COMPUTE_DOMAINS, namespace=namespace, name=name, body=body, subresource="status")
        )
    return Decision(requests=tuple(requests), events=tuple(events))


def _list_changes(view: View, conditions: Sequence[Condition]) -> Iterable[EventRequest]:
    """An Event for each condition whose status or reason is another one than before, except at the beginning."""
    for condition in conditions:
        old = find_condition(view.domain, condition.type)
        status = "True" if condition.status else "False"
        same = (old.get("status"), old.get("reason")) == (status, condition.reason)
        silent = condition.type in (CREATED, UPDATED, CONNECTED)
        if same or (silent and condition.status and old.get("status") != "False"):
            continue
        if condition.type == READY and any(
            other.type != READY and other.reason == condition.reason for other in conditions
        ):
            continue
        warning = condition.reason in _WARNINGS and (condition.reason != "NodesNotReady" or old.get("status") == "True")
        yield EventRequest(
            subject=_subject(view.domain, COMPUTE_DOMAINS),
            reason=condition.reason,
            note=condition.message,
            action=ACTION,
            warning=warning,
        )


def _list_claim_events(view: View) -> Iterable[EventRequest]:
    """What the owner of a claim must know, who may not see the domain."""
    for claim in view.claims:
        other = view.node_domains.get(claim.node)
        if claim.namespace != view.namespace:
            reason = "ComputeDomainOfOtherNamespace"
            note = (
                f"the claim names the ComputeDomain {view.namespace}/{view.domain['metadata']['name']}, and only "
                "claims of its namespace get a channel; create a ComputeDomain in this namespace"
            )
        elif other not in (None, view.uid):
            reason = "NodeHasOtherComputeDomain"
            note = (
                f"the node {claim.node} is in the ComputeDomain {view.describe(other or '')} until the pods of that "
                "have ended"
            )
        else:
            continue
        yield _tell_claim(claim.namespace, claim.name, claim.uid, reason, note)


def list_unknown_domain_events(uid: str, claims: Iterable[JsonObject]) -> Iterable[EventRequest]:
    """For the claims that name a domain with this UID, which does not exist."""
    for claim in claims:
        if uid in list_named_domains(claim) and not is_deleting(claim):
            note = (
                f"the claim names a ComputeDomain with the UID {uid}, which does not exist; create the pod with the "
                "ResourceClaimTemplate that a ComputeDomain names in spec.channel.resourceClaimTemplate"
            )
            yield _tell_claim(*object_key(claim), get_uid(claim), "ComputeDomainUnknown", note)


def _tell_claim(namespace: str, name: str, uid: str, reason: str, note: str) -> EventRequest:
    subject = Subject(api_version="resource.k8s.io/v1", kind="ResourceClaim", name=name, namespace=namespace, uid=uid)
    return EventRequest(subject=subject, reason=reason, note=note, action=ACTION)


def _subject(found: JsonObject, resource: Resource) -> Subject:
    namespace, name = object_key(found)
    return Subject(
        api_version=resource.api_version, kind=resource.kind, name=name, namespace=namespace, uid=get_uid(found)
    )
