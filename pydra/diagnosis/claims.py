"""Explains one claim: from its allocation through the record on the node to its CDI file; `pydra explain claim`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from pydra.cdi.spec import build_spec
from pydra.cdi.store import CdiStore
from pydra.checkpoint.record import Stage
from pydra.claim import ClaimRef
from pydra.claims.allocation import parse_allocation
from pydra.diagnosis.checkpoint import ClaimRecord, read_records
from pydra.diagnosis.cluster_reader import EventLine, Reader
from pydra.diagnosis.findings import Finding, Level
from pydra.diagnosis.slices import PublishedDevice, find_results, judge_taints, parse_slices
from pydra.errors import ClaimError, KubeError, NotFound, PydraError, suggest
from pydra.kube.api_resources import (
    DEVICE_CLASSES,
    DEVICE_TAINT_RULES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
)
from pydra.kube.client import KubeClient
from pydra.settings import Settings

_CLASS = "class"
_PODS = 5
"""Pods whose Events are read; more of one claim have the same ones."""
_NODES = 8
"""Nodes whose devices are compared with a claim; more are much the same."""


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
    """What a scheduler says of one device for one request; the reason is empty if it can be had."""

    request: str
    device: str
    reason: str


class Review(Protocol):
    """A scheduler's judgement of every device that a node reaches; pydra-dev has one."""

    def __call__(
        self,
        claim: JsonObject,
        *,
        node: JsonObject,
        claims: Sequence[JsonObject],
        slices: Sequence[JsonObject],
        classes: Sequence[JsonObject],
        rules: Sequence[JsonObject],
    ) -> Sequence[Judgement]:
        """Raises ClaimError for a mistake in the claim or its class."""
        ...


class ClaimReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a claim is: findings in the order of its way, its devices, and Events of the claim and of its pods."""

    claim: str
    uid: str
    findings: tuple[Finding, ...]
    devices: tuple[ClaimDevice, ...] = ()
    reviews: tuple[DeviceReview, ...] = ()
    events: tuple[EventLine, ...] = ()
    last_error: str = ""


async def explain_claim(
    settings: Settings, client: KubeClient, *, namespace: str, name: str, review: Review | None = None
) -> ClaimReport:
    """Find out how a claim is, as far as this user may read it and this machine is its node.

    `review` says of a claim that is not allocated why not. Without the API server, what the node has is explained.
    """
    reader = Reader(client)
    records, unknown = await _read_local(settings)
    body: JsonObject | None = None
    refusal: KubeError | None = None
    try:
        body = await client.get(RESOURCE_CLAIMS, name, namespace=namespace)
    except KubeError as error:
        refusal = error
    uid = body["metadata"]["uid"] if body is not None else ""
    mine = [one for one in records if (one.claim.uid == uid if uid else _names(one) == (namespace, name))]
    prepared = {named: ids for one in mine for named, ids in _list_prepared(one)}
    findings: list[Finding] = []
    devices: list[ClaimDevice] = []
    reviews: list[DeviceReview] = []
    pods: list[JsonObject] = []
    is_readable = refusal is None or isinstance(refusal, NotFound)
    if not is_readable:
        findings.append(Finding(subject="claim", level=Level.UNKNOWN, found=str(refusal)))
    elif body is None:
        findings.append(await _miss(reader, namespace, name, is_held=bool(mine)))
    else:
        pods = [pod for pod in await reader.list(PODS, namespace=namespace) if name in find_claim_names(pod)]
        findings += await _judge_allocation(reader, body, pods)
        published = await _find_published(reader, body)
        findings += _judge_devices(body, published)
        devices = [_build_device(result, published, prepared) for result in find_results(body)]
        if not devices and review is not None and not any(one.subject == _CLASS for one in findings):
            try:
                reviews = await _review_devices(reader, body, pods, review)
            except ClaimError as error:
                findings.append(Finding(subject="request", level=Level.PROBLEM, found=str(error)))
    for record in mine:
        findings += await _judge_record(settings, record, is_wanted=bool(devices) or not is_readable)
    findings += unknown
    if not mine and devices and body is not None:
        findings.append(_judge_absence(settings, body, is_known=not unknown))
    events = [*await reader.list_events("ResourceClaim", name, namespace=namespace)] if is_readable else []
    for pod in pods[:_PODS]:
        events += await reader.list_events("Pod", pod["metadata"]["name"], namespace=namespace)
    events.sort(key=lambda event: event.time)
    errors = [event for event in events if event.type == "Warning" and _is_about_claim(event)]
    last_error = f"{errors[-1].reason}: {errors[-1].note}" if errors else ""
    if errors and devices and not any(one.stage == Stage.COMPLETED.value for one in mine):
        advice = f"docs/events.md explains the reason; seen at {errors[-1].time}, {errors[-1].count} times"
        findings.append(Finding(subject="last error", level=Level.PROBLEM, found=last_error, advice=advice))
    return ClaimReport(
        claim=f"{namespace}/{name}",
        uid=uid,
        findings=(*findings, *reader.findings),
        devices=tuple(devices),
        reviews=tuple(reviews),
        events=tuple(events),
        last_error=last_error,
    )


def find_claim_names(pod: JsonObject) -> set[str]:
    """Return the names of the claims that the pod uses, those made from templates included."""
    direct = {one.get("resourceClaimName") for one in pod["spec"].get("resourceClaims") or ()}
    made = {one.get("resourceClaimName") for one in (pod.get("status") or {}).get("resourceClaimStatuses") or ()}
    return {name for name in direct | made if name}


def _is_about_claim(event: EventLine) -> bool:
    """Return whether an Event of a claim or of its pod is about allocating or preparing: pods have other troubles."""
    of_claim = event.object.startswith(f"{RESOURCE_CLAIMS.kind} ")
    return of_claim or event.reason == "FailedScheduling" or "DynamicResources" in event.reason


async def _read_local(settings: Settings) -> tuple[Sequence[ClaimRecord], Sequence[Finding]]:
    try:
        return await asyncio.to_thread(read_records, settings), ()
    except PydraError as error:
        advice = "run it as root on the node, or in the agent's pod"
        return (), (Finding(subject="record", level=Level.UNKNOWN, found=str(error), advice=advice),)


def _list_prepared(one: ClaimRecord) -> Iterator[tuple[tuple[str, str, str], tuple[str, ...]]]:
    """Yield driver, pool and name of each prepared device, with its CDI ids; none where the record cannot be read."""
    if one.stored.record is None:
        return
    with suppress(PydraError):  # of the file: it is reported with the file
        prepared = one.stored.record.prepared
        for device, ids in zip(prepared, build_spec(one.driver, one.claim.uid, prepared).ids, strict=True):
            yield (one.driver, device.pool, device.device), ids


def _names(record: ClaimRecord) -> tuple[str, str]:
    return record.claim.namespace, record.claim.name


# The claim in the API


async def _miss(reader: Reader, namespace: str, name: str, *, is_held: bool) -> Finding:
    if is_held:
        advice = "garbage collection unprepares it two minutes after the kubelet has forgotten it, too"
        found = "the API server has no such claim, and this node holds it"
        return Finding(subject="claim", level=Level.PROBLEM, found=found, advice=advice)
    known = [one["metadata"]["name"] for one in await reader.list(RESOURCE_CLAIMS, namespace=namespace)]
    found = f"there is no claim {name} in namespace {namespace}{suggest(name, known)}"
    advice = "kubectl get resourceclaims; a claim made from a template has the pod's name in its own"
    return Finding(subject="claim", level=Level.PROBLEM, found=found, advice=advice)


async def _judge_allocation(reader: Reader, body: JsonObject, pods: Sequence[JsonObject]) -> list[Finding]:
    results = find_results(body)
    if not results:
        return [*_judge_pending(pods), *await _judge_classes(reader, body)]
    node = _find_node(body)
    names = ", ".join(f"{one['device']} of {one['driver']}" for one in results)
    found = f"{names}{f', on node {node}' if node else ''}"
    findings = [Finding(subject="allocated", level=Level.OK, found=found)]
    users = [one["name"] for one in body["status"].get("reservedFor") or ()]
    found = f"for {', '.join(users)}" if users else "for no pod: the devices are given back when the claim is deleted"
    findings.append(Finding(subject="reserved", level=Level.OK if users else Level.NOTE, found=found))
    if body["metadata"].get("deletionTimestamp"):
        found = "since " + body["metadata"]["deletionTimestamp"]
        advice = "it ends when its pods have, and the agent of its node has unprepared it"
        findings.append(Finding(subject="being deleted", level=Level.NOTE, found=found, advice=advice))
    return findings


def _judge_pending(pods: Sequence[JsonObject]) -> Iterator[Finding]:
    if not pods:
        found = "not yet, since no pod uses the claim"
        yield Finding(subject="allocated", level=Level.NOTE, found=found, advice="create a pod that names it")
    for pod in pods:
        status, name = pod.get("status") or {}, pod["metadata"]["name"]
        scheduled = [one for one in status.get("conditions") or () if one["type"] == "PodScheduled"]
        why = next((one.get("message") or "" for one in scheduled if one["status"] != "True"), "")
        advice = "pydra slices --node-name NODE lists what a node has, with its taints and holders"
        found = f"not yet; the scheduler says of pod {name}: {why or 'nothing yet'}"
        if pod["spec"].get("nodeName"):
            found = f"no, but pod {name} is on node {pod['spec']['nodeName']}: the scheduler did not place it"
            advice = "do not set spec.nodeName on a pod with claims"
        yield Finding(subject="allocated", level=Level.PROBLEM, found=found, advice=advice)


async def _judge_classes(reader: Reader, body: JsonObject) -> list[Finding]:
    requests = ((body.get("spec") or {}).get("devices") or {}).get("requests") or ()
    wanted = [one for request in requests for one in (request.get("exactly"), *(request.get("firstAvailable") or ()))]
    names = sorted({one["deviceClassName"] for one in wanted if one and one.get("deviceClassName")})
    known = [one["metadata"]["name"] for one in await reader.list(DEVICE_CLASSES)]
    if not reader.may_list(DEVICE_CLASSES):
        return []
    return [
        Finding(
            subject=_CLASS,
            level=Level.PROBLEM,
            found=f"there is no DeviceClass {name}{suggest(name, known)}",
            advice="kubectl get deviceclasses; the chart's value backends.NAME.deviceClasses makes them",
        )
        for name in names
        if name not in known
    ]


async def _review_devices(
    reader: Reader, body: JsonObject, pods: Sequence[JsonObject], review: Review
) -> list[DeviceReview]:
    slices = await reader.list(RESOURCE_SLICES)
    claims, classes = await reader.list(RESOURCE_CLAIMS), await reader.list(DEVICE_CLASSES)
    rules = await _read_taint_rules(reader)
    own = {name for one in slices if (name := one["spec"].get("nodeName"))}
    listed = {one["metadata"]["name"]: one for one in await reader.list(NODES)}
    everywhere = any(not one["spec"].get("nodeName") for one in slices)  # some devices are for the nodes of a selector
    nodes = {name: listed.get(name) or {"metadata": {"name": name}} for name in {*own, *(listed if everywhere else ())}}
    reviews: list[DeviceReview] = []
    for name, node in sorted(nodes.items())[:_NODES]:
        if refused := _find_refusal(node, pods):
            reviews.append(DeviceReview(request="", node=name, devices=(), reason=refused))
            continue
        by_reason: dict[tuple[str, str], list[str]] = {}
        for one in review(body, node=node, claims=claims, slices=slices, classes=classes, rules=rules):
            by_reason.setdefault((one.request, one.reason), []).append(one.device)
        for (request, reason), found in by_reason.items():
            reviews.append(DeviceReview(request=request, node=name, devices=tuple(found), reason=reason))
    return reviews


async def _read_taint_rules(reader: Reader) -> Sequence[JsonObject]:
    """Read the DeviceTaintRules in the newest version that is served; most clusters serve none."""
    for resource in DEVICE_TAINT_RULES:
        try:
            return (await reader.client.list(resource)).items
        except NotFound:
            continue
        except KubeError as error:
            found = f"{error}; taints that they give are not considered"
            reader.findings.append(Finding(subject=resource.plural, level=Level.UNKNOWN, found=found))
            break
    return ()


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


async def _find_published(reader: Reader, body: JsonObject) -> dict[tuple[str, str, str], PublishedDevice]:
    drivers = sorted({result["driver"] for result in find_results(body)})
    slices = [
        one for driver in drivers for one in await reader.list(RESOURCE_SLICES, field_selector=f"spec.driver={driver}")
    ]
    return {device.key: device for device in parse_slices(slices, {})[1]}


def _judge_devices(body: JsonObject, published: dict[tuple[str, str, str], PublishedDevice]) -> Iterator[Finding]:
    keys = {(one["driver"], one["pool"], one["device"]): None for one in find_results(body)}
    for driver, pool, device in keys:
        if published and (driver, pool, device) not in published:
            found = f"{device} is not in pool {pool} of {driver} any more"
            advice = f"pydra slices --node-name {pool} says what is there; the claim keeps the device until it ends"
            yield Finding(subject="device", level=Level.PROBLEM, found=found, advice=advice)
    metadata = body["metadata"]
    ref = ClaimRef(uid=metadata["uid"], namespace=metadata["namespace"], name=metadata["name"])
    for driver in sorted({driver for driver, _, _ in keys}):
        try:
            parse_allocation(body, ref, driver)
        except PydraError as error:  # what the agent says, too, when the kubelet asks it
            yield Finding(subject="device", level=Level.PROBLEM, found=str(error))
    yield from judge_taints(published[key] for key in keys if key in published)


def _build_device(
    result: JsonObject,
    published: dict[tuple[str, str, str], PublishedDevice],
    prepared: dict[tuple[str, str, str], tuple[str, ...]],
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


# On its node


def _judge_absence(settings: Settings, body: JsonObject, *, is_known: bool) -> Finding:
    node = _find_node(body)
    if node and node != settings.node_name:
        found = f"is on node {node}, and this is {settings.node_name}"
        advice = "run the command in the agent's pod there: kubectl -n pydra exec POD -- pydra explain claim ..."
        return Finding(subject="record", level=Level.UNKNOWN, found=found, advice=advice)
    level = Level.NOTE if is_known else Level.UNKNOWN
    advice = "the kubelet has not asked for it yet, or it failed: see the Events, and pydra doctor"
    return Finding(subject="prepared", level=level, found="no: this node has no record of the claim", advice=advice)


async def _judge_record(settings: Settings, record: ClaimRecord, *, is_wanted: bool) -> list[Finding]:
    kept, where = record.stored.record, record.stored.path
    if kept is None:
        found = f"the record of {record.driver} cannot be read: {record.stored.problem} ({where})"
        return [Finding(subject="prepared", level=Level.PROBLEM, found=found, advice="see: pydra checkpoint repair")]
    if kept.stage is Stage.STARTED:
        found = f"{record.driver} has begun, and not ended, to prepare or to unprepare it ({where})"
        advice = "the agent undoes or repeats it at the kubelet's next call; the last error is in the Events"
        return [Finding(subject="prepared", level=Level.PROBLEM, found=found, advice=advice)]
    findings = [Finding(subject="prepared", level=Level.OK, found=f"by {record.driver} ({where})")]
    if not is_wanted:
        found = "but the claim is not allocated any more"
        advice = "the kubelet unprepares it when its pods have ended; garbage collection does if the kubelet forgot it"
        findings.append(Finding(subject="prepared", level=Level.PROBLEM, found=found, advice=advice))
    return [*findings, await _judge_file(settings, record)]


async def _judge_file(settings: Settings, record: ClaimRecord) -> Finding:
    uid, kept = record.claim.uid, record.stored.record
    store = CdiStore(settings.cdi_dir, record.driver)
    path = f"{store.base}{uid}.json"
    try:
        content = (await store.read()).get(uid)
        expected = build_spec(record.driver, uid, kept.prepared).content if kept is not None else None
    except PydraError as error:
        return Finding(subject="CDI file", level=Level.UNKNOWN, found=str(error))
    if content == expected:
        found = path if expected is not None else "none: the devices change nothing in a container"
        return Finding(subject="CDI file", level=Level.OK, found=found)
    found = f"{path} {'is missing' if content is None else 'is not what the record says'}"
    advice = "the agent writes it again at its start, and at each garbage collection (sweepPeriod)"
    return Finding(subject="CDI file", level=Level.PROBLEM, found=found, advice=advice)
