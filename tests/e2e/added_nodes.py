"""Nodes beside those of the cluster, each a Node object, an embedded kubelet, and an agent as a process here.

Their containers are simulated, except those of the programs `runs`, which run as processes of this machine. Nothing
else is scheduled on them, as they have a taint. Their kubelets renew no Lease, but the status of their Node.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from pydra.errors import KubeError, NotFound
from pydra.kube.api_resources import NODES, PODS, RESOURCE_SLICES, JsonObject
from pydra_dev.kubelet.kubelet import build_node, run_kubelet
from pydra_dev.kubelet.observations import ContainerCreated, Step
from pydra_dev.kubelet.settings import KubeletSettings
from pydra_dev.node import AgentProcess
from tests.e2e.cluster import Cluster

TAINT = {"key": "example.com/pydra-e2e", "effect": "NoSchedule"}
TOLERATION = {"key": TAINT["key"], "operator": "Exists"}
HEARTBEAT_SECONDS = 5.0
EMBEDDED = "pydra-embedded"
"""In the version of kubelets whose cluster has no node lifecycle controller."""


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class AddedNode:
    """One node, from `serve` to `lose`: its files are below `place`."""

    def __init__(self, nodes: AddedNodes, name: str, number: int, place: Path) -> None:
        self.name = name
        self.place = place
        self.created: dict[str, ContainerCreated] = {}
        self._nodes = nodes
        self._programs: dict[str, list[subprocess.Popen[bytes]]] = {}
        self._scope = anyio.CancelScope()
        self._left = anyio.Event()
        self._settings = KubeletSettings(
            node_name=name,
            root=f"{place}/kubelet",
            cdi_directories=(f"{place}/cdi",),
            pod_network=f"127.{number}",
            probes=True,
        )
        self._node = build_node(self._settings, now())
        self._agent = nodes.build_agent(self)

    @property
    def kubelet_root(self) -> str:
        return self._settings.root

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        client = self._nodes.cluster.client
        for directory in (self._settings.registry, f"{self._settings.root}/plugins", f"{self.place}/cdi"):
            os.makedirs(directory)
        await client.create(NODES, {**self._node, "spec": {"taints": [TAINT]}})
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._beat)
                    await tasks.start(run_kubelet, self._settings, client, self._report, self._stop_pod)
                    await self._agent.start()
                    task_status.started()
                    await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for pod in tuple(self._programs):
                    await self._stop_pod(pod)
                await self._agent.stop()
                self._left.set()

    async def lose(self) -> None:
        """Its power fails."""
        for program in [one for programs in self._programs.values() for one in programs]:
            os.killpg(program.pid, signal.SIGKILL)  # nvidia-imex, which a daemon has started, too
        with suppress(ProcessLookupError):
            os.kill(self._agent.pid, signal.SIGKILL)
        await self.end()

    async def end(self) -> None:
        """Its processes end in order."""
        self._scope.cancel()
        await self._left.wait()

    def find_left(self) -> list[str]:
        """CDI specs and records of claims."""
        return [str(path) for name in ("cdi", "run") for path in (self.place / name).rglob("*.*") if path.is_file()]

    async def _beat(self) -> None:
        status: Any = self._node["status"]
        (ready,) = status["conditions"]
        while True:
            conditions = [{**ready, "lastHeartbeatTime": now()}]
            with suppress(KubeError):
                await self._nodes.cluster.client.patch(
                    NODES, self.name, {"status": {"conditions": conditions}}, subresource="status"
                )
            await anyio.sleep(HEARTBEAT_SECONDS)

    def _report(self, step: Step) -> None:
        if isinstance(step, ContainerCreated):
            self.created[step.pod] = step
            if (variables := self._nodes.runs.get(next(iter(step.after.args), ""))) is not None:
                self._start_program(step, variables)

    def _start_program(self, step: ContainerCreated, variables: Mapping[str, str]) -> None:
        places = {one.container_path: one.host_path for one in step.after.mounts}
        given = dict(one.split("=", 1) for one in step.after.env if not one.startswith("PATH="))
        hosts = self.place / f"hosts-{step.pod.replace('/', '-')}"
        hosts.write_text("127.0.0.1\tlocalhost\n")
        paths = {name: places.get(path, path) for name, path in variables.items()}
        paths = {name: str(hosts) if path == "/etc/hosts" else path for name, path in paths.items()}
        program, *arguments = step.after.args
        beside = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', '')}"
        with (self._nodes.logs / f"{self.place.name}-programs.log").open("ab") as log:
            process = subprocess.Popen(
                [shutil.which(program, path=beside) or program, *arguments],
                env={**os.environ, **given, **paths},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._programs.setdefault(step.pod, []).append(process)

    async def _stop_pod(self, pod: str) -> None:
        for program in self._programs.pop(pod, ()):
            program.terminate()
            await anyio.to_thread.run_sync(program.wait)


class AddedNodes:
    """The nodes, served in `tasks`; `runs` maps programs to variables with paths of their containers.

    What they and the agents say is in files of the directory `logs`.
    """

    def __init__(
        self,
        cluster: Cluster,
        root: Path,
        tasks: TaskGroup,
        *,
        backend: str,
        scenario: str,
        runs: Mapping[str, Mapping[str, str]],
        logs: Path,
    ) -> None:
        self.logs = logs
        self.cluster = cluster
        self.runs = runs
        self.members: dict[str, AddedNode] = {}
        self._root = root
        self._tasks = tasks
        self._backend = backend
        self._scenario = scenario
        self._made = 0
        self._network = 100 + secrets.randbelow(100)  # `pydra dev` and its tests have the first ones

    def build_agent(self, node: AddedNode) -> AgentProcess:
        """The agent of a node, with a machine of its own."""
        prefix = f"PYDRA_{self._backend.upper().replace('-', '_')}"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYDRA_")}
        environ |= {f"{prefix}_STATE": f"{node.place}/hardware", f"{prefix}_SCENARIO": self._scenario}
        arguments = [
            *("--backend", self._backend, "--node-name", node.name, "--kubeconfig", os.environ["KUBECONFIG"]),
            *("--kubelet-root", node.kubelet_root, "--records-dir", f"{node.place}/run"),
            *("--cdi-dir", f"{node.place}/cdi", "--http-address", "", "--healthy-after", "0"),
        ]
        return AgentProcess(arguments, environ, self.logs / f"{node.place.name}-agent.log", "")

    async def join(self, name: str) -> AddedNode:
        """A node with this name and empty directories, once its devices are published."""
        self._made += 1
        place = self._root / f"n{self._made}"
        place.mkdir()
        node = self.members[name] = AddedNode(self, name, self._network + self._made, place)
        await self._tasks.start(node.serve)

        async def publishes() -> bool:
            return any(one["spec"].get("devices") for one in await self._slices(name))

        await self.cluster.wait(f"{name} publishes devices", publishes)
        return node

    async def lose(self, name: str) -> None:
        """A node dies; where no controller says that it is lost, that is said here."""
        await self.members.pop(name).lose()
        nodes = (await self.cluster.client.list(NODES)).items
        real = [one for one in nodes if EMBEDDED not in one["status"]["nodeInfo"]["kubeletVersion"]]
        if not real:
            await self._mark_lost(name)

    async def remove(self, name: str) -> None:
        """What an admin does with a node that does not come back: its pods, slices and object are deleted."""
        client = self.cluster.client
        for pod in await self.pods(name):
            with suppress(NotFound):
                await client.delete(
                    PODS, pod["metadata"]["name"], namespace=pod["metadata"]["namespace"], grace_period=0
                )
        for found in await self._slices(name):
            with suppress(NotFound):
                await client.delete(RESOURCE_SLICES, found["metadata"]["name"])
        with suppress(NotFound):
            await client.delete(NODES, name)

    async def close(self) -> None:
        """All end, and are removed."""
        for name, node in tuple(self.members.items()):
            await node.end()
            await self.remove(name)

    async def pods(self, name: str) -> list[JsonObject]:
        """The pods of a node."""
        return list((await self.cluster.client.list(PODS, field_selector=f"spec.nodeName={name}")).items)

    async def _slices(self, name: str) -> list[JsonObject]:
        return list((await self.cluster.client.list(RESOURCE_SLICES, field_selector=f"spec.nodeName={name}")).items)

    async def _mark_lost(self, name: str) -> None:
        client = self.cluster.client
        lost = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "lastTransitionTime": now()}
        await client.patch(NODES, name, {"status": {"conditions": [lost]}}, subresource="status")
        for pod in await self.pods(name):
            others = [one for one in pod["status"].get("conditions") or () if one["type"] != "Ready"]
            conditions = [*others, {"type": "Ready", "status": "False", "reason": "NodeNotReady"}]
            await client.patch(
                PODS,
                pod["metadata"]["name"],
                {"status": {"conditions": conditions}},
                namespace=pod["metadata"]["namespace"],
                subresource="status",
            )
