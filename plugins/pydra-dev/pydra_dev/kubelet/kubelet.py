"""The kubelet itself: its parts and the order in which they start, its Node, and the slices that it deletes."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial

import anyio
from anyio.abc import TaskStatus

from pydra.errors import Conflict, KubeError, NotFound
from pydra.kube.api_resources import NODES, RESOURCE_SLICES
from pydra.kube.client import KubeClient
from pydra_dev.kubelet.claim_info_cache import ClaimCache
from pydra_dev.kubelet.device_health import HealthCache, HealthStreams
from pydra_dev.kubelet.observations import Report, SlicesWiped, Step
from pydra_dev.kubelet.plugins import PluginRegistry
from pydra_dev.kubelet.pod_workers import PodWorkers, StopContainers
from pydra_dev.kubelet.preparer import ClaimPreparer
from pydra_dev.kubelet.registration import Registrar, watch_registry
from pydra_dev.kubelet.settings import KubeletSettings

log = logging.getLogger(__name__)


def build_node(settings: KubeletSettings, now: str) -> dict[str, object]:
    """The Node; its memory and CPUs are those of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024
    resources = {"cpu": str(os.cpu_count() or 1), "memory": f"{memory}Ki", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": settings.node_name, "labels": {"kubernetes.io/hostname": settings.node_name}},
        "status": {
            "allocatable": resources,
            "capacity": resources,
            "conditions": [{**ready, "lastHeartbeatTime": now, "lastTransitionTime": now}],
            "nodeInfo": {"kubeletVersion": f"v1.{settings.minor}.0+pydra-embedded"},
        },
    }


def ignore_step(_step: Step) -> None:
    """Nobody listens."""


async def ignore_containers(_pod: str) -> None:
    """There are none: they are simulated."""


async def run_kubelet(
    settings: KubeletSettings,
    client: KubeClient,
    report: Report = ignore_step,
    stop_containers: StopContainers = ignore_containers,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Run a kubelet until cancelled; started when the API server knows the node and plugins may register.

    Another one over the same root is a restart. Its pods' containers are simulated; its sockets, calls and files are
    real.
    """
    os.makedirs(settings.registry, mode=0o755, exist_ok=True)
    cache, health = ClaimCache(settings.claim_checkpoint), HealthCache()
    cache.load()
    await _create_node(settings, client)
    wipe = partial(wipe_slices, settings, client, report)
    async with anyio.create_task_group() as tasks:
        streams = HealthStreams(settings, tasks, health, report=report)
        plugins = PluginRegistry(settings, tasks, wipe=wipe, followers_changed=streams.follow, report=report)
        preparer = ClaimPreparer(client, plugins, cache, report)
        pods = PodWorkers(
            settings, client, preparer, health, tasks=tasks, report=report, stop_containers=stop_containers
        )
        registrar = Registrar(settings, plugins, report)
        # The slices of all drivers go once at every start; drivers that still run publish again.
        tasks.start_soon(wipe, name="wipe slices at start")
        watch = partial(watch_registry, settings, register=registrar.register, deregister=plugins.deregister)
        tasks.start_soon(watch, name="watch the registry")
        await tasks.start(pods.follow, name="follow pods")
        tasks.start_soon(streams.tell, pods.refresh, name="tell of health")
        tasks.start_soon(_reconcile, settings, preparer, pods, name="reconcile claims")
        task_status.started()


async def _create_node(settings: KubeletSettings, client: KubeClient) -> None:
    node = build_node(settings, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    try:
        await client.create(NODES, node)
    except Conflict:
        log.debug("node %s exists", settings.node_name)


async def _reconcile(settings: KubeletSettings, preparer: ClaimPreparer, pods: PodWorkers) -> None:
    """Now and then unprepare what was prepared for pods that are gone."""
    while True:
        for uid, error in (await preparer.reconcile(pods.uids)).items():
            log.warning("cannot unprepare the claims of pod %s, which is gone: %s", uid, error)
        await anyio.sleep(settings.periods.reconcile)


async def wipe_slices(settings: KubeletSettings, client: KubeClient, report: Report, driver: str = "") -> None:
    """Delete the node's slices, of one driver or of all, again and again until the API server has done it.

    Those without a node name are never deleted.
    """
    selector = f"spec.nodeName={settings.node_name}" + (f",spec.driver={driver}" if driver else "")
    failures = 0
    while True:
        try:
            found = await client.list(RESOURCE_SLICES, field_selector=selector)
            names = tuple(one["metadata"]["name"] for one in found.items)
            for name in names:
                with suppress(NotFound):
                    await client.delete(RESOURCE_SLICES, name)
        except KubeError as error:
            failures += 1
            log.warning("cannot delete ResourceSlices with %s: %s", selector, error)
            await anyio.sleep(settings.periods.wipe_retry.pause(failures))
        else:
            report(SlicesWiped(driver=driver, names=names))
            return
