"""`pydra-compute-domain daemon`: the process in the pods of a domain's DaemonSet."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack

import anyio

from pydra import SettingsError, __version__
from pydra.controllers import KubeClient, load_credentials, serve_http
from pydra_nvidia.compute_domain.daemon.daemon import Daemon, log
from pydra_nvidia.compute_domain.daemon.metrics import DaemonMetrics
from pydra_nvidia.compute_domain.daemon.settings import DaemonSettings, parse_settings
from pydra_nvidia.compute_domain.names import READY_PORT


def add_arguments(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """The daemon has variables, which its DaemonSet and CDI set, and hardly a flag."""

    def add(flag: str, variable: str, default: str, text: str) -> None:
        parser.add_argument(flag, default=environ.get(variable, default), metavar="VALUE", help=f"{text} (${variable})")

    add("--ready-port", "READY_PORT", str(READY_PORT), "where /readyz, /healthz and /metrics are served")
    add("--kubeconfig", "KUBECONFIG", "", "kubeconfig file; default: the pod's service account")
    add("--log-format", "PYDRA_LOG_FORMAT", "auto", "text, json, or auto")
    add("--log-level", "PYDRA_LOG_LEVEL", "info", "debug, info, warning or error")


def run(given: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; return the exit code. Raises SettingsError."""
    if not given.ready_port.isdecimal() or int(given.ready_port) > 65535:
        raise SettingsError([f'readyPort: found "{given.ready_port}", allowed: 0 to 65535'])
    settings = parse_settings(os.environ)
    try:
        asyncio.run(_serve(given, settings))
    except BaseExceptionGroup as group:
        # Not by `except*`: on Python 3.11.2 what is raised inside it leaves in a group again.
        wrong, others = group.split((SettingsError, OSError))
        if wrong is None or others is not None:
            raise
        raise SettingsError([str(error) for error in wrong.exceptions]) from group
    return 0


async def _serve(given: argparse.Namespace, settings: DaemonSettings) -> None:
    credentials = await load_credentials(environ=os.environ, kubeconfig=given.kubeconfig)
    async with AsyncExitStack() as stack:
        agent = f"pydra-compute-domain-daemon/{__version__}"
        client = await stack.enter_async_context(KubeClient(credentials, user_agent=agent))
        metrics = DaemonMetrics()
        daemon = Daemon(client, settings, metrics)
        port = int(given.ready_port)
        await stack.enter_async_context(serve_http(settings.address, port, metrics=metrics, missing=daemon.missing))
        signals = stack.enter_context(anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(daemon.run, name="daemon")
            log.info("pydra %s, daemon of ComputeDomain %s on node %s", __version__, settings.domain, settings.node)
            async for number in signals:
                log.info("stopping on %s", signal.Signals(number).name)
                break
            tasks.cancel_scope.cancel()
