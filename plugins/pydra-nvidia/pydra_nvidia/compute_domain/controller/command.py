"""`pydra-compute-domain controller`: its flags and variables, and the process."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

import anyio

from pydra import SettingsError, __version__
from pydra.controllers import (
    KubeClient,
    LeaderElection,
    LeaseTimes,
    LostLease,
    build_event_recorder,
    load_credentials,
    serve_http,
)
from pydra_nvidia.compute_domain.controller.controller import Controller, log
from pydra_nvidia.compute_domain.controller.metrics import ControllerMetrics
from pydra_nvidia.compute_domain.controller.settings import ControllerSettings
from pydra_nvidia.compute_domain.names import MAX_NODES

NAME = "pydra-compute-domain-controller"


def add_arguments(parser: argparse.ArgumentParser, environ: Mapping[str, str]) -> None:
    """The controller's flags; a variable of the environment is the default of each."""

    def add(flag: str, variable: str, default: str, text: str) -> None:
        parser.add_argument(flag, default=environ.get(variable, default), metavar="VALUE", help=f"{text} (${variable})")

    add("--namespace", "NAMESPACE", "", "where the daemons are: the namespace of this pod")
    add("--daemon-image", "DAEMON_IMAGE", "", "the image of the daemons")
    add("--image-pull-policy", "DAEMON_IMAGE_PULL_POLICY", "IfNotPresent", "of the daemons' image")
    add("--image-pull-secrets", "DAEMON_IMAGE_PULL_SECRETS", "", "names, with commas between")
    add("--service-account", "DAEMON_SERVICE_ACCOUNT", "compute-domain-daemon-service-account", "of the daemons' pods")
    add("--priority-class", "DAEMON_PRIORITY_CLASS", "", "of the daemons' pods")
    add("--max-nodes", "MAX_NODES_PER_IMEX_DOMAIN", str(MAX_NODES), "how many nodes one clique of a domain may have")
    add("--imex", "IMEX_MODE", "driverManaged", "driverManaged, or hostManaged where the hosts run nvidia-imex")
    add("--tls-secret", "IMEX_TLS_SECRET", "", "a Secret with tls.crt, tls.key and ca.crt: daemons use TLS")
    add("--selinux-type", "DAEMON_SELINUX_TYPE", "", "of the daemons' containers, such as spc_t")
    add("--kubeconfig", "KUBECONFIG", "", "kubeconfig file; default: the pod's service account")
    add("--identity", "POD_NAME", socket.gethostname(), "the name of this instance")
    add("--leader-election", "LEADER_ELECTION", "true", "true, or false for a single instance")
    add("--lease-seconds", "LEASE_SECONDS", "15", "after how long another instance takes over from one that is silent")
    add("--http-address", "HTTP_ADDRESS", "", "HOST:PORT of /metrics, /healthz and /readyz; empty to disable")
    add("--log-format", "PYDRA_LOG_FORMAT", "auto", "text, json, or auto")
    add("--log-level", "PYDRA_LOG_LEVEL", "info", "debug, info, warning or error")


def parse_settings(given: argparse.Namespace) -> ControllerSettings:
    """The settings that decisions depend on. Raises SettingsError with all problems."""
    problems = []
    if not given.namespace:
        problems.append("namespace: missing; name the namespace of the daemons with --namespace or NAMESPACE")
    if given.imex not in ("driverManaged", "hostManaged"):
        problems.append(f'imex: found "{given.imex}", allowed: driverManaged, hostManaged')
    host_managed = given.imex == "hostManaged"
    if not given.daemon_image and not host_managed:
        problems.append("daemonImage: missing; name the image of the daemons with --daemon-image or DAEMON_IMAGE")
    if not (given.max_nodes.isdecimal() and 1 <= int(given.max_nodes) <= 9999):
        problems.append(f'maxNodes: found "{given.max_nodes}", allowed: 1 to 9999')
    if given.leader_election not in ("true", "false"):
        problems.append(f'leaderElection: found "{given.leader_election}", allowed: true, false')
    if _parse_lease(given.lease_seconds) is None:
        problems.append(f'leaseSeconds: found "{given.lease_seconds}", allowed: a number of at least 1')
    if problems:
        raise SettingsError(problems)
    return ControllerSettings(
        namespace=given.namespace,
        daemon_image=given.daemon_image,
        image_pull_policy=given.image_pull_policy,
        image_pull_secrets=tuple(name for name in given.image_pull_secrets.split(",") if name),
        service_account=given.service_account,
        priority_class=given.priority_class,
        max_nodes=int(given.max_nodes),
        host_managed=host_managed,
        tls_secret=given.tls_secret,
        selinux_type=given.selinux_type,
        daemon_log_level=given.log_level,
    )


def _parse_lease(text: str) -> LeaseTimes | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    if not 1 <= seconds <= 3600:
        return None
    return LeaseTimes(duration=seconds, renew_deadline=seconds * 2 / 3, retry_period=seconds * 2 / 15)


def run(given: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT; return the exit code. Raises SettingsError."""
    settings = parse_settings(given)
    try:
        asyncio.run(_serve(given, settings))
    except BaseExceptionGroup as group:
        # Not by `except*`: on Python 3.11.2 what is raised inside it leaves in a group again.
        lost, others = group.split(LostLease)
        if lost is None or others is not None:
            raise
        log.error("the Lease is lost: another instance acts from now on, and this one ends")
        return 1
    return 0


async def _serve(given: argparse.Namespace, settings: ControllerSettings) -> None:
    credentials = await load_credentials(environ=os.environ, kubeconfig=given.kubeconfig)
    metrics = ControllerMetrics()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(KubeClient(credentials, user_agent=f"{NAME}/{__version__}"))
        recorder = build_event_recorder(client, controller=NAME, instance=given.identity)
        election = None
        if given.leader_election == "true":
            times = _parse_lease(given.lease_seconds) or LeaseTimes()
            election = LeaderElection(
                client, namespace=settings.namespace, name=NAME, identity=given.identity, times=times
            )
        controller = Controller(client, settings, recorder, election, metrics)
        if endpoint := parse_endpoint(given.http_address):
            missing = _build_readiness(client)
            await stack.enter_async_context(serve_http(*endpoint, metrics=metrics, missing=missing))
        signals = stack.enter_context(anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(recorder.run, name="Events")
            tasks.start_soon(controller.run, name="controller")
            log.info("pydra %s, controller of ComputeDomains, daemons in namespace %s", __version__, settings.namespace)
            async for number in signals:
                log.info("stopping on %s", signal.Signals(number).name)
                break
            tasks.cancel_scope.cancel()
        if election is not None:
            await election.release()


def _build_readiness(client: KubeClient) -> Callable[[], list[str]]:
    return lambda: [text for text in (client.problem(),) if text]


def parse_endpoint(text: str) -> tuple[str, int] | None:
    """HOST:PORT; None if empty. Raises SettingsError."""
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise SettingsError([f'httpAddress: found "{text}", allowed: HOST:PORT, such as 0.0.0.0:9465'])
    return host.strip("[]"), int(port)
