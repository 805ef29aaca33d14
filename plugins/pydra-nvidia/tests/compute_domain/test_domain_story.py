"""A ComputeDomain from its creation to its end on several nodes, with all of pydra's parts as processes.

Each node has its own agent and kubelet; the controller and the daemons run for real, with a simulated nvidia-imex.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from pydra_dev import kinds
from pydra_dev.custom_kinds import parse_definition
from pydra_dev.kubelet.observations import ContainerCreated, PodRunning, Step
from pydra_dev.node import EmbeddedNode, join_node, mark_lost, run_node
from pydra_dev.verbs import Signal
from pydra_nvidia.compute_domain import DEVICE_CLASSES
from pydra_nvidia.compute_domain.custom_resources import DEFINITIONS
from pydra_nvidia.compute_domain.names import DOMAIN_LABEL, DRIVER
from tests.integration.agent.process import run_agent

JsonObject = dict[str, Any]
DEADLINE = 200
DOMAINS, CLIQUES = (parse_definition(one).kind for one in DEFINITIONS)
COMMAND = (sys.executable, "-m", "pydra_nvidia.compute_domain.command")
pytestmark = pytest.mark.timeout(600)


class Story:
    """The cluster: its nodes, and what runs in the containers of daemons."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.node: EmbeddedNode
        self.daemons = dict[str, subprocess.Popen[bytes]]()
        self.containers = dict[str, ContainerCreated]()
        self.running = set[str]()
        self._nodes = dict[str, AsyncExitStack]()
        self._changed = Signal()

    def watch(self, node: EmbeddedNode) -> None:
        self.node, self.api = node, node.server.api
        self.api.store.listen(self._changed.notify)

    def note(self, step: Step) -> None:
        """What a runtime does: start the process of a daemon's container."""
        if isinstance(step, ContainerCreated):
            self.containers[step.pod] = step
            if step.after.args[:1] == ("pydra-compute-domain",):
                self._start_daemon(step)
        if isinstance(step, PodRunning):
            self.running.add(step.pod)
        self._changed.notify()

    def start_controller(self) -> Callable[[], object]:
        """Start the controller; return what ends it."""
        environ = {**os.environ, "KUBECONFIG": str(self.node.server.kubeconfig), "POD_NAME": "one"}
        flags = ("--namespace", "kube-system", "--daemon-image", "pydra:1", "--max-nodes", "4")
        command = [*COMMAND, "controller", *flags, "--leader-election", "false"]
        with (self.path / "controller.log").open("wb") as log:
            controller = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        return lambda: (controller.terminate(), controller.wait())

    def _start_daemon(self, step: ContainerCreated) -> None:
        places = {one.container_path: one.host_path for one in step.after.mounts}
        hosts = self.path / f"hosts-{step.pod.partition('/')[2]}"
        hosts.write_text("127.0.0.1\tlocalhost\n")
        variables = {
            "KUBECONFIG": str(self.node.server.kubeconfig),
            "IMEX_DIRECTORY": places["/imexd"],
            "IMEX_HOSTS_FILE": str(hosts),
            "IMEX_PROGRAM": places["/usr/bin/nvidia-imex"],
            "IMEX_CONTROL_PROGRAM": places["/usr/bin/nvidia-imex-ctl"],
        }
        given = dict(one.split("=", 1) for one in step.after.env if not one.startswith("PATH="))
        environ = {**os.environ, **given, **variables}
        with (self.path / f"{hosts.name}.log").open("wb") as log:
            command = [*COMMAND, "daemon"]
            self.daemons[step.pod] = subprocess.Popen(
                command, env=environ, stdout=log, stderr=log, start_new_session=True
            )

    async def stop_containers(self, pod: str) -> None:
        daemon = self.daemons.pop(pod, None)
        if daemon is not None:
            daemon.terminate()
            await anyio.to_thread.run_sync(daemon.wait)

    async def add_node(self, name: str, number: int) -> None:
        stack = self._nodes[name] = AsyncExitStack()
        options: JsonObject = {"stop_containers": self.stop_containers, "probes": True}
        joined = join_node(self.node, self.note, node_name=name, number=number, **options)
        await stack.enter_async_context(self.agent(await stack.enter_async_context(joined)))

    async def lose_node(self, name: str) -> None:
        """Its power fails: nothing on it runs any more, and the control plane notices."""
        for pod in self.pods(name):
            if daemon := self.daemons.pop(f"{pod['metadata']['namespace']}/{pod['metadata']['name']}", None):
                os.killpg(daemon.pid, signal.SIGKILL)  # as the end of a container's first process ends the others
                daemon.wait()
        await self._nodes.pop(name).aclose()
        mark_lost(self.api, name)

    @asynccontextmanager
    async def agent(self, node: EmbeddedNode) -> AsyncIterator[None]:
        prefix = "PYDRA_NVIDIA_COMPUTE_DOMAIN_"
        environ = {f"{prefix}SCENARIO": "gb200", f"{prefix}STATE": f"{node.root}/hardware"}
        async with run_agent(node, "--backend", "nvidia-compute-domain", environ=environ, forked=True) as agent:
            yield
            assert await agent.stop() == 0

    async def close(self) -> None:
        for pod in tuple(self.daemons):
            await self.stop_containers(pod)
        for name in reversed(tuple(self._nodes)):
            await self._nodes.pop(name).aclose()

    def left(self) -> Sequence[str]:
        """The directories of daemons and the records of claims on nodes that were not lost."""
        places = ("hardware/run/domains/*", f"run/{DRIVER}/claims/*")
        roots = [Path(self.node.root), *(Path(self.node.root, name) for name in self._nodes)]
        return sorted(str(path) for root in roots for place in places for path in root.glob(place))

    def pods(self, node: str) -> Sequence[JsonObject]:
        return [pod for pod in self.api.list(kinds.PODS).items if pod["spec"].get("nodeName") == node]

    def start_pod(self, name: str) -> None:
        container = {"name": "main", "image": "busybox", "resources": {"claims": [{"name": "channel"}]}}
        claims = [{"name": "channel", "resourceClaimTemplateName": "cd"}]
        spec = {"containers": [container], "resourceClaims": claims}
        self.api.create(kinds.PODS, {"metadata": {"name": name}, "spec": spec}, namespace="default")

    def delete_pod(self, name: str) -> None:
        self.api.delete(kinds.PODS, name, namespace="default")

    def domain(self) -> JsonObject:
        return self.api.get(DOMAINS, "cd", namespace="default")

    def condition(self, kind: str = "Ready") -> tuple[str, str]:
        conditions = (self.domain().get("status") or {}).get("conditions") or ()
        return next(((one["reason"], one["message"]) for one in conditions if one["type"] == kind), ("", ""))

    def summary(self) -> str:
        return str((self.domain().get("status") or {}).get("summary", ""))

    def imex(self) -> Sequence[JsonObject]:
        """Each nvidia-imex that runs, as it describes itself."""
        found = sorted(Path(self.node.root).glob("**/run/domains/*/imex.json"))
        return [json.loads(path.read_text()) for path in found]

    async def until(self, holds: Callable[[], object], what: str) -> None:
        with anyio.move_on_after(DEADLINE):
            while not holds():  # noqa: ASYNC110 - some of it is in files of other processes
                await anyio.sleep(0.1)
            return
        raise AssertionError(f"not in time: {what}")


async def test_a_domain_from_its_creation_to_its_end(tmp_path: Path) -> None:
    story = Story(tmp_path)
    options: JsonObject = {"stop_containers": story.stop_containers, "probes": True, "definitions": DEFINITIONS}
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(run_node(story.note, node_name="node-1", **options))
        story.watch(node)
        for name, spec in DEVICE_CLASSES.items():
            story.api.create(kinds.DEVICE_CLASSES, {"metadata": {"name": name}, "spec": dict(spec)})
        stack.callback(story.start_controller())
        await stack.enter_async_context(story.agent(node))
        stack.push_async_callback(story.close)
        await story.add_node("node-2", 2)
        await story.add_node("node-3", 3)

        # From the creation to channels in pods.
        spec = {"channel": {"resourceClaimTemplate": {"name": "cd"}}}
        story.api.create(DOMAINS, {"metadata": {"name": "cd"}, "spec": spec}, namespace="default")
        for number in (1, 2, 3):
            story.start_pod(f"pod-{number}")
        pods = {f"default/pod-{number}" for number in (1, 2, 3)}
        await story.until(lambda: pods <= story.running, "three pods run")
        await story.until(lambda: story.condition()[0] == "NodesReady", "the domain is ready")
        assert story.summary() == "3/3"
        for pod in pods:
            paths = [one.path for one in story.containers[pod].after.devices]
            assert "/dev/nvidia-caps-imex-channels/channel0" in paths
        await story.until(lambda: [len(one["peers"]) for one in story.imex()] == [3, 3, 3], "all know each other")

        # An nvidia-imex that is killed is started again.
        first = story.imex()[0]["pid"]
        os.kill(first, signal.SIGKILL)
        await story.until(lambda: story.imex()[0]["pid"] != first, "nvidia-imex is started again")

        # A node dies, and another one joins.
        lost = next(name for name in ("node-3", "node-2") if story.pods(name))
        await story.lose_node(lost)
        await story.until(lambda: lost in story.condition()[1], "the lost node is named")
        assert story.condition()[0] == "NodesNotReady"
        gone = [pod["metadata"]["name"] for pod in story.pods(lost) if pod["metadata"]["namespace"] == "default"]
        for name in gone:
            story.delete_pod(name)
        story.api.delete(kinds.NODES, lost)
        await story.until(lambda: story.summary() == "2/2", "two nodes are left")
        await story.add_node("node-4", 4)
        story.start_pod("pod-4")
        await story.until(lambda: "default/pod-4" in story.running, "the pod on the new node runs")
        await story.until(lambda: story.summary() == "3/3", "three nodes are ready again")

        # The domain is deleted: it serves its pods until they end, and leaves nothing.
        story.api.delete(DOMAINS, "cd", namespace="default")
        await story.until(lambda: story.condition("Deleting")[0] == "WaitingForPods", "the deletion waits for pods")
        for pod in story.api.list(kinds.PODS).items:
            if pod["metadata"]["namespace"] == "default":
                story.delete_pod(pod["metadata"]["name"])
        await story.until(lambda: not story.api.list(DOMAINS).items, "the domain is gone")
        kept = (kinds.PODS, kinds.DAEMON_SETS, CLIQUES, kinds.RESOURCE_CLAIMS, kinds.RESOURCE_CLAIM_TEMPLATES)
        await story.until(lambda: not any(story.api.list(kind).items for kind in kept), "no object is left")
        nodes = story.api.list(kinds.NODES).items
        assert not any(DOMAIN_LABEL in (one["metadata"].get("labels") or {}) for one in nodes)
        assert story.left() == []
