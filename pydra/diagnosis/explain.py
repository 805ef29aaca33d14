"""Explains one claim, from its allocation through the record on the node to its CDI file, or those of a pod.

For `pydra explain claim` and `pydra explain pod`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from pydra.checkpoint.record import Stage
from pydra.claim import ClaimRef
from pydra.claims.allocation import parse_allocation
from pydra.diagnosis import Finding, Level
from pydra.diagnosis.cluster_reader import EventLine, Reader
from pydra.diagnosis.held_claims import ClaimRecord, judge_record, list_prepared, read_held
from pydra.diagnosis.slice_report import PublishedDevice, find_results, judge_taints, parse_slices
from pydra.errors import ClaimError, KubeError, NotFound, PydraError
from pydra.kube.api_resources import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
)
from pydra.kube.client import KubeClient
from pydra.message_text import suggest
from pydra.settings import Settings

_CLASS = "class"
_PODS = 5
"""Pods whose Events are read; more of one claim have the same ones."""
_NODES = 8
"""Nodes whose devices are compared with a claim; more are much the same."""
_SELECTOR_ADVICE = {
    "no such key": "correct the name, or give a value for devices without it: .?key.orValue(value)",
    "no such overload": "a version is compared as in .isGreaterThan(semver('1.2.3')), and with nothing else",
}
"""What to do about a selector that fails, by a part of its error."""
_VALUES = 4
"""Different values in one reason."""


class ClaimDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that the claim has; `slice` is empty if no slice has the device any more."""

    request: str
    driver: str
    pool: str
    device: str
    slice: str
    taints: tuple[str, ...]
    cdi: tuple[str, ...]


class DeviceReview(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request of a claim that is not allocated cannot have these devices; empty: it can."""

    request: str
    node: str
    devices: tuple[str, ...]
    reason: str


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What a scheduler says of one device, by driver, pool and name, for one request.

    The reason why the request does not have it is empty if it is `picked`, or available. `values` is what the device
    has of that which decides.
    """

    request: str
    device: tuple[str, str, str]
    reason: str
    picked: bool = False
    values: str = ""


class Judgements(msgspec.Struct, frozen=True, kw_only=True):
    """Those of all devices that a node reaches; `problem` says why the claim cannot be allocated there."""

    devices: tuple[Judgement, ...] = ()
    problem: str = ""


Review: TypeAlias = Callable[..., Judgements]
"""A scheduler's judgement of every device that a node reaches, for a claim; pydra-dev has one, `review_objects`.

Raises ClaimError for a mistake in the claim or its class.
"""


class ClaimReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a claim is: findings in the order of its way, its devices, and Events of the claim and of its pods."""

    claim: str
    uid: str
    findings: tuple[Finding, ...]
    devices: tuple[ClaimDevice, ...] = ()
    reviews: tuple[DeviceReview, ...] = ()
    events: tuple[EventLine, ...] = ()
    last_error: str = ""


class _Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim as the API server has it: without `body` there is none, or `refusal` says why it cannot be read."""

    namespace: str
    name: str
    body: JsonObject | None = None
    refusal: str = ""

    @property
    def uid(self) -> str:
        return str(self.body["metadata"]["uid"]) if self.body is not None else ""

    @property
    def results(self) -> Sequence[JsonObject]:
        return find_results(self.body or {})

    def has(self, record: ClaimRecord) -> bool:
        if self.uid:
            return record.claim.uid == self.uid
        return (record.claim.namespace, record.claim.name) == (self.namespace, self.name)


async def explain_claim(
    settings: Settings, client: KubeClient, *, namespace: str, name: str, review: Review | None = None
) -> ClaimReport:
    """Find out how a claim is, as far as this user may read it and this machine is its node.

    `review` says of a claim that is not allocated why not. Without the API server, what the node has is explained.
    """
    reader = Reader(client)
    report = await _explain(settings, reader, await _read_claim(client, namespace, name), review)
    return replace(report, findings=(*report.findings, *reader.findings))


async def _explain(settings: Settings, reader: Reader, claim: _Claim, review: Review | None) -> ClaimReport:
    """Return the report without what the reader could not list."""
    held, unknown = await read_held(settings)
    mine = [one for one in held if claim.has(one)]
    pods = await _read_pods(reader, claim)
    findings = await _judge_claim(reader, claim, pods, is_held=bool(mine))
    published = await _find_published(reader, claim.results)
    findings += _judge_devices(claim, published)
    findings += _judge_containers(claim, pods)
    reviews: Sequence[DeviceReview] = ()
    has_classes = all(one.subject != _CLASS for one in findings)
    if claim.body is not None and not claim.results and review is not None and has_classes:
        try:
            reviews = await _review_devices(reader, claim.body, pods, review)
        except ClaimError as error:
            advice = next((text for part, text in _SELECTOR_ADVICE.items() if part in str(error)), "")
            findings.append(Finding("request", Level.PROBLEM, str(error), advice))
    for record in mine:
        findings += await judge_record(settings, record, is_wanted=bool(claim.results or claim.refusal))
    findings += unknown.values()
    if not mine and claim.body is not None and claim.results:
        findings.append(await _judge_absence(reader, settings, claim.body, is_known=not unknown))
    events = await _read_events(reader, claim, pods)
    last = _find_last_error(events)
    if last is not None and claim.results and not any(one.stage == Stage.COMPLETED.value for one in mine):
        findings.append(_judge_error(last))
    prepared = {named: ids for one in mine for named, ids in list_prepared(one)}
    return ClaimReport(
        claim=f"{claim.namespace}/{claim.name}",
        uid=claim.uid,
        findings=tuple(findings),
        devices=tuple(_build_device(result, published, prepared) for result in claim.results),
        reviews=tuple(reviews),
        events=tuple(events),
        last_error=f"{last.reason}: {last.note}" if last is not None else "",
    )


async def _read_claim(client: KubeClient, namespace: str, name: str) -> _Claim:
    try:
        body = await client.get(RESOURCE_CLAIMS, name, namespace=namespace)
    except KubeError as error:
        is_absent = isinstance(error, NotFound) and error.is_of_object
        return _Claim(namespace=namespace, name=name, refusal="" if is_absent else str(error))
    return _Claim(namespace=namespace, name=name, body=body)


async def _read_pods(reader: Reader, claim: _Claim) -> Sequence[JsonObject]:
    """Return the pods that use the claim."""
    if claim.body is None:
        return ()
    return [pod for pod in await reader.list(PODS, namespace=claim.namespace) if claim.name in find_claim_names(pod)]


def find_claim_names(pod: JsonObject) -> set[str]:
    """Return the names of the claims that the pod uses, those for extended resources or of templates too."""
    extended = (pod.get("status") or {}).get("extendedResourceClaimStatus") or {}
    return {name for one in (*_list_entries(pod), extended) if (name := one.get("resourceClaimName"))}


def _list_entries(pod: JsonObject) -> Sequence[JsonObject]:
    """Return the pod's claims: as its spec names them, and those made from templates as its status does."""
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    return (*(pod["spec"].get("resourceClaims") or ()), *statuses)


async def _read_events(reader: Reader, claim: _Claim, pods: Sequence[JsonObject]) -> Sequence[EventLine]:
    """Return the Events of the claim and of its pods, the oldest first."""
    if claim.refusal:
        return ()
    subjects = [("ResourceClaim", claim.name, claim.uid)]
    subjects += [("Pod", pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in pods[:_PODS]]
    events = [
        event
        for kind, name, uid in subjects
        for event in await reader.list_events(kind, name, namespace=claim.namespace, uid=uid)
    ]
    return sorted(events, key=lambda event: event.time)


def _find_last_error(events: Sequence[EventLine]) -> EventLine | None:
    errors = [event for event in events if event.type == "Warning" and _is_about_claim(event)]
    return errors[-1] if errors else None


def _judge_error(error: EventLine) -> Finding:
    advice = f"docs/events.md explains the reason; seen {error.count}x, last at {error.time}"
    return Finding("last error", Level.PROBLEM, f"{error.reason}: {error.note}", advice)


def _is_about_claim(event: EventLine) -> bool:
    """Return whether an Event of a claim or of its pod is about allocating or preparing: pods have other troubles."""
    of_claim = event.object.startswith(f"{RESOURCE_CLAIMS.kind} ")
    return of_claim or event.reason == "FailedScheduling" or "DynamicResources" in event.reason


# The claim in the API


async def _judge_claim(reader: Reader, claim: _Claim, pods: Sequence[JsonObject], *, is_held: bool) -> list[Finding]:
    if claim.refusal:
        return [Finding("claim", Level.UNKNOWN, claim.refusal)]
    if claim.body is None:
        return [await _miss(reader, claim, is_held=is_held)]
    if not claim.results and (claim.body.get("status") or {}).get("allocation"):
        advice = "name a DeviceClass in spec.devices.requests"
        return [Finding("allocated", Level.NOTE, "no device: it has no requests", advice)]
    if not claim.results:
        return [
            *_judge_pending(pods),
            *await _judge_classes(reader, claim.body),
            *await _judge_drivers(reader, claim.body, Level.PROBLEM),
        ]
    return [*_judge_allocation(claim.body), *await _judge_drivers(reader, claim.body, Level.NOTE)]


async def _miss(reader: Reader, claim: _Claim, *, is_held: bool) -> Finding:
    if is_held:
        advice = "garbage collection unprepares it two minutes after the kubelet has forgotten it, too"
        return Finding("claim", Level.PROBLEM, "the API server has no such claim, and this node holds it", advice)
    known = [one["metadata"]["name"] for one in await reader.list(RESOURCE_CLAIMS, namespace=claim.namespace)]
    found = f"there is no claim {claim.name} in namespace {claim.namespace}{suggest(claim.name, known)}"
    advice = "kubectl get resourceclaims; a claim made from a template has the pod's name in its own"
    return Finding("claim", Level.PROBLEM, found, advice)


def _judge_allocation(body: JsonObject) -> list[Finding]:
    node = _find_node(body)
    names = ", ".join(f"{one['device']} of {one['driver']}" for one in find_results(body))
    findings = [Finding("allocated", Level.OK, f"{names}{f', on node {node}' if node else ''}")]
    users = [one["name"] for one in body["status"].get("reservedFor") or ()]
    found = f"for {', '.join(users)}" if users else "for no pod: the devices are given back when the claim is deleted"
    findings.append(Finding("reserved", Level.OK if users else Level.NOTE, found))
    if body["metadata"].get("deletionTimestamp"):
        found = "since " + body["metadata"]["deletionTimestamp"]
        advice = "it ends when its pods have, and the agent of its node has unprepared it"
        findings.append(Finding("being deleted", Level.NOTE, found, advice))
    return [*findings, *_judge_statuses(body)]


def _judge_statuses(body: JsonObject) -> Iterator[Finding]:
    """Say what drivers have written of the devices, such as where an interface is now."""
    for one in body["status"].get("devices") or ():
        conditions = one.get("conditions") or ()
        network = one.get("networkData") or {}
        found = f"{one['device']} of {one['driver']}"
        if network.get("interfaceName"):
            addresses = ", ".join(network.get("ips") or ())
            found += f": interface {network['interfaceName']} of the pod{f' with {addresses}' if addresses else ''}"
        said = [f"{each['type']} is {each['status']}: {each.get('message') or each['reason']}" for each in conditions]
        wrong = [text for text, each in zip(said, conditions, strict=True) if each["status"] != "True"]
        level = Level.NOTE if wrong else Level.OK
        yield Finding("device status", level, "; ".join((found, *wrong)))


def _judge_pending(pods: Sequence[JsonObject]) -> Iterator[Finding]:
    if not pods:
        yield Finding("allocated", Level.NOTE, "not yet, since no pod uses the claim", "create a pod that names it")
    for pod in pods:
        status, name = pod.get("status") or {}, pod["metadata"]["name"]
        scheduled = [one for one in status.get("conditions") or () if one["type"] == "PodScheduled"]
        why = next((one.get("message") or "" for one in scheduled if one["status"] != "True"), "")
        advice = "pydra slices --all-nodes lists what each node has, with taints and holders"
        found = f"not yet; the scheduler says of pod {name}: {why or 'nothing yet'}"
        if pod["spec"].get("nodeName"):
            found = f"no, but pod {name} is on node {pod['spec']['nodeName']}: the scheduler did not place it"
            advice = "do not set spec.nodeName on a pod with claims"
        yield Finding("allocated", Level.PROBLEM, found, advice)


async def _judge_classes(reader: Reader, body: JsonObject) -> list[Finding]:
    requests = ((body.get("spec") or {}).get("devices") or {}).get("requests") or ()
    wanted = [one for request in requests for one in (request.get("exactly"), *(request.get("firstAvailable") or ()))]
    names = sorted({one["deviceClassName"] for one in wanted if one and one.get("deviceClassName")})
    known = [one["metadata"]["name"] for one in await reader.list(DEVICE_CLASSES)]
    if not reader.may_list(DEVICE_CLASSES):
        return []
    return [
        Finding(
            _CLASS,
            Level.PROBLEM,
            f"there is no DeviceClass {name}{suggest(name, known)}",
            "kubectl get deviceclasses; the chart's value backends.NAME.deviceClasses makes them",
        )
        for name in names
        if name not in known
    ]


async def _judge_drivers(reader: Reader, body: JsonObject, level: Level) -> list[Finding]:
    """Find configs for a driver of which no device is published, or the claim has none: the others ignore them."""
    slices = await reader.list(RESOURCE_SLICES)
    known = {str(one["spec"]["driver"]) for one in slices}
    has = {one["driver"] for one in find_results(body)} or known
    configs = ((body.get("spec") or {}).get("devices") or {}).get("config") or ()
    named = ((place, str((one.get("opaque") or {}).get("driver") or "")) for place, one in enumerate(configs))
    return [
        Finding(
            "config",
            level,
            f"config[{place}] is for driver {driver}, "
            + (
                "of which the claim has no device"
                if driver in known
                else f"which publishes no device{suggest(driver, known)}"
            ),
            "a driver ignores what is for another one; kubectl get resourceslices lists the drivers",
        )
        for place, driver in named
        if known and driver and driver not in known & has
    ]


async def _review_devices(
    reader: Reader, body: JsonObject, pods: Sequence[JsonObject], review: Review
) -> list[DeviceReview]:
    slices = await reader.list(RESOURCE_SLICES)
    claims, classes = await reader.list(RESOURCE_CLAIMS), await reader.list(DEVICE_CLASSES)
    rules = await reader.list_taint_rules()
    own = {name for one in slices if (name := one["spec"].get("nodeName"))}
    listed = {one["metadata"]["name"]: one for one in await reader.list(NODES)}
    everywhere = any(not one["spec"].get("nodeName") for one in slices)  # some devices are for the nodes of a selector
    nodes = {name: listed.get(name) or {"metadata": {"name": name}} for name in {*own, *(listed if everywhere else ())}}
    reviews: list[DeviceReview] = []
    for name, node in sorted(nodes.items())[:_NODES]:
        if refused := _find_refusal(node, pods):
            reviews.append(DeviceReview(request="", node=name, devices=(), reason=refused))
            continue
        found = review(body, node=node, claims=claims, slices=slices, classes=classes, rules=rules)
        if found.problem:
            reviews.append(DeviceReview(request="", node=name, devices=(), reason=found.problem))
        reviews += _group_judgements(name, found.devices)
    return reviews


def _group_judgements(node: str, judgements: Iterable[Judgement]) -> Iterator[DeviceReview]:
    """Yield devices with the same reason together, with what they have of that which decides."""
    groups: dict[tuple[str, str], list[Judgement]] = {}
    for one in judgements:
        groups.setdefault((one.request, one.reason), []).append(one)
    for (request, reason), found in groups.items():
        why = add_values(reason, found)
        yield DeviceReview(request=request, node=node, devices=tuple(one.device[-1] for one in found), reason=why)


def add_values(reason: str, judgements: Iterable[Judgement]) -> str:
    """Return the reason that these have, with what their devices have of that which decides."""
    values = list(dict.fromkeys(one.values for one in judgements if one.values))
    return f"{reason} ({'; '.join(values[:_VALUES])}{'; ...' if len(values) > _VALUES else ''})" if values else reason


def _find_refusal(node: JsonObject, pods: Sequence[JsonObject]) -> str:
    """Return why none of the claim's pods, if there are any, can be on the node; empty if one can."""
    labels = node["metadata"].get("labels") or {}
    refusals = [
        f"pod {pod['metadata']['name']} wants a node with {', '.join(f'{key}={value}' for key, value in missing)}"
        for pod in pods
        if (missing := sorted((pod["spec"].get("nodeSelector") or {}).items() - labels.items()))
    ]
    return refusals[0] if pods and len(refusals) == len(pods) else ""


def _find_node(body: JsonObject) -> str:
    selector = body["status"]["allocation"].get("nodeSelector") or {}
    fields = [one for term in selector.get("nodeSelectorTerms") or () for one in term.get("matchFields") or ()]
    return next((one["values"][0] for one in fields if one["key"] == "metadata.name"), "")


# Its devices


async def _find_published(
    reader: Reader, results: Sequence[JsonObject]
) -> Mapping[tuple[str, str, str], PublishedDevice]:
    drivers = {result["driver"] for result in results}
    slices = [one for one in await reader.list(RESOURCE_SLICES) if one["spec"]["driver"] in drivers] if drivers else ()
    rules = await reader.list_taint_rules() if slices else ()
    return {device.key: device for device in parse_slices(slices, {}, rules)[1]}


def _judge_devices(claim: _Claim, published: Mapping[tuple[str, str, str], PublishedDevice]) -> Iterator[Finding]:
    keys = {(one["driver"], one["pool"], one["device"]): None for one in claim.results}
    for driver, pool, device in keys:
        if published and (driver, pool, device) not in published:
            found = f"{device} is not in pool {pool} of {driver} any more"
            advice = f"pydra slices --node-name {pool} says what is there; the claim keeps the device until it ends"
            yield Finding("device", Level.PROBLEM, found, advice)
    ref = ClaimRef(uid=claim.uid, namespace=claim.namespace, name=claim.name)
    for driver in sorted({driver for driver, _, _ in keys}):
        try:
            parse_allocation(claim.body or {}, ref, driver)
        except PydraError as error:  # what the agent says, too, when the kubelet asks it
            yield Finding("device", Level.PROBLEM, str(error))
    yield from judge_taints(published[key] for key in keys if key in published)


def _build_device(
    result: JsonObject,
    published: Mapping[tuple[str, str, str], PublishedDevice],
    prepared: Mapping[tuple[str, str, str], tuple[str, ...]],
) -> ClaimDevice:
    key = result["driver"], result["pool"], result["device"]
    found = published.get(key)
    return ClaimDevice(
        request=result["request"],
        driver=key[0],
        pool=key[1],
        device=key[2],
        slice=found.slice if found is not None else "",
        taints=found.taints if found is not None else (),
        cdi=prepared.get(key, ()),
    )


def _judge_containers(claim: _Claim, pods: Sequence[JsonObject]) -> Iterator[Finding]:
    """Find pods whose containers do not name the claim, which has devices, or name a request that it lacks."""
    spec = ((claim.body or {}).get("spec") or {}).get("devices") or {}
    known = [one["name"] for one in spec.get("requests") or ()]
    for pod in pods[:_PODS] if claim.results else ():
        name = pod["metadata"]["name"]
        entries = [one["name"] for one in _list_entries(pod) if one.get("resourceClaimName") == claim.name]
        named = [(container, one) for container, one in _list_named(pod) if one["name"] in entries]
        if entries and not named:
            found = f"no container of pod {name} names {entries[0]} in resources.claims, so none gets the devices"
            advice = "add it to those that use them, unless the devices are the pod's, such as a network interface"
            yield Finding("containers", Level.NOTE, found, advice)
        for container, one in named:
            if (request := one.get("request")) and request not in known:
                found = f"container {container} of pod {name} gets no device of request {request}, which is none of "
                found += f"the claim's{suggest(request, known)}"
                advice = f"the claim has {', '.join(known)}; without a request a container gets the devices of all"
                yield Finding("containers", Level.PROBLEM, found, advice)


def _list_named(pod: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """Yield what each container names in resources.claims."""
    for container in (*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]):
        for one in (container.get("resources") or {}).get("claims") or ():
            yield container["name"], one


# On its node


async def _is_gone(reader: Reader, node: str) -> bool:
    """Return whether there is no such node; False also if this user may not know."""
    try:
        await reader.client.get(NODES, node)
    except KubeError as error:
        return isinstance(error, NotFound) and error.is_of_object
    return False


async def _judge_absence(reader: Reader, settings: Settings, body: JsonObject, *, is_known: bool) -> Finding:
    node = _find_node(body)
    if node and node != settings.node_name:
        if await _is_gone(reader, node):
            found = f"there is no node {node} any more, which has its devices"
            advice = "delete the pods that use the claim, and the claim; one of a template is made again with its pod"
            return Finding("node", Level.PROBLEM, found, advice)
        found = f"is on node {node}, and this is {settings.node_name}"
        advice = "run the command in the agent's pod there: kubectl -n pydra exec POD -- pydra explain claim ..."
        return Finding("record", Level.UNKNOWN, found, advice)
    level = Level.NOTE if is_known else Level.UNKNOWN
    advice = "the kubelet has not prepared it yet, or that failed: see the Events, and pydra doctor"
    return Finding("prepared", level, "no: this node has no record of the claim", advice)


# Those of a pod


_ENDED = ("Succeeded", "Failed")
"""Phases in which kube-controller-manager has deleted, or will not make, the claims of a pod from templates."""


class PodReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with the pod's claims as a whole, and how each of them is."""

    pod: str
    findings: tuple[Finding, ...]
    claims: tuple[ClaimReport, ...] = ()


async def explain_pod(
    settings: Settings, client: KubeClient, *, namespace: str, name: str, review: Review | None = None
) -> PodReport:
    """Find out how the claims of a pod are, and why one is not there; `review` as of `explain_claim`."""
    reader = Reader(client)
    try:
        pod = await client.get(PODS, name, namespace=namespace)
    except KubeError as error:
        findings = [await _miss_pod(reader, namespace, name, error), *reader.findings]
        return PodReport(pod=f"{namespace}/{name}", findings=tuple(findings))
    names, phase = find_claim_names(pod), (pod.get("status") or {}).get("phase") or ""
    if phase in _ENDED:
        names &= {one["metadata"]["name"] for one in await reader.list(RESOURCE_CLAIMS, namespace=namespace)}
        found = f"has ended ({phase}), and needs no claims any more: those made from templates are deleted"
        findings = [Finding("pod", Level.NOTE, found)]
    else:
        findings = await _judge_templates(reader, pod, namespace)
    if not names and not findings:
        findings = await _judge_extended(reader, pod)
    if not names and not findings:
        advice = "name claims in spec.resourceClaims and in resources.claims of containers"
        findings.append(Finding("claims", Level.NOTE, "none, so it gets no device", advice))
    claims = [
        await _explain(settings, reader, await _read_claim(client, namespace, one), review) for one in sorted(names)
    ]
    return PodReport(pod=f"{namespace}/{name}", findings=(*findings, *reader.findings), claims=tuple(claims))


async def _miss_pod(reader: Reader, namespace: str, name: str, error: KubeError) -> Finding:
    if not isinstance(error, NotFound) or not error.is_of_object:
        return Finding("pod", Level.UNKNOWN, str(error))
    known = [one["metadata"]["name"] for one in await reader.list(PODS, namespace=namespace)]
    found = f"there is no pod {name} in namespace {namespace}{suggest(name, known)}"
    return Finding("pod", Level.PROBLEM, found, f"kubectl -n {namespace} get pods")


async def _judge_extended(reader: Reader, pod: JsonObject) -> list[Finding]:
    """Say why a pod has no claim yet for the extended resources in its limits that DeviceClasses stand for."""
    named: dict[str, str] = {}
    for one in await reader.list(DEVICE_CLASSES):
        name = one["metadata"]["name"]
        named[f"deviceclass.resource.kubernetes.io/{name}"] = name
        named[(one.get("spec") or {}).get("extendedResourceName") or ""] = name
    containers = (*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ()))
    limits = {key for one in containers for key in (one.get("resources") or {}).get("limits") or ()}
    wanted = ", ".join(f"{key} (DeviceClass {named[key]})" for key in sorted(limits & named.keys()))
    if not wanted:
        return []
    found = f"none yet for {wanted}: the scheduler makes it when it finds the devices"
    return [Finding("claims", Level.NOTE, found), *_judge_pending([pod])]


async def _judge_templates(reader: Reader, pod: JsonObject, namespace: str) -> list[Finding]:
    """Find claims that have not been made from their templates."""
    made = {one["name"] for one in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
    entries = pod["spec"].get("resourceClaims") or ()
    missing = [one for one in entries if one.get("resourceClaimTemplateName") and one["name"] not in made]
    findings: list[Finding] = []
    if not missing:
        return findings
    known = [one["metadata"]["name"] for one in await reader.list(RESOURCE_CLAIM_TEMPLATES, namespace=namespace)]
    for one in missing:
        template = one["resourceClaimTemplateName"]
        if template in known or not reader.may_list(RESOURCE_CLAIM_TEMPLATES):
            found = f"claim {one['name']} has not been made yet from template {template}"
            advice = "kube-controller-manager makes it within seconds: see the Events of the pod"
        else:
            missed = f"{template} in namespace {namespace}{suggest(template, known)}"
            found = f"claim {one['name']}: there is no ResourceClaimTemplate {missed}"
            advice = "create it, or correct resourceClaimTemplateName and create the pod again"
        findings.append(Finding("claims", Level.PROBLEM, found, advice))
    return findings
