"""An embedded node: control plane and kubelet in this process, the real agent in one of its own.

Everything lives below one temporary directory and on loopback; the agent finds the same sockets,
directories and API as on a node of a cluster.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec
from anyio.abc import Process

from pydra.backends.discovery import extend_module_path, is_target, locate_file, variable_prefix
from pydra.backends.process_command import CHILD
from pydra.diagnosis.held_claims import judge_left_over, read_records
from pydra.errors import SettingsError
from pydra.kube.client import KubeClient
from pydra.kube.credentials import load_credentials
from pydra.settings import Settings, parse_settings
from pydra.yaml_documents import decode_yaml
from pydra_dev.api.kinds import NODES, PODS
from pydra_dev.api.pod_fields import build_condition, set_condition
from pydra_dev.apiserver.discovery import DEFAULT_VERSION, parse_release
from pydra_dev.apiserver.server import ApiServer
from pydra_dev.apiserver.verbs import Api, Query
from pydra_dev.control_plane import serve_control_plane
from pydra_dev.kubelet.claim_info_cache import ClaimCache, ClaimInfo
from pydra_dev.kubelet.kubelet import ignore_containers, run_kubelet
from pydra_dev.kubelet.observations import Report
from pydra_dev.kubelet.pod_workers import StopContainers
from pydra_dev.kubelet.settings import KubeletSettings

_PORTS_TRIED = 1000
STOP_DEADLINE = 30.0
"""Seconds that the agent gets to drain; then it is killed."""
LOG_TAIL, LOG_WIDTH = 20, 300
LONGEST_PLACE = 16
"""Characters of a directory for temporary files in which sockets still have names."""


class EmbeddedNode:
    """A running node: `client` reaches its API server, `settings` are those of its kubelet."""

    def __init__(self, root: str, server: ApiServer, client: KubeClient, settings: KubeletSettings) -> None:
        self.root = root
        self.server = server
        self.client = client
        self.settings = settings

    @property
    def cdi_directory(self) -> str:
        """Where the agent writes CDI specs and the runtime reads them."""
        return self.settings.cdi_directories[-1]

    def agent_arguments(self, backend: str, http_address: str) -> list[str]:
        """The arguments of an agent of this node."""
        places = {**self._places, "httpAddress": http_address, "logFormat": "text", "logFile": ""}
        flags = {re.sub("([A-Z])", r"-\1", name).lower(): value for name, value in places.items()}
        return ["--backend", backend, *(part for name, value in flags.items() for part in (f"--{name}", value))]

    @property
    def _places(self) -> dict[str, str]:
        """The settings of the agent that are this node's."""
        return {
            "nodeName": self.settings.node_name,
            "kubeconfig": str(self.server.kubeconfig),
            "kubeletRoot": self.settings.root,
            "recordsDir": f"{self.root}/run",
            "cdiDir": self.cdi_directory,
        }

    def read_settings(self) -> Settings:
        """Where the agent of this node keeps its records."""
        return parse_settings({"backends": ["any:"], **self._places})

    def find_held(self) -> tuple[ClaimInfo, ...]:
        """The claims that the kubelet still has to have unprepared."""
        cache = ClaimCache(self.settings.claim_checkpoint)
        cache.load()
        return cache.infos()

    def find_left_over(self) -> tuple[str, ...]:
        """What the agent's records say of claims that nobody will unprepare any more."""
        return tuple(one.found for one in judge_left_over(read_records(self.read_settings())))

    def write_settings(self, backend: str, http_address: str, config: str | None) -> Path:
        """Write the file of PYDRA_CONFIG with which `pydra doctor` and the like find this node.

        `config` is the agent's own file, whose other settings stay.
        """
        given = decode_yaml(Path(config).read_bytes()) if config else None
        path = Path(self.root, "config.json")
        settings = {"backends": [locate_file(backend)[0]], **self._places, "httpAddress": http_address}
        path.write_bytes(msgspec.json.encode({**(given or {}), **settings}))
        return path


END_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit("pydra dev has ended")
"""
"""Before the code of a process that runs until `pydra dev` ends, however that ends; the first argument is its pid."""
_START = f"{END_WITH_PARENT}from pydra.cli.agent import main\nsys.exit(main())"


class AgentProcess:
    """The agent at work; `log` is the file that has all it said."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], log: Path, http_address: str) -> None:
        self.log = log
        self.http_address = http_address
        self._arguments = arguments
        self._environ = environ
        self._process: Process

    async def start(self) -> None:
        """Start it, or start it again after it has ended."""
        # In a session of its own, so that a Ctrl-C at the terminal reaches `pydra dev`, which stops it in order.
        with open(self.log, "ab") as stream:  # noqa: ASYNC230 - a file that nobody waits for
            self._process = await anyio.open_process(
                [sys.executable, "-c", _START, str(os.getpid()), *self._arguments],
                stdin=None,
                stdout=stream,
                stderr=stream,
                env=self._environ,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def find_backends(self) -> tuple[int, ...]:
        """The processes of its backends, as they are now; none while one is restarted."""
        found = []
        for thread in Path(f"/proc/{self.pid}/task").glob("*/children"):
            with suppress(OSError):  # it has ended since
                found += [int(child) for child in thread.read_text().split() if _is_backend(child)]
        return tuple(sorted(found))

    @property
    def returncode(self) -> int | None:
        """How it ended; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for its end; the exit status."""
        return await self._process.wait()

    def log_tail(self) -> str:
        """The last lines that it logged."""
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(line[:LOG_WIDTH] for line in lines[-LOG_TAIL:])

    async def stop(self) -> int:
        """Ask it to stop, wait for it, and kill it if it does not; its exit status."""
        with anyio.CancelScope(shield=True):
            if self._process.returncode is None:
                self._process.send_signal(signal.SIGTERM)
            with anyio.move_on_after(STOP_DEADLINE):
                await self._process.wait()
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()
        await self._process.aclose()
        status = self._process.returncode
        assert status is not None  # it was waited for
        return status


def _is_backend(pid: str) -> bool:
    try:
        return CHILD.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def make_root() -> tempfile.TemporaryDirectory[str]:
    """A directory for a node, removed at the end of the `with` block."""
    # Paths of sockets end at 107 bytes, and TMPDIR may be long.
    is_short = len(tempfile.gettempdir()) <= LONGEST_PLACE or not os.access("/tmp", os.W_OK)  # noqa: S108
    return tempfile.TemporaryDirectory(prefix="pydra-", dir=None if is_short else "/tmp")  # noqa: S108


@asynccontextmanager
async def run_node(
    report: Report,
    *,
    node_name: str = "embedded-node",
    root: str = "",
    stop_containers: StopContainers = ignore_containers,
    version: str = DEFAULT_VERSION,
    probes: bool = False,
    **options: Any,
) -> AsyncIterator[EmbeddedNode]:
    """A node that lives as long as the block, its kubelet's steps told to `report`; `options` are the API server's.

    `version` is the Kubernetes release of the API server and the kubelet. The node is below `root`, an empty directory
    of the caller's, or else below one that is removed at the end.
    `stop_containers` is awaited before the claims of a pod are unprepared; `probes` is that of `join_node`.
    """
    with nullcontext(root) if root else make_root() as place, _reserve_network() as network:
        settings = _build_settings(place, node_name, parse_release(version).minor, network, probes=probes)
        async with serve_control_plane(kubeconfig=Path(place, "kubeconfig"), version=version, **options) as server:
            credentials = await load_credentials(environ={}, kubeconfig=str(server.kubeconfig))
            async with (
                KubeClient(credentials, user_agent="pydra-dev") as client,
                _run_kubelet(EmbeddedNode(place, server, client, settings), report, stop_containers) as node,
            ):
                yield node


@asynccontextmanager
async def join_node(
    first: EmbeddedNode,
    report: Report,
    *,
    node_name: str,
    stop_containers: StopContainers = ignore_containers,
    probes: bool = False,
) -> AsyncIterator[EmbeddedNode]:
    """Another node of the same control plane, below the directory of the first; its kubelet ends with the block.

    With `probes` its pods are ready when their readiness probes are answered, so something must run for them.
    """
    place = f"{first.root}/{node_name}"
    with _reserve_network() as network:
        settings = _build_settings(place, node_name, first.settings.minor, network, probes=probes)
        joined = EmbeddedNode(place, first.server, first.client, settings)
        async with _run_kubelet(joined, report, stop_containers) as node:
            yield node


@contextmanager
def _reserve_network() -> Iterator[str]:
    """The first half of addresses of loopback that no other node on this machine has, as long as the block lasts.

    Raises OSError.
    """
    with socket.socket(socket.AF_UNIX) as lock:  # an abstract name ends with its process
        for network in (f"127.{number}" for number in range(1, 256)):
            with suppress(OSError):
                lock.bind(f"\0pydra-dev/{network}")
                break
        else:
            raise OSError("nodes of `pydra dev` have all addresses from 127.1.0.0 to 127.255.255.255; end one of them")
        yield network


def _build_settings(place: str, node_name: str, minor: int, network: str, *, probes: bool = False) -> KubeletSettings:
    return KubeletSettings(
        node_name=node_name,
        root=f"{place}/kubelet",
        cdi_directories=(f"{place}/cdi",),
        minor=minor,
        pod_network=network,
        probes=probes,
    )


@asynccontextmanager
async def _run_kubelet(
    node: EmbeddedNode, report: Report, stop_containers: StopContainers
) -> AsyncIterator[EmbeddedNode]:
    for directory in (node.settings.registry, f"{node.settings.root}/plugins", node.cdi_directory):
        os.makedirs(directory)
    async with anyio.create_task_group() as tasks:
        await tasks.start(run_kubelet, node.settings, node.client, report, stop_containers)
        try:
            yield node
        finally:
            tasks.cancel_scope.cancel()


def mark_lost(api: Api, node_name: str) -> None:
    """What the node lifecycle controller writes 40 s after a node's kubelet has fallen silent."""
    node = api.get(NODES, node_name)
    unknown = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    status = {**node["status"], "conditions": [{**unknown, "message": "Kubelet stopped posting node status."}]}
    api.write_status(NODES, node, status)
    for pod in api.list(PODS, Query(field_selector=f"spec.nodeName={node_name}")).items:
        not_ready = build_condition("Ready", status=False, now=api.now, reason="NodeNotReady")
        api.write_status(PODS, pod, set_condition(pod["status"], not_ready))


@asynccontextmanager
async def run_agent(
    node: EmbeddedNode, backend: str, environment: Mapping[str, str], flags: Sequence[str] = ()
) -> AsyncIterator[AgentProcess]:
    """The real agent beside the node, stopped at the end of the block.

    A backend may be a file, or a `module:attribute` in the working directory. Of this process' variables the agent
    gets none of its own settings, only those of the backend.
    """
    address = f"127.0.0.1:{free_port()}"
    target, directory = locate_file(backend)
    theirs = f"{variable_prefix(target)}_"
    others = {name for name in os.environ if name.startswith("PYDRA_") and not name.startswith(theirs)}
    kept = {name: value for name, value in os.environ.items() if name not in others}
    environ = {**extend_module_path(kept, [directory] if is_target(target) else []), **environment}
    arguments = [*node.agent_arguments(target, address), *flags]
    agent = AgentProcess(arguments, environ, Path(node.root, "agent.log"), address)
    await agent.start()
    try:
        yield agent
    finally:
        await agent.stop()


def scenario_environment(backend: str, scenario: str | None, root: str) -> dict[str, str]:
    """The variables that give a simulated backend its scenario and where its state belongs.

    A bare name is left to the backend, which may come with scenarios; raises SettingsError for a file that is missing.
    """
    prefix = variable_prefix(locate_file(backend)[0])
    variables = {f"{prefix}_STATE": f"{root}/hardware"}
    if scenario:
        if not os.path.exists(scenario) and (os.sep in scenario or scenario.endswith((".yaml", ".yml", ".json"))):
            raise SettingsError([f"--scenario: there is no file {scenario}"])
        variables[f"{prefix}_SCENARIO"] = os.path.abspath(scenario) if os.path.exists(scenario) else scenario
    return variables


def free_port() -> int:
    """A port that nobody listens on, below those that Linux gives to clients, which could take it until it is bound.

    Raises OSError with what to do.
    """
    why = ""
    for _ in range(_PORTS_TRIED):
        port = random.randrange(10_000, 32_000)  # noqa: S311 - not a secret
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                probe.listen()
            except OSError as error:
                why = error.strerror or str(error)
            else:
                return port
    raise OSError(f"no port of 127.0.0.1 can be listened on ({why}); end what listens there, or `ip link set lo up`")
