"""What `pydra doctor` asks the API server: the node, permissions, the clock, feature gates and foreign slices."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from pydra.agent.assembly import REQUESTS
from pydra.devices import CounterConsumption, CounterSet, Device, NodeAllocatable, Pool, Taint, TaintEffect
from pydra.diagnosis import Finding, Level
from pydra.errors import Invalid, KubeError, NotFound, Unsupported
from pydra.kube.api_resources import (
    ACCESS_REVIEWS,
    DEVICE_CLASSES,
    EVENTS,
    NODES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    Resource,
)
from pydra.kube.client import KubeClient
from pydra.kube.event_recorder import Create, EventDeduplicator, EventRequest, Subject
from pydra.kube.version import ServerVersion, check_server, parse_version
from pydra.settings import EVENT_CONTROLLER, Settings
from pydra.slices.build import build_wanted
from pydra.slices.diff import plan_slices
from pydra.slices.foreign_slices import find_foreign
from pydra.slices.server_limitations import (
    ALLOCATABLE,
    BINDING,
    GROUPS,
    LISTS,
    PARTITION_TYPE,
    PARTITIONS,
    SHARES,
    TAINTS,
    name_gates,
    name_refused,
    reduce_pool,
)

_SKEW_SECONDS = 5.0
"""Clocks farther apart make ages of Events and taints wrong; minutes make tokens and certificates invalid."""

_EXTENDED_RESOURCES = (1, 36)
"""The first release whose gate DRAExtendedResource is on by default, in the API server and in the kubelet."""

_GATE_ADVICE = "enable it on API servers and schedulers if a backend needs it: docs/install.md, feature gates"


_TAINT = Taint(key="doctor.pydra.example/probe", effect=TaintEffect.NO_SCHEDULE)
_PARTITION = CounterConsumption(counter_set="c", counters={"slots": "1"})
_COUNTERS = (CounterSet(name="c", counters={"slots": "1"}),)
_PROBES: tuple[tuple[str, str, Device], ...] = (
    (TAINTS, "unhealthy devices", Device(name="d", taints=(_TAINT,))),
    (PARTITIONS, "partitions", Device(name="d", consumes_counters=(_PARTITION,))),
    (
        GROUPS,
        "partitions that exclude others by their kind",
        Device(name="d", consumes_counters=(replace(_PARTITION, compatibility_groups=("g",)),)),
    ),
    (
        PARTITION_TYPE,
        "partitions that are counted by type",
        Device(name="d", attributes={"type": "a"}, consumes_counters=(_PARTITION,)),
    ),
    (SHARES, "shared devices", Device(name="d", allow_multiple_allocations=True)),
    (
        BINDING,
        "devices that are bound late",
        Device(name="d", binding_conditions=("ready",), binding_failure_conditions=("failed",)),
    ),
    (LISTS, "attributes with lists", Device(name="d", attributes={"a": ("b", "c")})),
    (
        ALLOCATABLE,
        "devices that count as CPUs or memory of the node",
        Device(name="d", node_allocatable={"cpu": NodeAllocatable(multiplier=1)}),
    ),
)
"""Devices that need one feature gate each."""


async def judge_cluster(client: KubeClient, settings: Settings, *, driver: str) -> tuple[str | None, Sequence[Finding]]:
    """Return the container runtime of the node, None if that is not known, and what is wrong in the cluster.

    Feature gates are found out by slices of this driver (dryRun): the slice policy lets an agent ask about no others.
    """
    version = await check_server(client)
    findings = [Finding("API server", Level.OK, f"Kubernetes {version}")]
    runtime: str | None = None
    try:
        node = await client.get(NODES, settings.node_name)
        info = (node.get("status") or {}).get("nodeInfo") or {}
        runtime = info.get("containerRuntimeVersion") or ""
        findings.append(Finding("node", Level.OK, settings.node_name))
        findings += await _judge_kubelet(client, str(info.get("kubeletVersion") or ""), version)
    except NotFound as error:
        advice = "--node-name is the name that kubectl get nodes has; in a pod it comes from spec.nodeName"
        findings.append(Finding("node", Level.PROBLEM, str(error), advice))
    except KubeError as error:
        findings.append(Finding("node", Level.UNKNOWN, str(error)))
    asked = [(verb, resource, "") for resource, verbs in REQUESTS.items() for verb in verbs]
    if settings.device_status:
        asked.append(("patch", RESOURCE_CLAIMS, "status"))
    answers = await asyncio.gather(*(_review(client, *one) for one in asked))
    findings += _judge_access(answers)
    findings.append(await _judge_clock(client, settings))
    findings += await asyncio.gather(*(_probe_gate(client, settings.node_name, driver, probe) for probe in _PROBES))
    return runtime, findings


async def _judge_kubelet(client: KubeClient, kubelet: str, server: ServerVersion) -> Sequence[Finding]:
    """Find extended resources that an older kubelet would give to no container, without an error."""
    try:
        own = parse_version({"gitVersion": kubelet})
        classes = (await client.list(DEVICE_CLASSES)).items
    except (KubeError, Unsupported):  # the agent's own credentials may not list classes
        return ()
    if (own.major, own.minor) >= _EXTENDED_RESOURCES or (server.major, server.minor) < _EXTENDED_RESOURCES:
        return ()
    named = sorted(one["metadata"]["name"] for one in classes if (one.get("spec") or {}).get("extendedResourceName"))
    if not named:
        return ()
    found = (
        f"kubelet {own} starts pods with extended resources without their devices, unless its DRAExtendedResource is on"
    )
    advice = f"upgrade the kubelet to 1.36, or remove extendedResourceName from DeviceClass {', '.join(named)}"
    return (Finding("extended resources", Level.PROBLEM, found, advice),)


async def judge_pool(client: KubeClient, settings: Settings, driver: str) -> Finding:
    """Find slices that others have written into the node's pool."""
    try:
        foreign = await find_foreign(client, driver=driver, node=settings.node_name)
    except KubeError as error:
        return Finding("pool", Level.UNKNOWN, str(error))
    if foreign.slices:
        return Finding("pool", Level.PROBLEM, f"driver {driver}: {foreign}")
    return Finding("pool", Level.OK, f"{driver}: only slices of this node")


async def _review(client: KubeClient, verb: str, resource: Resource, subresource: str) -> tuple[str, bool | None, str]:
    attributes = {"verb": verb, "group": resource.group, "resource": resource.plural, "subresource": subresource}
    request = f"{verb} {resource}/{subresource}" if subresource else f"{verb} {resource}"
    try:
        answer = await client.create(ACCESS_REVIEWS, {"spec": {"resourceAttributes": attributes}})
    except KubeError as error:
        return request, None, str(error)
    return request, bool((answer.get("status") or {}).get("allowed")), ""


def _judge_access(answers: Sequence[tuple[str, bool | None, str]]) -> Iterator[Finding]:
    for request, allowed, _ in answers:
        if allowed is False:
            advice = "compare the ClusterRole and its binding with the chart's; are these the agent's credentials?"
            yield Finding("access", Level.PROBLEM, f"may not {request}", advice)
    unknown = [problem for _, allowed, problem in answers if allowed is None]
    if unknown:
        yield Finding("access", Level.UNKNOWN, unknown[0])
    elif all(allowed for _, allowed, _ in answers):
        yield Finding("access", Level.OK, "has all permissions that the agent needs")


async def _judge_clock(client: KubeClient, settings: Settings) -> Finding:
    """Compare with the time at which the API server would have created an Event of the agent's."""
    subject = Subject(api_version=NODES.api_version, kind=NODES.kind, name="pydra-doctor")
    request = EventRequest(subject=subject, reason="Examined", note="", action="Examine", warning=False)
    events = EventDeduplicator(controller=EVENT_CONTROLLER, instance=settings.event_instance)
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    event = events.decide(request, now=0.0, stamp=stamp, suffix="0")
    try:
        assert isinstance(event, Create)
        answer = await client.create(EVENTS, event.body, namespace=event.namespace, dry_run=True)
        created = datetime.fromisoformat(answer["metadata"]["creationTimestamp"]).timestamp()
    except (KubeError, KeyError, ValueError, TypeError) as error:
        return Finding("clock", Level.UNKNOWN, f"the API server's time is not known: {error}")
    skew = time.time() - created - 0.5  # whole seconds, cut
    if abs(skew) > _SKEW_SECONDS:
        found = f"is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the API server's"
        return Finding("clock", Level.PROBLEM, found, "synchronise the clocks (chrony, NTP)")
    return Finding("clock", Level.OK, "agrees with the API server's")


async def _probe_gate(client: KubeClient, node: str, driver: str, probe: tuple[str, str, Device]) -> Finding:
    """Ask the API server what it would store of a slice that needs the gate, in each form that a release has."""
    gate, what, device = probe
    counters = _COUNTERS if device.consumes_counters else ()
    partition_type = "type" if gate == PARTITION_TYPE else ""
    pool = Pool(name=node, devices=(device,), counter_sets=counters, partition_type=partition_type)
    off: set[str] = set()
    new = {""}
    try:
        while new and gate not in off:
            wanted = build_wanted(reduce_pool(pool, off).pool, driver=driver, node=node)
            body = plan_slices(wanted, ()).creates[-1].body
            answer = await client.create(RESOURCE_SLICES, body, dry_run=True)
            new = set(name_gates(body["spec"], answer.get("spec") or {})) - off
            off |= new
    except KubeError as error:
        if not isinstance(error, Invalid) or gate not in name_refused(str(error), body["spec"]):
            return Finding("gate", Level.UNKNOWN, f"{gate}: {error}")
        state = "off" if gate == LISTS else "not usable in this Kubernetes release"
        return Finding("gate", Level.NOTE, f"{gate} is {state}: no {what}", _GATE_ADVICE)
    if gate in off:
        return Finding("gate", Level.NOTE, f"{gate} is off: no {what}", _GATE_ADVICE)
    return Finding("gate", Level.OK, f"{gate} is on: {what}")
