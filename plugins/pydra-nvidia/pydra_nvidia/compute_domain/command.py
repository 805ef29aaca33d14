"""The command `pydra-compute-domain`: the controller of a cluster, and the daemon in each pod of its DaemonSets."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from enum import Enum
from typing import Any, TypeVar

import anyio

from pydra import SettingsError, __version__
from pydra.controllers import (
    EventRecorder,
    KubeClient,
    LeaderElection,
    LogFormat,
    LogLevel,
    LostLease,
    configure_logs,
    load_credentials,
    serve_http,
)
from pydra_nvidia.compute_domain.controller.controller import Controller
from pydra_nvidia.compute_domain.controller.metrics import ControllerMetrics
from pydra_nvidia.compute_domain.controller.settings import CONTROLLER, parse_controller_settings
from pydra_nvidia.compute_domain.daemon.daemon import Daemon
from pydra_nvidia.compute_domain.daemon.metrics import DaemonMetrics
from pydra_nvidia.compute_domain.daemon.settings import parse_settings
from pydra_nvidia.compute_domain.names import MAX_NODES, READY_PORT

log = logging.getLogger("pydra_nvidia.compute_domain")
E = TypeVar("E", bound=Enum)

CONTROLLER_FLAGS = (
    ("--namespace", "NAMESPACE", "", "where the daemons are: the namespace of this pod"),
    ("--daemon-image", "DAEMON_IMAGE", "", "the image of the daemons"),
    ("--image-pull-policy", "DAEMON_IMAGE_PULL_POLICY", "IfNotPresent", "of the daemons' image"),
    ("--image-pull-secrets", "DAEMON_IMAGE_PULL_SECRETS", "", "names, with commas between"),
    ("--service-account", "DAEMON_SERVICE_ACCOUNT", "compute-domain-daemon-service-account", "of the daemons' pods"),
    ("--priority-class", "DAEMON_PRIORITY_CLASS", "", "of the daemons' pods"),
    ("--max-nodes", "MAX_NODES_PER_IMEX_DOMAIN", str(MAX_NODES), "how many nodes one clique of a domain may have"),
    ("--imex", "IMEX_MODE", "driverManaged", "driverManaged, or hostManaged where the hosts run nvidia-imex"),
    ("--tls-secret", "IMEX_TLS_SECRET", "", "a Secret with tls.crt, tls.key and ca.crt: daemons use TLS"),
    ("--selinux-type", "DAEMON_SELINUX_TYPE", "", "of the daemons' containers, such as spc_t"),
    ("--identity", "POD_NAME", socket.gethostname(), "the name of this instance"),
    ("--leader-election", "LEADER_ELECTION", "true", "true, or false for a single instance"),
    ("--lease-seconds", "LEASE_SECONDS", "15", "after how long another instance takes over from one that is silent"),
    ("--http-address", "HTTP_ADDRESS", "", "HOST:PORT of /metrics, /healthz and /readyz; empty to disable"),
)
DAEMON_FLAGS = (("--ready-port", "READY_PORT", str(READY_PORT), "where /readyz, /healthz and /metrics are served"),)
"""Hardly any: the DaemonSet and CDI set variables."""
_FLAGS_OF_BOTH = (
    ("--kubeconfig", "KUBECONFIG", "", "kubeconfig file; default: the pod's service account"),
    ("--log-format", "PYDRA_LOG_FORMAT", "auto", "text, json, or auto"),
    ("--log-level", "PYDRA_LOG_LEVEL", "info", "debug, info, warning or error"),
)


def add_arguments(
    parser: argparse.ArgumentParser, flags: Sequence[tuple[str, str, str, str]], environ: Mapping[str, str]
) -> None:
    """Add the flags of a part; a variable of the environment is the default of each."""
    for flag, variable, default, text in (*flags, *_FLAGS_OF_BOTH):
        parser.add_argument(flag, default=environ.get(variable, default), metavar="VALUE", help=f"{text} (${variable})")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the parts until SIGTERM or SIGINT; return the exit code."""
    parser = argparse.ArgumentParser(prog="pydra-compute-domain", description=__doc__, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=__version__)
    parts = parser.add_subparsers(dest="part", required=True)
    add_arguments(parts.add_parser("controller", help="make what ComputeDomains need"), CONTROLLER_FLAGS, os.environ)
    add_arguments(parts.add_parser("daemon", help="run nvidia-imex on one node"), DAEMON_FLAGS, os.environ)
    given = parser.parse_args(arguments)
    is_controller = given.part == "controller"
    try:
        level = _parse(LogLevel, "logLevel", given.log_level)
        configure_logs(level=level, form=_parse(LogFormat, "logFormat", given.log_format), file="")
        asyncio.run(_serve_controller(given) if is_controller else _serve_daemon(given))
    except SettingsError as error:
        return _print_problems(error.problems)
    except BaseExceptionGroup as group:
        # Not by `except*`: on Python 3.11.2 what is raised inside it leaves in a group again.
        expected, others = group.split(LostLease if is_controller else (SettingsError, OSError))
        if expected is None or others is not None:
            raise
        if not is_controller:
            return _print_problems([str(error) for error in expected.exceptions])
        log.error("%s; this instance ends, and the next one that can renew the Lease acts", _find_first(expected))
        return 1
    return 0


def _find_first(error: BaseException) -> BaseException:
    return _find_first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _print_problems(problems: Sequence[str]) -> int:
    sys.stderr.write("".join(f"pydra-compute-domain: {problem}\n" for problem in problems))
    return 2


def _parse(kind: type[E], name: str, text: str) -> E:
    try:
        return kind(text)
    except ValueError as error:
        allowed = ", ".join(str(one.value) for one in kind)
        raise SettingsError([f'{name}: found "{text}", allowed: {allowed}']) from error


async def _serve_controller(given: argparse.Namespace) -> None:
    settings, times = parse_controller_settings(given)
    metrics = ControllerMetrics()
    metrics.build.labels(__version__).set(1)
    async with AsyncExitStack() as stack:
        client = await _open_client(stack, given, CONTROLLER)
        recorder = EventRecorder(client, controller=CONTROLLER, instance=given.identity)
        election = None
        if times is not None:
            election = LeaderElection(
                client, namespace=settings.namespace, name=CONTROLLER, identity=given.identity, times=times
            )
        controller = Controller(client, settings, recorder, election, metrics)

        def list_missing() -> list[str]:
            return [*([text] if (text := client.problem()) else []), *controller.missing()]

        if endpoint := _parse_endpoint(given.http_address):
            await stack.enter_async_context(serve_http(*endpoint, metrics=metrics, missing=list_missing))
        what = f"controller of ComputeDomains, daemons in namespace {settings.namespace}"
        await _run_until_signal(what, {"Events": recorder.run, "controller": controller.run})
        if election is not None:
            await election.release()


async def _serve_daemon(given: argparse.Namespace) -> None:
    if not given.ready_port.isdecimal() or int(given.ready_port) > 65535:
        raise SettingsError([f'readyPort: found "{given.ready_port}", allowed: 0 to 65535'])
    settings = parse_settings(os.environ)
    metrics = DaemonMetrics()
    metrics.build.labels(__version__).set(1)
    async with AsyncExitStack() as stack:
        client = await _open_client(stack, given, "pydra-compute-domain-daemon")
        daemon = Daemon(client, settings, metrics)
        port = int(given.ready_port)
        await stack.enter_async_context(serve_http(settings.address, port, metrics=metrics, missing=daemon.missing))
        what = f"daemon of ComputeDomain {settings.domain} on node {settings.node}"
        await _run_until_signal(what, {"daemon": daemon.run})


async def _open_client(stack: AsyncExitStack, given: argparse.Namespace, name: str) -> KubeClient:
    credentials = await load_credentials(environ=os.environ, kubeconfig=given.kubeconfig)
    return await stack.enter_async_context(KubeClient(credentials, user_agent=f"{name}/{__version__}"))


async def _run_until_signal(what: str, works: Mapping[str, Callable[[], Coroutine[Any, Any, None]]]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with anyio.create_task_group() as tasks:
            for name, work in works.items():
                tasks.start_soon(work, name=name)
            log.info("pydra %s, %s", __version__, what)
            async for number in signals:
                log.info("stopping on %s", signal.Signals(number).name)
                break
            tasks.cancel_scope.cancel()


def _parse_endpoint(text: str) -> tuple[str, int] | None:
    """HOST:PORT; None if empty. Raises SettingsError."""
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise SettingsError([f'httpAddress: found "{text}", allowed: HOST:PORT, such as 0.0.0.0:9465'])
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    sys.exit(main())
