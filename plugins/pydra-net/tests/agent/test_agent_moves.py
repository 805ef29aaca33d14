"""A node as its pods see it: the agent prepares a claim, the container runtime begins the pod, the agent is killed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from namespaces import TestNode, find_problem, make_node
from net_agent import build_container, build_sandbox
from pydra_dev.kubelet.observations import Step
from pydra_dev.node import EmbeddedNode, run_node
from pydra_net import DEVICE_CLASSES as CLASSES
from pydra_net import DRIVER
from pydra_nri import PodSandbox
from pydra_nri.simulation.runtime import FakeRuntime
from tests.integration.agent.node_user import NodeUser
from tests.integration.agent.process import Agent, run_agent

_PROBLEM = find_problem()
pytestmark = pytest.mark.skipif(bool(_PROBLEM), reason=_PROBLEM)

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "interface.yaml"


class Node(NodeUser):
    """An embedded node with network namespaces, and a fake runtime for its pods."""

    def __init__(self, embedded: EmbeddedNode, network: TestNode, steps: list[Step]) -> None:
        super().__init__(embedded, steps)
        self.runtime = FakeRuntime(request_timeout=100.0)
        self.network = network

    @asynccontextmanager
    async def run_agent(self, name: str) -> AsyncIterator[Agent]:
        """The agent, until the runtime calls its backend; killed at the end."""
        environ = {
            "PYDRA_NET_NETWORK_NAMESPACE": self.network.host.path,
            "PYDRA_NET_POD_NAMESPACES": str(self.network.pods),
            "PYDRA_NET_NRI_SOCKET": f"{self.network.pods.parent}/nri.sock",
            "PYDRA_NET_EXCLUDE_TYPES": "",
        }
        known = self.runtime.log.count(f"registered {DRIVER}")
        async with run_agent(self.node, "--backend", "net", environ=environ, name=name, forked=True) as agent:
            await agent.wait_ready()
            await self.runtime.wait_logged(f"registered {DRIVER}", times=known + 1)
            yield agent

    async def begin_pod(self) -> PodSandbox:
        """The example's pod, from its claim to its container."""
        template, pod = yaml.safe_load_all(EXAMPLE.read_text())
        created = await self.apply(template, pod)
        await self.wait_running("trainer")
        sandbox = build_sandbox("trainer", self.network.begin_pod("trainer").path, uid=created["metadata"]["uid"])
        await self.runtime.run_pod(sandbox)
        await self.runtime.create_container(build_container(sandbox))
        return sandbox


@asynccontextmanager
async def serve() -> AsyncIterator[Node]:
    steps: list[Step] = []
    with make_node() as network:
        async with run_node(steps.append) as embedded:
            found = Node(embedded, network, steps)
            await found.create_classes(CLASSES)
            async with found.runtime.serve(f"{network.pods.parent}/nri.sock"):
                yield found


async def test_a_pods_interface_comes_back_as_it_was_also_after_the_agent_was_killed() -> None:
    async with serve() as node:
        before = node.network.host.describe("nic0")
        async with node.run_agent("first"):
            await node.begin_pod()
            assert node.network.host.links() == ["up0"]
        assert node.network.host.links() == ["up0"], "the pod keeps it while no agent runs"
        async with node.run_agent("second"):
            await node.delete_pod("trainer")
            await node.until(lambda: "nic0" in node.network.host.links(), "the interface is back")
            await node.until(lambda: node.network.host.describe("nic0") == before, "it is as it was")
