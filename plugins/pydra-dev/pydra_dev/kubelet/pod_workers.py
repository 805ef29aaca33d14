"""This node's pods: a watch that finds them, and a worker for each that takes it from its start to its end.

Containers are not real processes. One whose command is `sleep N` ends after N seconds; any other runs until it is
stopped. A pod whose restart policy is Always, the default, never ends by itself. Times are seconds of a monotonic
clock.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, TypeAlias

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from pydra.errors import KubeError, NotFound
from pydra.kube.api_resources import EVENTS, PODS, WatchEventType
from pydra.kube.client import KubeClient
from pydra_dev.container_runtime.cdi_injection import InjectionError, OciSpec, inject_devices, stat_host_node
from pydra_dev.container_runtime.cdi_specs import read_registry
from pydra_dev.kubelet.device_health import HealthCache
from pydra_dev.kubelet.observations import ContainerCreated, PodEnded, PodFailed, PodRunning, Report
from pydra_dev.kubelet.pod_claims import JsonObject, explain_missing, list_containers
from pydra_dev.kubelet.preparer import CLAIM_ERRORS, ClaimPreparer
from pydra_dev.kubelet.probes import find_probe, is_ready
from pydra_dev.kubelet.settings import KubeletSettings

StopContainers: TypeAlias = Callable[[str], Awaitable[None]]
"""Stops what runs of a pod, as namespace/name, before its claims are unprepared."""


class ResourceHealth(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `allocatedResourcesStatus[].resources`."""

    resource_id: str
    health: str
    message: str = ""


def find_end(pod: JsonObject, now: float) -> float | None:
    """When the containers of a pod that starts now end by themselves."""
    if pod["spec"].get("restartPolicy", "Always") == "Always":
        return None
    seconds = [_run_seconds(container) for container in pod["spec"]["containers"]]
    known = [one for one in seconds if one is not None]
    return now + max(known, default=0.0) if len(known) == len(seconds) else None


def _run_seconds(container: JsonObject) -> float | None:
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    match words:
        case ["sleep" | "/bin/sleep", str(seconds)]:
            try:
                return float(seconds)
            except ValueError:
                return None
    return None


def build_status(
    pod: JsonObject,
    phase: str,
    started: str,
    *,
    state: JsonObject,
    resources: Mapping[str, Sequence[tuple[str, Sequence[ResourceHealth]]]],
    address: str = "",
    ready: bool = True,
) -> dict[str, Any]:
    """The kubelet's part of a pod's status: `state` of each container, and by container its resources' health.

    `started` is a time as the API writes it, `ready` is what probes say. Conditions that others wrote stay.
    """
    running = "running" in state
    ready = running and ready
    containers = [
        {
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "",
            "ready": ready,
            "started": running,
            "restartCount": 0,
            "state": dict(state),
        }
        | _allocated(resources.get(container["name"], ()))
        for container in pod["spec"]["containers"]
    ]
    conditions = [{"type": kind, "status": "True" if ready else "False"} for kind in ("Ready", "ContainersReady")]
    kept = [
        one for one in pod.get("status", {}).get("conditions") or () if one["type"] not in ("Ready", "ContainersReady")
    ]
    return {
        "phase": phase,
        "startTime": started,
        "conditions": [*kept, *conditions],
        "containerStatuses": containers,
        **({"podIP": address, "podIPs": [{"ip": address}]} if address else {}),
    }


def _allocated(claims: Sequence[tuple[str, Sequence[ResourceHealth]]]) -> dict[str, Any]:
    entries = []
    for name, devices in claims:
        first: dict[str, ResourceHealth] = {}
        for one in devices:
            first.setdefault(one.resource_id, one)  # of devices with one CDI device, only the first one's health shows
        if first:
            entries.append({"name": name, "resources": [_health_entry(one) for one in first.values()]})
    return {"allocatedResourcesStatus": entries} if entries else {}


def _health_entry(one: ResourceHealth) -> dict[str, str]:
    entry = {"resourceID": one.resource_id, "health": one.health}
    return {**entry, "message": one.message} if one.message else entry


MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
NOTE_LIMIT = 1024
"""Bytes of an Event's note that the API accepts."""


def build_event(pod: JsonObject, reason: str, message: str, node: str, now: datetime) -> dict[str, object]:
    """A warning on a pod, for events.k8s.io; what is too long of the message is cut."""
    metadata = pod["metadata"]
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
        "eventTime": now.strftime(MICRO_TIME),
        "type": "Warning",
        "reason": reason,
        "action": "Starting",
        "note": message.encode()[:NOTE_LIMIT].decode(errors="ignore"),
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "reportingController": "kubelet",
        "reportingInstance": node,
    }


PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def build_oci(pod: JsonObject, container: JsonObject, address: str) -> OciSpec:
    """The configuration of a container without its devices; `address` is the pod's."""
    security = {**(pod["spec"].get("securityContext") or {}), **(container.get("securityContext") or {})}
    fields = {
        "status.podIP": address,
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        **{f"metadata.{name}": pod["metadata"].get(name, "") for name in ("name", "namespace", "uid")},
    }
    given = (f"{one['name']}={_read_variable(one, fields)}" for one in container.get("env") or ())
    return OciSpec(
        args=(*(container.get("command") or ()), *(container.get("args") or ())),
        env=(PATH, f"HOSTNAME={pod['metadata']['name']}", *given),
        uid=security.get("runAsUser", 0),
        gid=security.get("runAsGroup", 0),
        additional_gids=tuple(security.get("supplementalGroups") or ()),
    )


def _read_variable(one: JsonObject, fields: Mapping[str, str]) -> str:
    path = ((one.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath", "")
    return str(fields.get(path, "") if path else one.get("value", ""))


def create_container(
    pod: JsonObject, container: JsonObject, cdi_ids: Sequence[str], directories: Sequence[str], address: str = ""
) -> tuple[OciSpec, OciSpec]:
    """The configuration before and after its CDI devices; raises InjectionError when the runtime would refuse."""
    before = build_oci(pod, container, address)
    return before, inject_devices(before, cdi_ids, read_registry(directories), stat_host_node)


log = logging.getLogger(__name__)

API_RETRY = 0.5
"""Seconds until a list, a watch or a write that the API server refused is tried again."""


class _Worker:
    """One pod: as the API server last had it, None when it is gone there, and whether its containers run.

    `ends` is when they end by themselves, None for never.
    """

    def __init__(self, pod: JsonObject) -> None:
        self.uid: str = pod["metadata"]["uid"]
        self.name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        self.last = pod
        self.pod: JsonObject | None = pod
        self.is_running = False
        self.ends: float | None = None
        self.address: str = pod.get("status", {}).get("podIP", "")
        self.ready = True
        self.is_probed = False
        self.changed = anyio.Event()

    def update(self, pod: JsonObject | None) -> None:
        self.pod = pod
        self.last = pod or self.last
        self.changed.set()

    def run(self) -> None:
        """Its containers run from now on, or have not stopped while the kubelet was down."""
        self.is_running = True
        self.ends = find_end(self.last, time.monotonic())

    @property
    def is_ending(self) -> bool:
        return self.pod is None or "deletionTimestamp" in self.last["metadata"]


class PodWorkers:
    """Starts, keeps and ends the pods that are bound to this node."""

    def __init__(
        self,
        settings: KubeletSettings,
        client: KubeClient,
        preparer: ClaimPreparer,
        health: HealthCache,
        *,
        tasks: TaskGroup,
        report: Report,
        stop_containers: StopContainers,
    ) -> None:
        self._settings = settings
        self._client = client
        self._preparer = preparer
        self._health = health
        self._tasks = tasks
        self._report = report
        self._stop_containers = stop_containers
        self._workers: dict[str, _Worker] = {}
        self._repeated: dict[tuple[str, str, str], tuple[str, int]] = {}
        """The Event's name and count, by the pod's UID, the reason and the message."""

    @property
    def uids(self) -> frozenset[str]:
        """The pods that are on this node, or whose end is still in work."""
        return frozenset(self._workers)

    def refresh(self) -> None:
        """Write the status of running pods again where it differs: devices' health has changed."""
        for worker in self._workers.values():
            if worker.is_running:
                worker.changed.set()

    async def follow(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep in step with the API server until cancelled; started when all pods have been seen once."""
        seen = False
        selector = f"spec.nodeName={self._settings.node_name}"
        while True:
            try:
                found = await self._client.list(PODS, field_selector=selector)
                self._replace({pod["metadata"]["uid"]: pod for pod in found.items})
                if not seen:
                    seen = True
                    task_status.started()
                version = found.resource_version
                async with aclosing(
                    self._client.watch(PODS, resource_version=version, field_selector=selector)
                ) as events:
                    async for event in events:
                        if event.type is not WatchEventType.BOOKMARK:
                            self._take(event.object, gone=event.type is WatchEventType.DELETED)
            except KubeError as error:
                log.debug("watching pods: %s", error)
                await anyio.sleep(API_RETRY)

    def _replace(self, pods: dict[str, JsonObject]) -> None:
        for pod in pods.values():
            self._take(pod, gone=False)
        for uid, worker in self._workers.items():
            if uid not in pods:
                worker.update(None)

    def _take(self, pod: JsonObject, *, gone: bool) -> None:
        uid = pod["metadata"]["uid"]
        worker = self._workers.get(uid)
        if worker is not None:
            worker.update(None if gone else pod)
        elif not gone:
            worker = self._workers[uid] = _Worker(pod)
            self._tasks.start_soon(self._work, worker, name=f"pod {worker.name}")

    async def _work(self, worker: _Worker) -> None:
        phase = worker.last.get("status", {}).get("phase")
        if phase == "Running":
            worker.run()
        elif phase not in ("Succeeded", "Failed"):
            await self._repeat(worker, self._start)
        if worker.is_running:
            await self._repeat(worker, self._wait)
            await self._stop_containers(worker.name)
            worker.is_running = False
        for step in (self._clean, self._finish, self._delete):
            await self._repeat(worker, step)
        del self._workers[worker.uid]
        self._repeated = {key: told for key, told in self._repeated.items() if key[0] != worker.uid}

    async def _repeat(self, worker: _Worker, step: Callable[[_Worker], Awaitable[float | None]]) -> None:
        """Take a step until it is done (None), with its pauses in seconds, which news cut short."""
        while True:
            worker.changed = anyio.Event()
            try:
                pause = await step(worker)
            except KubeError as error:
                log.info("pod %s: %s", worker.name, error)
                pause = API_RETRY
            if pause is None:
                return
            with anyio.move_on_after(pause):
                await worker.changed.wait()

    async def _start(self, worker: _Worker) -> float | None:
        if worker.is_ending:  # claims may have been prepared by an attempt that failed later
            return None
        pod = worker.last
        worker.address = worker.address or self._choose_address()
        try:
            await self._preparer.prepare(pod)
            for container in list_containers(pod):
                self._create(worker, container)
        except CLAIM_ERRORS as error:
            message = f"Failed to prepare dynamic resources: prepare dynamic resources: {error}"
            return await self._fail(worker, "FailedPrepareDynamicResources", message, self._settings.periods.resync)
        except InjectionError as error:
            message = f"Error: failed to create container: CDI device injection failed: {error}"
            return await self._fail(worker, "Failed", message, self._settings.periods.resync)
        worker.run()
        self._report(PodRunning(pod=worker.name))
        return None

    async def _wait(self, worker: _Worker) -> float | None:
        if worker.is_ending or (worker.ends is not None and worker.ends <= time.monotonic()):
            return None
        self._begin_probes(worker)
        await self._write_status(worker, "Running")
        return math.inf if worker.ends is None else max(worker.ends - time.monotonic(), 0)

    def _choose_address(self) -> str:
        taken = {worker.address for worker in self._workers.values()}
        every = (f"{self._settings.pod_network}.{number >> 8}.{number & 255}" for number in range(2, 1 << 16))
        return next(one for one in every if one not in taken)

    def _begin_probes(self, worker: _Worker) -> None:
        probed = [one for one in worker.last["spec"]["containers"] if find_probe(one)] if self._settings.probes else []
        if probed and not worker.is_probed:
            worker.is_probed, worker.ready = True, False
            self._tasks.start_soon(self._probe, worker, probed, name=f"probes of pod {worker.name}")

    async def _probe(self, worker: _Worker, containers: Sequence[JsonObject]) -> None:
        while worker.is_running:
            ready = all([await is_ready(one, worker.address) for one in containers])
            if ready != worker.ready:
                worker.ready = ready
                worker.changed.set()
            await anyio.sleep(self._settings.periods.probe)

    def _create(self, worker: _Worker, container: JsonObject) -> None:
        ids = self._preparer.find_cdi_ids(worker.last, container)
        directories = self._settings.cdi_directories
        before, after = create_container(worker.last, container, ids, directories, worker.address)
        without = explain_missing(worker.last, container, self._preparer.find_devices(worker.last, container))
        is_init = container not in worker.last["spec"]["containers"] and container.get("restartPolicy") != "Always"
        self._report(
            ContainerCreated(
                pod=worker.name,
                container=container["name"],
                cdi_ids=ids,
                without=without,
                is_init=is_init,
                policy=container.get("restartPolicy", worker.last["spec"].get("restartPolicy", "Always")),
                before=before,
                after=after,
            )
        )

    async def _clean(self, worker: _Worker) -> float | None:
        try:
            await self._preparer.unprepare(worker.uid)
        except CLAIM_ERRORS as error:
            # A kubelet only logs it: an Event says so if the driver writes one.
            reason, message = "FailedUnprepareDynamicResources", f"unprepare dynamic resources: {error}"
            self._report(PodFailed(pod=worker.name, reason=reason, message=message))
            return self._settings.periods.unprepare_retry
        return None

    async def _finish(self, worker: _Worker) -> None:
        await self._write_status(worker, "Succeeded")
        self._report(PodEnded(pod=worker.name))

    async def _fail(self, worker: _Worker, reason: str, message: str, pause: float) -> float:
        self._report(PodFailed(pod=worker.name, reason=reason, message=message))
        try:
            await self._write_event(worker, reason, message)
        except KubeError as error:
            log.warning("cannot write the event %s of pod %s: %s", reason, worker.name, error)
        return pause

    async def _write_event(self, worker: _Worker, reason: str, message: str) -> None:
        """Write an Event, or count it again if the pod has it."""
        key, namespace, now = (worker.uid, reason, message), worker.last["metadata"]["namespace"], datetime.now(UTC)
        name, count = self._repeated.get(key, ("", 0))
        if name:
            series = {"count": count + 1, "lastObservedTime": now.strftime(MICRO_TIME)}
            await self._client.patch(EVENTS, name, {"series": series}, namespace=namespace)
        else:
            event = build_event(worker.last, reason, message, self._settings.node_name, now)
            name = (await self._client.create(EVENTS, event, namespace=namespace))["metadata"]["name"]
        self._repeated[key] = name, count + 1

    async def _write_status(self, worker: _Worker, phase: str) -> None:
        pod = worker.last
        started = pod.get("status", {}).get("startTime") or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        state = {"running": {"startedAt": started}}
        if phase != "Running":
            state = {"terminated": {"exitCode": 0, "reason": "Completed"}}
        status = build_status(
            pod,
            phase,
            started,
            state=state,
            resources=self._find_health(pod),
            address=worker.address,
            ready=worker.ready,
        )
        known = pod.get("status", {})
        if worker.pod is None or all(known.get(name) == value for name, value in status.items()):
            return
        metadata = pod["metadata"]
        try:
            await self._client.patch(
                PODS, metadata["name"], {"status": status}, namespace=metadata["namespace"], subresource="status"
            )
        except NotFound:  # the watch will say so
            log.debug("pod %s is gone", worker.name)

    def _find_health(self, pod: JsonObject) -> dict[str, list[tuple[str, list[ResourceHealth]]]]:
        if self._settings.minor < 36:  # the gate ResourceHealthStatus is off
            return {}
        now = time.monotonic()
        found: dict[str, list[tuple[str, list[ResourceHealth]]]] = {}
        for container in pod["spec"]["containers"]:
            for claim, devices in self._preparer.find_devices(pod, container):
                entries = []
                for driver, device in devices:
                    health = self._health.read(driver, device.pool, device.device, now)
                    name = device.cdi_ids[0] if device.cdi_ids else f"{driver}/{device.pool}/{device.device}"
                    entries.append(ResourceHealth(resource_id=name, health=health.health, message=health.message))
                found.setdefault(container["name"], []).append((claim, entries))
        return found

    async def _delete(self, worker: _Worker) -> float | None:
        """Delete the pod once somebody has begun to, and wait until it is gone."""
        if worker.pod is None:
            return None
        if not worker.is_ending:
            return math.inf
        metadata = worker.last["metadata"]
        try:
            await self._client.delete(
                PODS, metadata["name"], namespace=metadata["namespace"], uid=worker.uid, grace_period=0
            )
        except NotFound:
            log.debug("pod %s is gone already", worker.name)
        return math.inf
