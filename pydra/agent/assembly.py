"""Builds the agent's components, runs them in one task group, and stops them in order.

`pydra.agent.entry` has started the backends' processes by then. Order of stopping: sockets and calls in flight
first (each driver drains), then the connection to the API server, then the backends. What is prepared stays prepared,
and what is published stays published.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

import anyio

from pydra import __version__
from pydra.agent.driver import AgentContext, Driver
from pydra.agent.entry import SpawnedBackend
from pydra.agent.metrics_and_events import Reports
from pydra.agent.orphans_and_memory import reap_orphans, return_memory
from pydra.errors import KubeError, SettingsError, Unsupported
from pydra.kube.api_resources import EVENTS, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES
from pydra.kube.client import KubeClient
from pydra.kube.credentials import load_credentials
from pydra.kube.event_recorder import EventRecorder
from pydra.kube.version import check_server
from pydra.observability.http import serve_http
from pydra.observability.metrics import Metrics
from pydra.observability.tracing import open_tracer
from pydra.settings import EVENT_CONTROLLER, Settings

_log = logging.getLogger(__name__)
_CLUSTER_RETRY_SECONDS = 30.0
REQUESTS = {
    RESOURCE_CLAIMS: ("get",),
    RESOURCE_SLICES: ("list", "watch", "create", "update", "delete"),
    EVENTS: ("create", "patch"),
    NODES: ("get",),
}
"""Requests of the agent to the API server, as its ClusterRole allows it; a migration may also list claims."""


async def serve(settings: Settings, backends: Sequence[SpawnedBackend], reread: Callable[[], Settings]) -> None:
    """Serve the backends on this node until a signal says to stop.

    `reread` gives the settings as they are at a SIGHUP, and applies those of the log.

    Raises:
        SettingsError: there are no API server credentials, an address is in use.
    """
    metrics = Metrics()
    metrics.build.labels(__version__).set(1)
    metrics.announce_requests((verb, resource.full_name) for resource, verbs in REQUESTS.items() for verb in verbs)
    stop = anyio.Event()
    credentials = await load_credentials(
        environ=os.environ, kubeconfig=settings.kubeconfig, verify_x509_strict=settings.verify_x509_strict
    )
    async with AsyncExitStack() as stack:
        counts = Reports(metrics, lambda _: None, node=settings.node_name)
        agent = f"pydra-agent/{__version__}"
        client = await stack.enter_async_context(KubeClient(credentials, user_agent=agent, report=counts))
        recorder = EventRecorder(
            client,
            controller=EVENT_CONTROLLER,
            instance=settings.event_instance,
            report=lambda result: metrics.events.labels(result).inc(),
        )
        tracer = open_tracer(os.environ, node=settings.node_name, version=__version__)
        context = AgentContext(settings=settings, client=client, metrics=metrics, record=recorder.record, tracer=tracer)
        cluster = Cluster(client, Reports(metrics, recorder.record, node=settings.node_name))
        drivers = [Driver(backend, context) for backend in backends]
        if endpoint := settings.http_endpoint:
            missing = _build_readiness(client, cluster, drivers)
            await stack.enter_async_context(serve_http(*endpoint, metrics=metrics, missing=missing))
        tasks = await stack.enter_async_context(anyio.create_task_group())
        await tasks.start(_handle_signals, settings, reread, stop)
        tasks.start_soon(recorder.run, name="Events")
        tasks.start_soon(cluster.run, name="version of the cluster")
        tasks.start_soon(return_memory, name="memory")
        tasks.start_soon(reap_orphans, name="orphans")
        names = ", ".join(str(backend.source) for backend in backends)
        _log.info("pydra %s serves %s on node %s", __version__, names, settings.node_name)
        async with anyio.create_task_group() as serving:
            for driver in drivers:
                serving.start_soon(driver.run, stop, name=f"driver of {driver.backend}")
        _log.info("stopped; what is prepared stays prepared")
        tasks.cancel_scope.cancel()


class Cluster:
    """Checks periodically whether the cluster is supported, until it is; an upgrade is noticed.

    `missing` says why nothing can be served; it is empty if no reason is known.
    """

    def __init__(self, client: KubeClient, reports: Reports) -> None:
        self._client = client
        self._reports = reports
        self.missing = ""

    async def run(self) -> None:
        """Run until the cluster is supported."""
        while True:
            try:
                version = await check_server(self._client)
            except Unsupported as error:
                self.missing = str(error)
                _log.error("%s", error)
                self._reports.cluster_unsupported(error)
            except KubeError as error:
                _log.error("%s", error)
            else:
                break
            await anyio.sleep(_CLUSTER_RETRY_SECONDS)
        self.missing = ""
        self._reports.cluster_supported()
        _log.info("the cluster runs Kubernetes %s", version)


async def _handle_signals(
    settings: Settings,
    reread: Callable[[], Settings],
    stop: anyio.Event,
    *,
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        task_status.started()
        async for number in signals:
            if number == signal.SIGHUP:
                _reload_settings(settings, reread)
            elif stop.is_set():
                _log.warning("second signal to stop: calls in flight are cancelled")
                raise KeyboardInterrupt
            else:
                _log.info("stopping on %s: calls in flight end first", signal.Signals(number).name)
                stop.set()


def _reload_settings(settings: Settings, reread: Callable[[], Settings]) -> None:
    """Apply the log settings at once; log which other settings have changed and need a restart."""
    try:
        fresh = reread()
    except SettingsError as error:
        _log.error("the settings are unchanged, because those in the file are invalid: %s", error)
        return
    later = [name for name in settings.__struct_fields__ if not name.startswith("log_")]
    changed = [name for name in later if getattr(fresh, name) != getattr(settings, name)]
    _log.info("settings read again%s", f"; need a restart: {', '.join(changed)}" if changed else "")


def _build_readiness(client: KubeClient, cluster: Cluster, drivers: Sequence[Driver]) -> Callable[[], Sequence[str]]:
    return lambda: [
        text for text in (client.problem(), cluster.missing, *(driver.missing() for driver in drivers)) if text
    ]
