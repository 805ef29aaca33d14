"""The embedded scheduler: gives pods nodes and their claims devices.

It schedules by claims alone (and `spec.nodeSelector`): no node taints, no affinity but that of DaemonSets, and CPUs and
memory only with the feature gate DRANodeAllocatableResources. A pod that asks for extended resources is scheduled only
if the node's status has them. What it cannot do for a pod, its `PodScheduled` condition and an Event say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache

from msgspec.structs import replace

from pydra.diagnosis.explain import Judgements
from pydra_dev.api import schema
from pydra_dev.api.errors import JsonObject, attempt
from pydra_dev.api.feature_gates import ALLOCATABLE, GROUPS, LISTS
from pydra_dev.api.kinds import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Kind,
)
from pydra_dev.api.pod_fields import build_condition, claim_names, is_finished, set_condition, template_claims
from pydra_dev.apiserver.claim_rules import MAX_RESERVED
from pydra_dev.apiserver.object_meta import build_uid
from pydra_dev.apiserver.verbs import Api
from pydra_dev.controllers.daemon_sets import get_daemon_node
from pydra_dev.controllers.emit_events import SCHEDULER, emit_event, emit_event_once
from pydra_dev.controllers.resource_claims import FINALIZER
from pydra_dev.scheduler.allocation_result import score_alternatives
from pydra_dev.scheduler.allocator import (
    AllocationError,
    InUse,
    NamedClaim,
    NodeAllocationError,
    allocate,
    read_in_use,
    review_devices,
)
from pydra_dev.scheduler.extended_resource_fit import explain_shortage as explain_extended_shortage
from pydra_dev.scheduler.node_resources import (
    FIELD,
    AccountError,
    build_status,
    count_claim,
    explain_shortage,
    list_containers,
)
from pydra_dev.scheduler.pools import NamedSlice, add_taints, matches_node
from pydra_dev.scheduler.search import DEFAULT_FEATURES, Features

ALL_LISTS = Features(lists=True)
"""For a cluster whose gates are not known: lists are compared where a device has them."""

BOTH_NAMES = 38
"""The first minor release in which requests name capacities with or without the driver's domain."""
COMPARED_LISTS = 37
"""The first minor release whose scheduler compares lists in constraints, with the feature gate (kubernetes#139332)."""
SCORED_ALTERNATIVES = 35
"""The first minor release that prefers nodes where requests get earlier alternatives."""
SELECTED_TAINTS = 38
"""The first minor release whose scheduler ignores DeviceTaintRules without a selector (kubernetes#141648)."""
BINDING_TIMEOUT = 600.0
BINDING = "BindingConditionsPending"
"""The reason of the Event on a pod that waits until its devices are bound."""


class SchedulingError(Exception):
    """The pod gets no node, whatever the others are like, for a mistake in its claims; the message says why."""

    reason = "SchedulerError"


class UnschedulableError(SchedulingError):
    """The pod cannot be scheduled now, or not on one node; the message says why."""

    reason = "Unschedulable"


class SliceReader:
    """The ResourceSlices of one API with the taints of DeviceTaintRules, each parsed once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        # Objects of the store are never changed, so an object's version names its content.
        self._parse_version = lru_cache(maxsize=4096)(self._parse_slice_version)

    def read(self) -> Sequence[NamedSlice]:
        """All of them, as the scheduler sees them now."""
        return self._read(_find_features(self._api))

    def read_for_eviction(self) -> Sequence[NamedSlice]:
        """All of them, as the controller sees them that evicts pods: for it, a rule needs a selector in any release."""
        return self._read(DEFAULT_FEATURES)

    def _read(self, features: Features) -> Sequence[NamedSlice]:
        slices = self._api.list(RESOURCE_SLICES).items
        known = [self._parse_version(one["metadata"]["name"], one["metadata"]["resourceVersion"]) for one in slices]
        return _taint(known, self._api.list(DEVICE_TAINT_RULES).items, features)

    def _parse_slice_version(self, name: str, _version: str) -> NamedSlice:
        return _parse_slice(self._api.get(RESOURCE_SLICES, name))


def read_claims_in_use(claims: Iterable[JsonObject]) -> InUse:
    """What these claims hold."""
    return read_in_use(map(parse_status, claims))


class Scheduler:
    """Schedules the pods of one API."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.slices = SliceReader(api)
        self._binding_left: list[float] = []

    def step(self) -> float | None:
        """Try to schedule every pod that waits, oldest first.

        Returns the seconds until one has waited too long for its devices to be bound, None when none waits for that.
        """
        self._binding_left = []
        # Not by creationTimestamp: it has whole seconds, and ties would be in the order of names.
        for namespace, name in self._api.store.keys(PODS.storage):
            pod = self._api.get(PODS, name, namespace=namespace)
            if not is_schedulable(pod):
                continue
            with attempt(f"schedule pod {pod['metadata']['name']}"):
                self._schedule(pod)
        return min(self._binding_left, default=None)

    def _schedule(self, pod: JsonObject) -> None:
        try:
            claims = self._find_claims(pod)
            node, allocations = self._choose_node(pod, claims)
            for claim in claims:
                self._reserve(claim, allocations.get(claim["metadata"]["uid"]), pod)
            if self._is_unbound(pod):
                self._report_binding(pod, node)
                return
            self._write_resources(pod)
        except SchedulingError as error:
            self._report(pod, str(error), error.reason)
            return
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        self._api.bind(name, node, namespace=namespace)
        self._set_scheduled(pod, build_condition("PodScheduled", status=True, now=self._api.now))
        emit_event(self._api, pod, "Normal", "Scheduled", f"Successfully assigned {namespace}/{name} to {node}")

    def _find_claims(self, pod: JsonObject) -> Sequence[JsonObject]:
        claims = []
        for pod_claim, name in claim_names(pod).items():
            if name is None:
                raise UnschedulableError(self._explain_absence(pod, pod_claim))
            claim = self._api.find(RESOURCE_CLAIMS, name, namespace=pod["metadata"]["namespace"])
            if claim is None:
                is_template = self._has(RESOURCE_CLAIM_TEMPLATES, name, pod)
                hint = "; there is a ResourceClaimTemplate of that name, which resourceClaimTemplateName takes"
                raise UnschedulableError(f'resourceclaim "{name}" not found{hint if is_template else ""}')
            if "deletionTimestamp" in claim["metadata"]:
                raise UnschedulableError(f'resourceclaim "{name}" is being deleted')
            claims.append(claim)
        return claims

    def _explain_absence(self, pod: JsonObject, pod_claim: str) -> str:
        template = template_claims(pod).get(pod_claim, "")
        waiting = f"waiting for the ResourceClaim of pod claim {pod_claim!r} to be created"
        if not template or self._has(RESOURCE_CLAIM_TEMPLATES, template, pod):
            return waiting
        is_claim = self._has(RESOURCE_CLAIMS, template, pod)
        hint = "; there is a ResourceClaim of that name, which resourceClaimName takes" if is_claim else ""
        return f'{waiting}: resourceclaimtemplate "{template}" not found{hint}'

    def _has(self, kind: Kind, name: str, pod: JsonObject) -> bool:
        """Whether the pod's namespace has this object."""
        return self._api.find(kind, name, namespace=pod["metadata"]["namespace"]) is not None

    def _choose_node(
        self, pod: JsonObject, claims: Sequence[JsonObject]
    ) -> tuple[str, Mapping[str, schema.Allocation]]:
        """The first node that fits with the earliest alternatives, and the allocations to make there, by claim uid."""
        nodes = self._api.list(NODES).items
        if not nodes:
            raise UnschedulableError("no nodes available to schedule pods")
        reasons: dict[str, int] = {}
        plans = []
        for node in nodes:
            try:
                plans.append((node["metadata"]["name"], self._plan(pod, claims, node)))
            except UnschedulableError as error:
                reasons[str(error)] = reasons.get(str(error), 0) + 1
        if plans:
            return max(plans, key=lambda plan: self._score(claims, plan[1]))
        listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        raise UnschedulableError(f"0/{len(nodes)} nodes are available: {listed}")

    def _score(self, claims: Sequence[JsonObject], allocations: Mapping[str, schema.Allocation]) -> int:
        if self._api.minor < SCORED_ALTERNATIVES:
            return 0
        return sum(
            score_alternatives(_name(claim).spec, allocations[claim["metadata"]["uid"]])
            for claim in claims
            if claim["metadata"]["uid"] in allocations
        )

    def _plan(self, pod: JsonObject, claims: Sequence[JsonObject], node: JsonObject) -> Mapping[str, schema.Allocation]:
        labels, wanted = node["metadata"].get("labels") or {}, pod["spec"].get("nodeSelector") or {}
        own = get_daemon_node(pod)
        if (node["spec"].get("unschedulable") and own is None) or "deletionTimestamp" in node["metadata"]:
            raise UnschedulableError("node(s) were unschedulable")
        if any(labels.get(key) != value for key, value in wanted.items()) or (
            own not in (None, node["metadata"]["name"])
        ):
            raise UnschedulableError("node(s) didn't match Pod's node affinity/selector")
        classes, others = _parse_classes(self._api.list(DEVICE_CLASSES).items), self._list_pods(node)
        if shortage := explain_extended_shortage(pod, node=node, others=others, classes=classes):
            raise UnschedulableError(shortage)
        new = []
        for claim in claims:
            status = parse_status(claim)
            if status.allocation is None:
                new.append(claim)
            elif status.allocation.node_selector is not None and not matches_node(
                status.allocation.node_selector, node
            ):
                raise UnschedulableError("node(s) cannot reach the devices that the claim was given")
        allocations = self._allocate(new, node)
        entries = self._count_resources(pod, claims, allocations)
        if entries is not None and (problem := explain_shortage(pod, entries, node=node, others=others)):
            raise UnschedulableError(problem)
        return allocations

    def _count_resources(
        self, pod: JsonObject, claims: Sequence[JsonObject], allocations: Mapping[str, schema.Allocation]
    ) -> Sequence[JsonObject] | None:
        """What the pod's status says of its claims' use of the node; None if nothing is counted."""
        if not self._api.gates[ALLOCATABLE]:
            return None
        devices = {
            (one.spec.driver, one.spec.pool.name, device.name): device
            for one in self.slices.read()
            for device in one.spec.devices
        }
        uses = []
        try:
            for (pod_claim, name), claim in zip(claim_names(pod).items(), claims, strict=True):
                status = parse_status(claim)
                allocation = status.allocation or allocations[claim["metadata"]["uid"]]
                use = count_claim(str(name), allocation, list_containers(pod, pod_claim), devices)
                if use.mapping and any(one.uid != pod["metadata"]["uid"] for one in status.reserved_for):
                    raise UnschedulableError(
                        f"node allocatable resource claim {name} has a mapped device and cannot be shared across pods"
                    )
                uses.append(use)
        except AccountError as error:
            raise UnschedulableError(str(error)) from error
        return build_status(uses, self._api.minor)

    def _write_resources(self, pod: JsonObject) -> None:
        entries = self._count_resources(pod, self._find_claims(pod), {})
        if entries:
            metadata = pod["metadata"]
            status = self._api.get(PODS, metadata["name"], namespace=metadata["namespace"])["status"]
            self._api.write_status(PODS, pod, {**status, FIELD: entries})

    def _list_pods(self, node: JsonObject) -> Sequence[JsonObject]:
        """The pods on a node that have not ended."""
        name = node["metadata"]["name"]
        pods = self._api.list(PODS).items
        return [one for one in pods if one["spec"].get("nodeName") == name and not is_finished(one)]

    def _allocate(self, claims: Sequence[JsonObject], node: JsonObject) -> Mapping[str, schema.Allocation]:
        if not claims:
            return {}
        try:
            allocations = allocate(
                [_name(claim) for claim in claims],
                node=node,
                slices=self.slices.read(),
                classes=_parse_classes(self._api.list(DEVICE_CLASSES).items),
                in_use=read_claims_in_use(self._api.list(RESOURCE_CLAIMS).items),
                build_uid=lambda: build_uid(self._api.random),
                features=_find_features(self._api),
            )
        except NodeAllocationError as error:
            raise UnschedulableError(f"cannot allocate all claims: {error}") from error
        except AllocationError as error:
            raise SchedulingError(f'running "DynamicResources" filter plugin: {error}') from error
        uids = [claim["metadata"]["uid"] for claim in claims]
        return dict(zip(uids, allocations, strict=True))

    def _reserve(self, claim: JsonObject, allocation: schema.Allocation | None, pod: JsonObject) -> None:
        name = claim["metadata"]["name"]
        status = parse_status(claim)
        consumer = schema.Consumer(resource="pods", name=pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        if consumer in status.reserved_for:
            return
        if len(status.reserved_for) >= MAX_RESERVED:
            raise UnschedulableError(f'resourceclaim "{name}" is in use by {MAX_RESERVED} pods, the most it can be')
        # The finalizer first: from the moment that devices are given out, the claim must not vanish.
        finalizers = claim["metadata"].get("finalizers") or []
        if FINALIZER not in finalizers:
            claim = self._api.write_finalizers(RESOURCE_CLAIMS, claim, [*finalizers, FINALIZER])
        if allocation is not None:
            status = replace(status, allocation=replace(allocation, allocation_timestamp=schema.Time(self._api.now)))
        status = replace(status, reserved_for=(*status.reserved_for, consumer))
        self._api.write_status(RESOURCE_CLAIMS, claim, schema.build_fields(status))

    def _is_unbound(self, pod: JsonObject) -> bool:
        """Whether a binding condition of the pod's devices is not true yet; undoes what has failed."""
        for claim in self._find_claims(pod):
            status = parse_status(claim)
            for result in status.allocation.devices.results if status.allocation is not None else ():
                said = _read_conditions(status, result)
                failed = [name for name in result.binding_failure_conditions if said.get(name) == "True"]
                if failed:
                    self._api.write_status(RESOURCE_CLAIMS, claim, {})
                    raise UnschedulableError(f"device {result.device} could not be bound: {', '.join(failed)}")
                missing = [name for name in result.binding_conditions if said.get(name) != "True"]
                if missing:
                    left = BINDING_TIMEOUT - _count_seconds(status, self._api.now)
                    if left <= 0:
                        self._api.write_status(RESOURCE_CLAIMS, claim, {})
                        raise UnschedulableError(
                            f"device {result.device} was not bound within {BINDING_TIMEOUT:.0f} s: {', '.join(missing)}"
                        )
                    self._binding_left.append(left)
                    return True
        return False

    def _report_binding(self, pod: JsonObject, node: str) -> None:
        """Say that the pod waits; it has been given a node, so that it is no longer said to be unschedulable."""
        conditions = pod["status"].get("conditions") or []
        kept = [one for one in conditions if one["type"] != "PodScheduled"]
        if len(kept) < len(conditions):
            self._api.write_status(PODS, pod, {**pod["status"], "conditions": kept})
        message = f"waiting for binding conditions for device on node {node}"
        emit_event_once(self._api, pod, "Normal", BINDING, message, component=SCHEDULER)

    def _report(self, pod: JsonObject, message: str, reason: str) -> None:
        condition = build_condition("PodScheduled", status=False, now=self._api.now, reason=reason, message=message)
        if self._set_scheduled(pod, condition):
            emit_event(self._api, pod, "Warning", "FailedScheduling", message)

    def _set_scheduled(self, pod: JsonObject, condition: JsonObject) -> bool:
        metadata = pod["metadata"]
        before = self._api.get(PODS, metadata["name"], namespace=metadata["namespace"])["status"]
        status = set_condition(before, condition)
        if status is not before:
            self._api.write_status(PODS, pod, status)
        return status is not before


def review_claim(api: Api, claim: JsonObject, node: str) -> Judgements:
    """Why each device that the node reaches is the claim's or not, if the claim were allocated now.

    Raises AllocationError for a mistake in the claim or its class.
    """
    objects = {kind: api.list(kind).items for kind in (RESOURCE_CLAIMS, RESOURCE_SLICES, DEVICE_CLASSES)}
    return review_objects(
        claim,
        node=api.get(NODES, node),
        claims=objects[RESOURCE_CLAIMS],
        slices=objects[RESOURCE_SLICES],
        classes=objects[DEVICE_CLASSES],
        rules=api.list(DEVICE_TAINT_RULES).items,
        features=_find_features(api),
    )


def review_objects(
    claim: JsonObject,
    *,
    node: JsonObject,
    claims: Iterable[JsonObject],
    slices: Iterable[JsonObject],
    classes: Iterable[JsonObject],
    rules: Iterable[JsonObject] = (),
    features: Features = ALL_LISTS,
) -> Judgements:
    """Do the same for objects of any cluster; raises StatusError, too, for one that cannot be read."""
    others = [one for one in claims if one["metadata"]["uid"] != claim["metadata"]["uid"]]
    return review_devices(
        [_name(claim)],
        node=node,
        slices=_taint(map(_parse_slice, slices), rules, features),
        classes=_parse_classes(classes),
        in_use=read_claims_in_use(others),
        features=features,
    )


def _find_features(api: Api) -> Features:
    return Features(
        lists=api.gates[LISTS],
        compares_lists=api.minor >= COMPARED_LISTS,
        groups=api.gates[GROUPS],
        both_names=api.minor >= BOTH_NAMES,
        taints_everything=api.minor < SELECTED_TAINTS,
    )


def _name(claim: JsonObject) -> NamedClaim:
    name = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
    return NamedClaim(name, schema.parse_fields("ResourceClaim", schema.ClaimSpec, claim["spec"]))


def _parse_classes(classes: Iterable[JsonObject]) -> Mapping[str, schema.ClassSpec]:
    return {
        one["metadata"]["name"]: schema.parse_fields("DeviceClass", schema.ClassSpec, one.get("spec") or {})
        for one in classes
    }


def _taint(slices: Iterable[NamedSlice], rules: Iterable[JsonObject], features: Features) -> Sequence[NamedSlice]:
    parsed = [schema.parse_fields("DeviceTaintRule", schema.TaintRuleSpec, one.get("spec") or {}) for one in rules]
    return add_taints(slices, parsed, without_selector=features.taints_everything)


def _parse_slice(obj: JsonObject) -> NamedSlice:
    return NamedSlice(obj["metadata"]["name"], schema.parse_fields("ResourceSlice", schema.SliceSpec, obj["spec"]))


def parse_status(claim: JsonObject) -> schema.ClaimStatus:
    """The claim's status; that of one without is empty."""
    return schema.parse_fields("ResourceClaim", schema.ClaimStatus, claim.get("status") or {})


def _count_seconds(status: schema.ClaimStatus, now: str) -> float:
    """How long the claim has been allocated."""
    since = status.allocation.allocation_timestamp if status.allocation is not None else None
    return (datetime.fromisoformat(now) - datetime.fromisoformat(since or now)).total_seconds()


def _read_conditions(status: schema.ClaimStatus, result: schema.Result) -> Mapping[str, str]:
    identity = (result.driver, result.pool, result.device, result.share_id)
    return {
        condition.type: condition.status
        for device in status.devices
        if (device.driver, device.pool, device.device, device.share_id) == identity
        for condition in device.conditions or ()
    }


def is_schedulable(pod: JsonObject) -> bool:
    """Whether a pod waits for this scheduler."""
    return (
        not pod["spec"].get("nodeName")
        and pod["spec"].get("schedulerName", SCHEDULER) == SCHEDULER
        and not pod["spec"].get("schedulingGates")
        and "deletionTimestamp" not in pod["metadata"]
        and not is_finished(pod)
    )
