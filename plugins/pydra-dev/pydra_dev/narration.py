"""What is said of each thing that happens on the embedded node: a headline and details. Pure."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from pydra_dev.changes import describe_changes, shorten
from pydra_dev.kubelet.steps import (
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
from pydra_dev.samples import POD

SHOWN_DEVICES = 3


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that happened."""

    headline: str
    details: tuple[str, ...] = ()


def describe_step(step: Step) -> Passage | None:  # noqa: PLR0911 - one case for each kind of step
    """A passage of the story; None for what only repeats."""
    match step:
        case Registered(plugin=plugin):
            return Passage(
                headline=f"registered: driver {plugin.driver} with the kubelet, service {plugin.service.value}",
                details=(f"socket   {plugin.socket}", f"endpoint {plugin.endpoint}"),
            )
        case Deregistered(plugin=plugin):
            return Passage(headline=f"deregistered: driver {plugin.driver}, its registration socket is gone")
        case RegistrationFailed(socket=socket, message=message):
            return Passage(headline=f"not registered: {os.path.basename(socket)}: {message}")
        case SlicesWiped(driver=driver, names=names):
            whose = f"of driver {driver}" if driver else "of this node"
            return Passage(headline=f"wiped: {len(names)} ResourceSlices {whose}") if names else None
        case Called():
            return _describe_call(step)
        case PodFailed(pod=pod, reason=reason, message=message):
            return Passage(headline=f"pod {pod}: {reason}", details=(message,))
        case ContainerCreated():
            return Passage(
                headline=f"container created: {step.container} of pod {step.pod}, changed by its CDI devices",
                details=(*(f"+ {line}" for line in describe_changes(step.before, step.after)),),
            )
        case PodRunning(pod=pod):
            return Passage(headline=f"running: pod {pod}")
        case PodEnded(pod=pod):
            return Passage(headline=f"ended: pod {pod}")
        case HealthChanged(driver=driver, devices=devices):
            return _describe_health(driver, devices)


def _describe_call(call: Called) -> Passage:
    took = f"{call.seconds * 1000:.1f} ms"
    claims = ", ".join(call.claims)
    if call.error:
        return Passage(headline=f"{call.method} failed for {claims} after {took}", details=(call.error,))
    word = "prepared" if call.method == "NodePrepareResources" else "unprepared"
    details = tuple(f"CDI id   {one}" for one in call.cdi_ids)
    return Passage(headline=f"{word}: claim {claims} by driver {call.driver} in {took}", details=details)


def _describe_health(driver: str, devices: Sequence[tuple[str, str, str]]) -> Passage:
    if not devices:
        return Passage(headline=f"health: driver {driver} says nothing any more, its devices are Unknown")
    said = (f"{count} {health}" for health, count in sorted(Counter(health for _, _, health in devices).items()))
    sick = tuple(f"{pool}/{device} is {health}" for pool, device, health in devices if health != "Healthy")
    return Passage(headline=f"health: devices of {driver}: {', '.join(said)}", details=sick[:SHOWN_DEVICES])


def describe_slices(slices: Iterable[Mapping[str, Any]]) -> Passage:
    """What a driver has published."""
    found = list(slices)
    devices = [device for one in found for device in one["spec"].get("devices") or ()]
    details = [_describe_device(device) for device in devices[:SHOWN_DEVICES]]
    if len(devices) > SHOWN_DEVICES:
        details.append(f"and {len(devices) - SHOWN_DEVICES} more")
    return Passage(headline=f"published: {len(devices)} devices in {len(found)} ResourceSlices", details=tuple(details))


def _describe_device(device: Mapping[str, Any]) -> str:
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    said = [f"{name}={value['value']}" for name, value in sorted(capacity.items())]
    said += [f"{name.rpartition('/')[2]}={next(iter(value.values()))}" for name, value in sorted(attributes.items())]
    return f"{device['name']}: {' '.join(said)}"


def describe_allocation(claim: Mapping[str, Any]) -> Passage:
    """What the scheduler gave to a claim."""
    results = claim["status"]["allocation"]["devices"].get("results") or ()
    return Passage(
        headline=f"allocated: claim {claim['metadata']['namespace']}/{claim['metadata']['name']}",
        details=tuple(
            f"request {one['request']} gets device {one['device']} of pool {one['pool']}, driver {one['driver']}"
            for one in results
        ),
    )


def describe_cdi_spec(path: str, content: bytes) -> Passage:
    """A CDI spec file, laid out for reading: what is on disk, but for the ends of long lists."""
    shown = msgspec.json.format(msgspec.json.encode(shorten(msgspec.json.decode(content))), indent=2).decode()
    return Passage(headline=f"CDI spec: {path}", details=tuple(shown.splitlines()))


def describe_hints(root: str, kubeconfig: str, http_address: str, pid: int) -> str:
    """How to look around while the node stays up."""
    return f"""
The node stays up. From another terminal:

  export KUBECONFIG={kubeconfig}
  kubectl get resourceslices,deviceclasses,resourceclaims,pods -A -o yaml
  kubectl delete pod {POD}
  curl -s http://{http_address}/metrics
  tail -f {root}/agent.log
  ls -lR {root}
  kill -9 {pid}

They show what the cluster knows, end the pod, show what the agent counts and says, what lies in sockets,
checkpoints and CDI specs, and what happens without the agent. Ctrl-C here ends everything.
"""


def render(passage: Passage, seconds: float) -> str:
    """Lines for a terminal, the time since the start in front."""
    margin = " " * 12
    return "\n".join([f"{seconds:8.3f} s  {passage.headline}", *(f"{margin}  {line}" for line in passage.details)])
