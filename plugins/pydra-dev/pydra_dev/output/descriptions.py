"""What `pydra dev` prints of each thing that happens. Pure."""

from __future__ import annotations

import os
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import msgspec

from pydra.diagnosis.explain import Judgement, add_values
from pydra.message_text import list_names, suggest
from pydra_dev.container_runtime.cdi_injection import OciSpec
from pydra_dev.container_runtime.cdi_specs import Hook, Mount
from pydra_dev.kubelet.observations import (
    Called,
    ContainerCreated,
    Deregistered,
    HealthChanged,
    PodEnded,
    PodFailed,
    PodRunning,
    Registered,
    RegistrationFailed,
    SlicesWiped,
    Step,
)
from pydra_dev.kubelet.plugin_acceptance import SERVICE
from pydra_dev.scheduler.pools import DeviceKey

LONG, SHOWN = 6, 3
"""Of a list with more than LONG items the first SHOWN are printed."""


def describe_changes(before: OciSpec, after: OciSpec) -> tuple[str, ...]:
    """One line for each thing that differs, in the order of the configuration; one for many mounts of a directory."""
    added = [f"env      {one}{_describe_replaced(one, after)}" for one in after.env if one not in before.env]
    added += [
        f"device   {one.path} ({one.type} {one.major}:{one.minor}, {one.access or 'no access'})"
        for one in after.devices
        if one not in before.devices
    ]
    added += _describe_mounts(one for one in after.mounts if one not in before.mounts)
    added += [f"hook     {_describe_hook(one)}" for one in after.hooks[len(before.hooks) :]]
    added += [
        f"network  {one.host_interface_name} as {one.name}"
        for one in after.net_devices
        if one not in before.net_devices
    ]
    if after.intel_rdt != before.intel_rdt:
        added.append(f"rdt      {after.intel_rdt}")
    added += [f"gid      {gid}" for gid in after.additional_gids if gid not in before.additional_gids]
    return tuple(added)


def _describe_replaced(variable: str, oci: OciSpec) -> str:
    """What another CDI device set the variable to; kubelets pass a container's claims in no fixed order."""
    replaced = oci.replaced_env.get(variable.partition("=")[0])
    return f" (instead of {replaced}; claims have no fixed order)" if replaced else ""


def shorten(value: Any) -> Any:
    """Plain JSON with the ends of its long lists counted instead."""
    if isinstance(value, Mapping):
        return {key: shorten(item) for key, item in value.items()}
    if isinstance(value, list):
        shown = value if len(value) <= LONG else [*value[:SHOWN], f"... and {len(value) - SHOWN} more"]
        return [shorten(item) for item in shown]
    return value


def _describe_mounts(mounts: Iterable[Mount]) -> Iterator[str]:
    """Those of one directory, from one directory and with the same options, together."""
    groups: dict[tuple[str, str, tuple[str, ...]], list[Mount]] = {}
    for one in mounts:
        where = os.path.dirname(one.container_path), os.path.dirname(one.host_path), one.options
        groups.setdefault(where, []).append(one)
    for (inside, outside, options), found in groups.items():
        if len(found) <= LONG:
            yield from (f"mount    {one.container_path} from {one.host_path} ({','.join(options)})" for one in found)
            continue
        names = list_names([os.path.basename(one.container_path) for one in found], SHOWN)
        yield f"mount    {len(found)} in {inside} from {outside} ({','.join(options)}): {names}"


def _describe_hook(hook: Hook) -> str:
    arguments = hook.args or (hook.path,)
    rest = "" if len(arguments) <= LONG else f" ... and {len(arguments) - LONG} more"
    return f"{hook.hook_name} {' '.join(arguments[:LONG])}{rest}"


SHOWN_DEVICES = 3


class Paragraph(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened."""

    headline: str
    details: tuple[str, ...] = ()


def describe_step(step: Step) -> Paragraph | None:  # noqa: PLR0911 - one case for each kind of step
    """What is printed; None for what only repeats."""
    match step:
        case Registered(plugin=plugin):
            return Paragraph(
                headline=f"registered: driver {plugin.driver} with the kubelet, service {SERVICE}",
                details=(f"socket   {plugin.socket}", f"endpoint {plugin.endpoint}"),
            )
        case Deregistered(plugin=plugin):
            return Paragraph(headline=f"deregistered: driver {plugin.driver}, its registration socket is gone")
        case RegistrationFailed(socket=socket, message=message):
            return Paragraph(headline=f"not registered: {os.path.basename(socket)}: {message}")
        case SlicesWiped(driver=driver, names=names):
            whose = f"of driver {driver}" if driver else "of this node"
            return Paragraph(headline=f"wiped: {_count(names, 'ResourceSlice')} {whose}") if names else None
        case Called():
            return _describe_call(step)
        case PodFailed(pod=pod, reason=reason, message=message):
            return Paragraph(headline=f"pod {pod}: {reason}", details=(message,))
        case ContainerCreated():
            return Paragraph(
                headline=f"container created: {step.container} of pod {step.pod}, "
                + ("changed by its CDI devices" if step.cdi_ids else "without CDI devices"),
                details=(*(f"+ {line}" for line in describe_changes(step.before, step.after)), *step.without),
            )
        case PodRunning(pod=pod):
            return Paragraph(headline=f"running: pod {pod}")
        case PodEnded(pod=pod):
            return Paragraph(headline=f"ended: pod {pod}")
        case HealthChanged(driver=driver, devices=devices):
            return _describe_health(driver, devices)


def _describe_call(call: Called) -> Paragraph:
    took = f"{call.seconds * 1000:.1f} ms"
    claims = ", ".join(call.claims)
    if call.error:
        details = tuple(call.error.splitlines())
        return Paragraph(headline=f"{call.method} failed for {claims} after {took}", details=details)
    word = "prepared" if call.method == "NodePrepareResources" else "unprepared"
    details = tuple(f"CDI id   {one}" for one in call.cdi_ids)
    return Paragraph(headline=f"{word}: claim {claims} by driver {call.driver} in {took}", details=details)


def _describe_health(driver: str, devices: Sequence[tuple[str, str, str]]) -> Paragraph:
    if not devices:
        return Paragraph(headline=f"health: driver {driver} stopped reporting, its devices are Unknown")
    said = (f"{count} {health}" for health, count in sorted(Counter(health for _, _, health in devices).items()))
    unhealthy = tuple(f"{pool}/{device} is {health}" for pool, device, health in devices if health != "Healthy")
    return Paragraph(headline=f"health: devices of {driver}: {', '.join(said)}", details=unhealthy[:SHOWN_DEVICES])


TABLE_ROWS, TABLE_WIDTH = 16, 110


def describe_slices(slices: Iterable[Mapping[str, Any]]) -> Paragraph:
    """What a driver has published: a table of what differs between its devices, below what all have."""
    found = list(slices)
    devices = {one["name"]: read_values(one) for each in found for one in each["spec"].get("devices") or ()}
    columns = list(dict.fromkeys(name for values in devices.values() for name in values))
    common = {
        name: values[0]
        for name in columns
        if len(devices) > 1 and len(set(values := [one.get(name, "") for one in devices.values()])) == 1
    }
    details = []
    if common:
        text = "all have " + ", ".join(f"{name}={value}" for name, value in common.items())
        details += textwrap.wrap(text, TABLE_WIDTH, subsequent_indent=" " * len("all have "))
    columns = [name for name in columns if name not in common]
    if devices:
        rows = [[name, *(values.get(column, "-") for column in columns)] for name, values in devices.items()]
        shown = [["DEVICE", *columns], *rows[:TABLE_ROWS]]
        fitting = _count_fitting(shown)
        details += align([row[:fitting] for row in shown])
        if fitting <= len(columns):
            details += textwrap.wrap(f"and of each {', '.join(columns[fitting - 1 :])}", TABLE_WIDTH)
    if len(devices) > TABLE_ROWS:
        details.append(f"and {len(devices) - TABLE_ROWS} more")
    amount = f"{_count(devices, 'device')} in {_count(found, 'ResourceSlice')}"
    return Paragraph(headline=f"published: {amount}", details=tuple(details))


def list_published(slices: Iterable[Mapping[str, Any]]) -> tuple[str, ...] | None:
    """The devices of a pool; None while not all slices of its latest generation are there."""
    specs = [one["spec"] for one in slices]
    latest = max((one["pool"]["generation"] for one in specs), default=0)
    current = [one for one in specs if one["pool"]["generation"] == latest]
    if not current or len(current) != current[0]["pool"]["resourceSliceCount"]:
        return None
    return tuple(device["name"] for one in current for device in one.get("devices") or ())


def describe_device_changes(before: Collection[str], after: Collection[str]) -> Paragraph | None:
    """Which devices have come and gone; None if none have."""
    gone, new = [one for one in before if one not in after], [one for one in after if one not in before]
    said = [f"{what}: {list_names(names)}" for what, names in (("gone", gone), ("new", new)) if names]
    return Paragraph(headline=f"published again: {_count(after, 'device')}", details=tuple(said)) if said else None


def _count(things: Collection[object], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _count_fitting(rows: Sequence[Sequence[str]]) -> int:
    """How many of the columns, the first at least, fit into the width of a table."""
    ends = accumulate(max(map(len, column)) + 2 for column in zip(*rows, strict=True))
    return max(1, sum(1 for end in ends if end <= TABLE_WIDTH))


def align(rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Rows of the same length as lines with columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return tuple("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def read_values(device: Mapping[str, Any]) -> dict[str, str]:
    """Capacities, attributes, counters and taints of a published device, as text by short name."""
    found = {name: str(value["value"]) for name, value in sorted((device.get("capacity") or {}).items())}
    for name, value in sorted((device.get("attributes") or {}).items()):
        (content,) = value.values() or ("",)
        found[name.rpartition("/")[2]] = str(content).lower() if isinstance(content, bool) else str(content)
    for taken in device.get("consumesCounters") or ():
        found[taken["counterSet"]] = " ".join(f"{name}={one['value']}" for name, one in taken["counters"].items())
    if device.get("allowMultipleAllocations"):
        found["shared"] = "true"
    if taints := device.get("taints"):
        found["taints"] = " ".join(f"{one['key']}={one.get('value', '')}:{one['effect']}" for one in taints)
    return found


def describe_allocation(claim: Mapping[str, Any]) -> Paragraph:
    """What the scheduler gave to a claim."""
    results = claim["status"]["allocation"]["devices"].get("results") or ()
    return Paragraph(
        headline=f"allocated: claim {full_name(claim)}",
        details=tuple(
            f"request {one['request']} gets device {one['device']} of pool {one['pool']}, driver {one['driver']}"
            for one in results
        ),
    )


def describe_network(claim: Mapping[str, Any]) -> Paragraph | None:
    """The network interfaces that a claim gives its pod, as the driver has written them into its status."""
    given = ((one["device"], one.get("networkData")) for one in claim["status"].get("devices") or ())
    details = tuple(
        "+ network  " + ", ".join(filter(None, (name, data.get("hardwareAddress"), *data.get("ips", ()))))
        for device, data in given
        if data and (name := f"{data.get('interfaceName', 'an interface')} (device {device})")
    )
    return Paragraph(headline=f"claim {full_name(claim)} gives its pod", details=details) if details else None


def describe_unused(claim: Mapping[str, Any], drivers: Collection[str]) -> Paragraph | None:
    """The configs of a claim that no driver reads, since none of these drivers has the name."""
    configs = claim["spec"]["devices"].get("config") or ()
    named = ((place, (one.get("opaque") or {}).get("driver", "")) for place, one in enumerate(configs))
    unused = [
        f"config[{place}] is for driver {driver}, which publishes no device{suggest(driver, drivers)}"
        for place, driver in named
        if driver and driver not in drivers
    ]
    headline = f"without effect: config of claim {full_name(claim)}"
    return Paragraph(headline=headline, details=tuple(unused)) if unused else None


class Refusal(msgspec.Struct, frozen=True):
    """Devices that a request does not have, for one reason."""

    request: str
    reason: str
    devices: tuple[DeviceKey, ...]


def group_refusals(reviews: Iterable[Judgement]) -> tuple[Refusal, ...]:
    """Why a claim did not get the devices that were not picked, by request and reason."""
    groups: dict[tuple[str, str], list[Judgement]] = {}
    for review in reviews:
        if not review.picked:
            reason = review.reason or "free too, but the first that fits is taken"
            groups.setdefault((review.request, reason), []).append(review)
    return tuple(
        Refusal(request, add_values(reason, found), tuple(one.device for one in found))
        for (request, reason), found in groups.items()
    )


def describe_others(reviews: Sequence[Judgement]) -> tuple[str, ...]:
    """Why a claim did not get the other devices, one line for each reason."""
    return tuple(
        f"not {list_names([device for *_, device in one.devices])}: request {one.request}: {one.reason}"
        for one in group_refusals(reviews)
    )


def describe_cdi_spec(path: str, content: bytes) -> Paragraph:
    """A CDI spec file, laid out for reading: what is on disk, but for the ends of long lists."""
    shown = msgspec.json.format(msgspec.json.encode(shorten(msgspec.json.decode(content))), indent=2).decode()
    return Paragraph(headline=f"CDI spec: {path}", details=tuple(shown.splitlines()))


def describe_event(event: Mapping[str, Any]) -> Paragraph:
    """An Event as the API stores it."""
    about = event["involvedObject"]
    return Paragraph(
        headline=f"Event {event['reason']} on {about['kind']} {about['name']}:",
        details=tuple(event.get("message", "").splitlines()),
    )


_LOG_LINE = re.compile(r"\d\d:\d\d:\d\d\.\d+ (?P<level>[A-Z]+) +(?P<logger>[\w.-]+): (?P<text>.*)")
_SLOW = re.compile(r"Executing <Task .* name='(?P<call>\w+)#\d+'.*> took (?P<seconds>[\d.]+) seconds")
_BLOCKED_SECONDS = 1.0
"""What keeps the event loop for less is not printed."""
_LOG_FIELDS = re.compile(r"(  \w+=\S*)+$")


def _is_quoted(logger: str, message: str) -> bool:
    """Whether this line of the agent is printed unchanged."""
    if logger == "agent.inventory_loop":
        return message.startswith("wait_changed ")
    shown = (": ready again in process ", " has been running for ")
    return logger == "backends.restarted_process" and any(text in message for text in shown)


def describe_log(text: str) -> list[Paragraph]:
    """What the agent logged of the backend: what it printed or logged itself, and tracebacks."""
    paragraphs = []
    unawaited = False
    for record, lines in _split_records(text):
        message = _LOG_FIELDS.sub("", record["text"])
        if unawaited:  # where that was called is in its line; of its stack only the end is to be skipped
            unawaited = not message.startswith("RuntimeWarning: Enable tracemalloc")
            continue
        unawaited = message.endswith("was never awaited")
        if record["logger"].endswith(".asyncio") and "Executing <" in message:
            slow = _SLOW.search(message)
            if slow is not None and float(slow["seconds"]) >= _BLOCKED_SECONDS:
                headline = f"blocked: {slow['call']} kept the event loop for {float(slow['seconds']):.1f} s"
                hint = "no other call makes progress meanwhile; use asyncio.to_thread"
                paragraphs.append(Paragraph(headline=headline, details=(hint,)))
        elif _is_quoted(record["logger"], message):
            paragraphs.append(Paragraph(headline=message))
        elif record["logger"] == "claims.work_queue" and message.startswith("prepared in ") and message.endswith(")"):
            paragraphs.append(Paragraph(headline=f"steps in ms: {message}"))
        elif record["logger"].startswith("backend."):
            paragraphs.append(Paragraph(headline=f"{record['logger']}: {message}", details=tuple(lines)))
        elif lines:
            paragraphs.append(Paragraph(headline=f"traceback: {message}", details=tuple(lines)))
    return paragraphs


def _split_records(text: str) -> list[tuple[re.Match[str], list[str]]]:
    """Each line of the log, with the lines that follow it and are none."""
    records: list[tuple[re.Match[str], list[str]]] = []
    for line in text.splitlines():
        if found := _LOG_LINE.fullmatch(line):
            records.append((found, []))
        elif records:
            records[-1][1].append(line)
    return records


def describe_sample(manifests: Iterable[str]) -> str:
    """The sample as it can be applied to a cluster, at the margin, so that it can be copied."""
    return "\n".join(["# The sample, for `kubectl apply -f -`:", *(f"---\n{one.rstrip()}" for one in manifests), ""])


def describe_hints(
    root: str,
    *,
    backend: str,
    kubeconfig: str,
    settings: str,
    http_address: str,
    pid: int,
    pods: Sequence[str],
    claims: Sequence[Mapping[str, Any]],
) -> str:
    """How to look around while the node stays up; `pods` as namespace/name, and the metadata of claims."""
    claim = f"{claims[0]['namespace']}/{claims[0]['name']}" if claims else "NAMESPACE/NAME"
    namespace, _, name = pods[0].partition("/") if pods else ("default", "/", "NAME")
    return f"""
The node stays up. From another terminal:

  export KUBECONFIG={kubeconfig}
  kubectl get resourceslices,deviceclasses
  kubectl get pods,resourceclaims,events -A
  kubectl describe resourceclaims -A
  kubectl delete pod -n {namespace} {name}
  export PYDRA_CONFIG={settings}
  pydra doctor
  pydra slices
  pydra explain claim {claim}
  pydra check {backend}
  pydra checkpoint list
  curl -s http://{http_address}/metrics
  tail -f {root}/agent.log
  ls -lR {root}
  kill -9 {pid}

These show the API objects, delete the pod, diagnose the node and a claim, try the backend with several devices,
crashes and cancelled calls, show the agent's metrics and log, list sockets, records and CDI files, and kill the agent,
which is then started again, as a DaemonSet would, with the backend as it is then: it finds what it had prepared.
Ctrl-C here deletes all pods, waits until their claims are unprepared, and stops everything.
A second Ctrl-C does not wait.
"""


def render(paragraph: Paragraph, seconds: float) -> str:
    """Lines for a terminal, the time since the start in front."""
    margin = " " * 12
    return "\n".join([f"{seconds:8.3f} s  {paragraph.headline}", *(f"{margin}  {line}" for line in paragraph.details)])


def full_name(obj: Mapping[str, Any]) -> str:
    """`namespace/name`."""
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
