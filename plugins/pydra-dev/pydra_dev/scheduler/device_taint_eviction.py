"""Evicts pods from devices with taints that they do not tolerate, as kube-controller-manager does.

Source: `pkg/controller/devicetainteviction`, Kubernetes 1.36.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from pydra_dev.api import schema
from pydra_dev.api.errors import JsonObject, attempt
from pydra_dev.api.kinds import PODS, RESOURCE_CLAIMS
from pydra_dev.api.pod_fields import build_condition, set_condition
from pydra_dev.apiserver.verbs import Api
from pydra_dev.controllers.emit_events import emit_event
from pydra_dev.scheduler.pools import DeviceKey
from pydra_dev.scheduler.scheduler import SliceReader, parse_status
from pydra_dev.scheduler.taints import tolerates

NO_EXECUTE = "NoExecute"
EVICTION = "DeviceTaintManagerEviction"
"""The reason of the Event on a pod that is deleted because of a device's taint."""
CONTROLLER = "device-taint-eviction-controller"


def step_eviction(api: Api, slices: SliceReader) -> float | None:
    """Delete the pods on devices whose NoExecute taints they do not tolerate (any longer).

    Returns the seconds until a toleration runs out, None when none does.
    """
    taints = {
        (one.spec.driver, one.spec.pool.name, device.name): found
        for one in slices.read_for_eviction()
        for device in one.spec.devices
        if (found := [taint for taint in device.taints if taint.effect == NO_EXECUTE])
    }
    delays = [
        delay
        for claim in api.list(RESOURCE_CLAIMS).items
        if taints and (delay := _evict(api, claim, taints)) is not None
    ]
    return min(delays, default=None)


def _evict(api: Api, claim: JsonObject, taints: Mapping[DeviceKey, Sequence[schema.Taint]]) -> float | None:
    status = parse_status(claim)
    delay = min(_find_delays(status, taints, api.now), default=None)
    if delay is None:
        return None
    pods = list(_find_pods(api, claim, status))
    if pods and delay > 0:
        return delay
    for pod in pods:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        with attempt(f"evict pod {name}"):
            emit_event(api, pod, "Normal", EVICTION, "Marking for deletion", component=CONTROLLER)
            condition = build_condition(
                "DisruptionTarget",
                status=True,
                now=api.now,
                reason="DeletionByDeviceTaintManager",
                message="Device Taint manager: deleting due to NoExecute taint",
            )
            api.write_status(PODS, pod, set_condition(pod["status"], condition))
            api.delete(PODS, name, {"preconditions": {"uid": pod["metadata"]["uid"]}}, namespace=namespace)
    return None


def _find_pods(api: Api, claim: JsonObject, status: schema.ClaimStatus) -> Iterator[JsonObject]:
    """The claim's pods that have a node and are not deleted yet."""
    for consumer in status.reserved_for:
        pod = api.find(PODS, consumer.name, namespace=claim["metadata"]["namespace"])
        if pod is None or pod["metadata"]["uid"] != consumer.uid or "deletionTimestamp" in pod["metadata"]:
            continue
        if pod["spec"].get("nodeName"):
            yield pod


def _find_delays(
    status: schema.ClaimStatus, taints: Mapping[DeviceKey, Sequence[schema.Taint]], now: str
) -> Iterator[float]:
    """For each taint that is not tolerated for ever, the seconds until it is not tolerated."""
    for result in status.allocation.devices.results if status.allocation is not None else ():
        for taint in taints.get((result.driver, result.pool, result.device), ()):
            # A toleration without an effect lets a claim have the device, but keeps no pod on it.
            tolerations = [
                one.toleration_seconds
                for one in result.tolerations
                if one.effect == NO_EXECUTE and tolerates(one, taint)
            ]
            if None in tolerations:
                continue
            tolerated = max(0, min((one for one in tolerations if one is not None), default=0))
            added = datetime.fromisoformat(taint.time_added or now)
            yield tolerated - (datetime.fromisoformat(now) - added).total_seconds()
