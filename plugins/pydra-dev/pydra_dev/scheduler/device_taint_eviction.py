"""Evicts pods from devices with taints that they do not tolerate, as kube-controller-manager does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from pydra_dev.api import schema
from pydra_dev.api.errors import JsonObject, attempt
from pydra_dev.api.kinds import PODS, RESOURCE_CLAIMS
from pydra_dev.apiserver.verbs import Api
from pydra_dev.controllers.events import emit_event
from pydra_dev.scheduler.pools import DeviceKey
from pydra_dev.scheduler.scheduler import SliceReader, parse_status
from pydra_dev.scheduler.taints import find_blocking_taint

NO_EXECUTE = frozenset({"NoExecute"})
EVICTION = "DeviceTaintManagerEviction"
"""The reason of the Event on a pod that is deleted because of a device's taint."""


def step_eviction(api: Api, slices: SliceReader) -> float | None:
    """Delete the pods on devices whose NoExecute taints they do not tolerate (any longer).

    Returns the seconds until a toleration runs out, None when none does.
    """
    devices = {
        (one.spec.driver, one.spec.pool.name, device.name): device
        for one in slices.read_for_eviction()
        for device in one.spec.devices
        if any(taint.effect in NO_EXECUTE for taint in device.taints)
    }
    delays = [
        delay
        for claim in api.list(RESOURCE_CLAIMS).items
        if devices and (delay := _evict(api, claim, devices)) is not None
    ]
    return min(delays, default=None)


def _evict(api: Api, claim: JsonObject, tainted: Mapping[DeviceKey, schema.Device]) -> float | None:
    status = parse_status(claim)
    delays = []
    for result in status.allocation.devices.results if status.allocation is not None else ():
        device = tainted.get((result.driver, result.pool, result.device))
        if device is None:
            continue
        delay = _tolerated_seconds(device, result.tolerations, api.now)
        if delay is not None and delay > 0:
            delays.append(delay)
        elif delay is not None:
            _evict_consumers(api, claim, status, result.device)
    return min(delays, default=None)


def _evict_consumers(api: Api, claim: JsonObject, status: schema.ClaimStatus, device: str) -> None:
    namespace = claim["metadata"]["namespace"]
    for consumer in status.reserved_for:
        pod = api.find(PODS, consumer.name, namespace=namespace)
        if pod is None or pod["metadata"]["uid"] != consumer.uid or "deletionTimestamp" in pod["metadata"]:
            continue
        with attempt(f"evict pod {consumer.name}"):
            emit_event(api, pod, "Warning", EVICTION, f"Device {device} is tainted")
            api.delete(PODS, consumer.name, namespace=namespace)


def _tolerated_seconds(device: schema.Device, tolerations: Sequence[schema.Toleration], now: str) -> float | None:
    """How long the device's NoExecute taints are still tolerated; None: for ever."""
    forever = [toleration for toleration in tolerations if toleration.toleration_seconds is None]
    left = find_blocking_taint(device, forever, NO_EXECUTE)
    if left is None:
        return None
    timed = [toleration for toleration in tolerations if toleration.toleration_seconds is not None]
    if find_blocking_taint(device, [*forever, *timed], NO_EXECUTE) is not None:
        return 0.0
    seconds = min(toleration.toleration_seconds or 0 for toleration in timed)
    added = datetime.fromisoformat(left.time_added or now)
    return seconds - (datetime.fromisoformat(now) - added).total_seconds()
