"""This node's pods: a watch that finds them, and a worker for each that does what `podlife` says is next."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC, datetime

import anyio
from anyio.abc import TaskGroup, TaskStatus

from pydra.errors import KubeError, NotFound
from pydra.kube.client import KubeClient
from pydra.kube.resources import EVENTS, PODS, WatchEventType
from pydra_dev.kubelet.containers import create_container
from pydra_dev.kubelet.health import HealthCache
from pydra_dev.kubelet.pod_events import build_event
from pydra_dev.kubelet.podlife import (
    JsonObject,
    Phase,
    PodState,
    ResourceHealth,
    Todo,
    adopt_state,
    build_status,
    find_end,
    plan_pod,
)
from pydra_dev.kubelet.preparer import CLAIM_ERRORS, ClaimPreparer
from pydra_dev.kubelet.settings import KubeletSettings
from pydra_dev.kubelet.steps import ContainerCreated, PodEnded, PodFailed, PodRunning, Report
from pydra_dev.oci import InjectionError

log = logging.getLogger(__name__)

API_RETRY = 0.5
"""Seconds until a list, a watch or a write that the API server refused is tried again."""


class _Worker:
    """One pod: as the API server last had it, None when it is gone there, and how far it is."""

    def __init__(self, pod: JsonObject, state: PodState) -> None:
        self.uid: str = pod["metadata"]["uid"]
        self.name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        self.last = pod
        self.pod: JsonObject | None = pod
        self.state = state
        self.changed = anyio.Event()

    def update(self, pod: JsonObject | None) -> None:
        self.pod = pod
        self.last = pod or self.last
        self.changed.set()


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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._client = client
        self._preparer = preparer
        self._health = health
        self._tasks = tasks
        self._report = report
        self._clock = clock
        self._workers: dict[str, _Worker] = {}

    @property
    def uids(self) -> frozenset[str]:
        """The pods that are on this node, or whose end is still in work."""
        return frozenset(self._workers)

    def refresh(self) -> None:
        """Write the status of running pods again where it differs: devices' health has changed."""
        for worker in self._workers.values():
            if worker.state.phase is Phase.RUNNING:
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
            worker = self._workers[uid] = _Worker(pod, adopt_state(pod, self._clock()))
            self._tasks.start_soon(self._work, worker, name=f"pod {worker.name}")

    async def _work(self, worker: _Worker) -> None:
        while True:
            worker.changed = anyio.Event()
            todo = plan_pod(worker.pod, worker.state, self._clock())
            if todo is Todo.LEAVE:
                break
            try:
                pause = await self._do(worker, todo)
            except KubeError as error:
                log.info("pod %s, %s: %s", worker.name, todo.value, error)
                pause = API_RETRY
            with anyio.move_on_after(pause):
                await worker.changed.wait()
        del self._workers[worker.uid]

    async def _do(self, worker: _Worker, todo: Todo) -> float:
        """One thing; how many seconds to wait for news before the next."""
        match todo:
            case Todo.START:
                return await self._start(worker)
            case Todo.WAIT:
                if worker.state.phase is Phase.RUNNING:
                    await self._write_status(worker, "Running")
                return math.inf if worker.state.ends is None else max(worker.state.ends - self._clock(), 0)
            case Todo.STOP:
                worker.state = PodState(phase=Phase.STOPPED)
            case Todo.CLEAN:
                return await self._clean(worker)
            case Todo.FINISH:
                await self._write_status(worker, "Succeeded")
                worker.state = PodState(phase=Phase.ENDED)
                self._report(PodEnded(pod=worker.name))
            case Todo.DELETE | Todo.LEAVE:
                await self._delete(worker)
                return math.inf
        return 0

    async def _start(self, worker: _Worker) -> float:
        pod = worker.last
        try:
            await self._preparer.prepare(pod)
            for container in pod["spec"]["containers"]:
                self._create(worker, container)
        except CLAIM_ERRORS as error:
            message = f"Failed to prepare dynamic resources: {error}"
            return await self._fail(worker, "FailedPrepareDynamicResources", message, self._settings.periods.resync)
        except InjectionError as error:
            message = f"Error: failed to create container: CDI device injection failed: {error}"
            return await self._fail(worker, "Failed", message, self._settings.periods.resync)
        worker.state = PodState(phase=Phase.RUNNING, ends=find_end(pod, self._clock()))
        self._report(PodRunning(pod=worker.name))
        return 0

    def _create(self, worker: _Worker, container: JsonObject) -> None:
        ids = self._preparer.find_cdi_ids(worker.last, container)
        before, after = create_container(worker.last, container, ids, self._settings.cdi_directories)
        self._report(
            ContainerCreated(pod=worker.name, container=container["name"], cdi_ids=ids, before=before, after=after)
        )

    async def _clean(self, worker: _Worker) -> float:
        try:
            await self._preparer.unprepare(worker.uid)
        except CLAIM_ERRORS as error:
            message = f"Failed to unprepare dynamic resources: {error}"
            pause = self._settings.periods.unprepare_retry
            return await self._fail(worker, "FailedUnprepareDynamicResources", message, pause)
        worker.state = PodState(phase=Phase.CLEAN)
        return 0

    async def _fail(self, worker: _Worker, reason: str, message: str, pause: float) -> float:
        self._report(PodFailed(pod=worker.name, reason=reason, message=message))
        try:
            event = build_event(worker.last, reason, message, self._settings.node_name, datetime.now(UTC))
            await self._client.create(EVENTS, event, namespace=worker.last["metadata"]["namespace"])
        except KubeError as error:
            log.warning("cannot write the event %s of pod %s: %s", reason, worker.name, error)
        return pause

    async def _write_status(self, worker: _Worker, phase: str) -> None:
        pod = worker.last
        started = pod.get("status", {}).get("startTime") or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        state = {"running": {"startedAt": started}}
        if phase != "Running":
            state = {"terminated": {"exitCode": 0, "reason": "Completed"}}
        status = build_status(pod, phase, started, state=state, resources=self._find_health(pod))
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
        now = self._clock()
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

    async def _delete(self, worker: _Worker) -> None:
        metadata = worker.last["metadata"]
        try:
            await self._client.delete(
                PODS, metadata["name"], namespace=metadata["namespace"], uid=worker.uid, grace_period=0
            )
        except NotFound:
            log.debug("pod %s is gone already", worker.name)
