"""A node as its pods see it: the agent prepares a claim, and the container runtime asks the backend for CPUs."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import yaml

from pydra.kube.api_resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIM_TEMPLATES
from pydra_cpu import DEVICE_CLASSES as CLASSES
from pydra_cpu import DRIVER
from pydra_cpu.devices import CAPACITY
from pydra_cpu.simulation.machine import Machine
from pydra_dev.kubelet.observations import ContainerCreated, PodRunning, Step
from pydra_dev.node import EmbeddedNode, run_node
from pydra_nri import Container, PodSandbox
from pydra_nri.simulation.runtime import FakeRuntime, OperationFailed
from tests.integration.agent.process import DEADLINE, Agent, run_agent

NAMESPACE = "default"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pinned.yaml"
POD = PodSandbox(id="sandbox", name="pinned", uid="uid", namespace=NAMESPACE)


class Node:
    """An embedded node, whose containers a fake runtime creates, too."""

    def __init__(self, node: EmbeddedNode, root: Path, steps: list[Step]) -> None:
        self.runtime = FakeRuntime()
        self.node = node
        self._root = root
        self._steps = steps

    @asynccontextmanager
    async def run_agent(self, name: str, **settings: str) -> AsyncIterator[Agent]:
        """The agent, until the runtime calls its backend; killed at the end."""
        environ = {
            "PYDRA_CPU_SYS_ROOT": f"{self._root}/sys",
            "PYDRA_CPU_HOST_ROOT": str(self._root),
            "PYDRA_CPU_NRI_SOCKET": f"{self._root}/nri.sock",
            **settings,
        }
        known = self.runtime.log.count(f"registered {DRIVER}")
        async with run_agent(self.node, "--backend", "cpu", environ=environ, name=name, forked=True) as agent:
            await agent.wait_ready()
            await self.runtime.wait_logged(f"registered {DRIVER}", times=known + 1)
            yield agent

    async def apply_example(self, *, is_counted: bool = False) -> dict[str, tuple[str, ...]]:
        """The environment of each container of the example's pod; with one CPU if the embedded scheduler counts it."""
        template, pod = yaml.safe_load_all(EXAMPLE.read_text())
        if is_counted:
            template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["capacity"]["requests"][CAPACITY] = "1"
            del pod["spec"]["containers"][0]["resources"]["requests"]
        await self.node.client.create(RESOURCE_CLAIM_TEMPLATES, template, namespace=NAMESPACE)
        await self.node.client.create(PODS, pod, namespace=NAMESPACE)
        with anyio.fail_after(DEADLINE):
            while PodRunning(pod=f"{NAMESPACE}/pinned") not in self._steps:  # noqa: ASYNC110 - in other processes
                await anyio.sleep(0.02)
        return {one.container: tuple(one.after.env) for one in self._steps if isinstance(one, ContainerCreated)}

    async def create(self, name: str, env: tuple[str, ...]) -> str:
        """The CPUs of a new container."""
        container = Container(id=name, name=name, pod_sandbox_id=POD.id, env=env)
        return (await self.runtime.create_container(container)).linux.resources.cpu.cpus


@asynccontextmanager
async def serve(**options: Any) -> AsyncIterator[Node]:
    steps: list[Step] = []
    with tempfile.TemporaryDirectory(prefix="cpu") as root:
        Machine(cores=4).write(Path(root))
        async with run_node(steps.append, **options) as embedded:
            for name, spec in CLASSES.items():
                await embedded.client.create(DEVICE_CLASSES, {"metadata": {"name": name}, "spec": dict(spec)})
            found = Node(embedded, Path(root), steps)
            async with found.runtime.serve(f"{root}/nri.sock"):
                await found.runtime.run_pod(POD)
                yield found


async def test_a_prepared_claim_has_its_cpus_also_after_the_agent_was_killed() -> None:
    async with serve() as node:
        async with node.run_agent("first"):
            env = await node.apply_example()
            assert await node.create("pinned", env["pinned"]) == "0-1"
            assert await node.create("shared", env["shared"]) == "2-3"
        async with node.run_agent("second"):
            assert await node.create("again", env["pinned"]) == "0-1"
            with pytest.raises(OperationFailed, match="which is not what claim default/pinned-cpus-"):
                await node.create("forged", tuple(one.replace("=0-1", "=0-3") for one in env["pinned"]))


@pytest.mark.parametrize(
    ("version", "counted"),
    [("1.36.2", {"resources": {"cpu": "1"}}), ("1.37.0", {"mapping": [{"name": "cpu", "quantity": "1"}]})],
)
async def test_the_scheduler_counts_the_cpus_of_a_claim_as_used_ones_of_the_node(
    version: str, counted: dict[str, Any]
) -> None:
    async with (
        serve(version=version, gates={"DRANodeAllocatableResources": True}) as node,
        node.run_agent("agent", PYDRA_CPU_NODE_ALLOCATABLE="true"),
    ):
        await node.apply_example(is_counted=True)
        pod = await node.node.client.get(PODS, "pinned", namespace=NAMESPACE)
        [entry] = pod["status"]["nodeAllocatableResourceClaimStatuses"]
        assert entry == {"resourceClaimName": entry["resourceClaimName"], "containers": ["pinned"], **counted}
