"""Random histories of pods, kills and restarts: no interface is lost, and none is in a pod that has no claim."""

from __future__ import annotations

import os
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pydra import ClaimError, UndoLater
from pydra_net.simulation.kernel import HOST
from pydra_net.simulation.machine import MACHINE_TYPES, Card
from pydra_net.steps import GiveRdma
from pydra_nri import Container, PodSandbox
from pydra_nri.simulation.runtime import OperationFailed
from simulated_node import Killed, SimulatedNode

PODS = ("a", "b", "c")
SERVER = MACHINE_TYPES["server"]
MACHINE = replace(SERVER, cards=(*SERVER.cards, Card(name="", address="0000:50:00.0", rdma="mlx5_5", alone=True)))
DEVICES = tuple(f"pci-0000-{number}0-00-0" for number in range(1, 6))

SHARED = DEVICES[3]

MOST = int(os.environ.get("TEST_HISTORIES", "40"))
Action = tuple[str, str, int]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            ("claim", "claim", "begin", "begin", "container", "stop", "die", "end", "end", "kill", "kill in", "restart")
        ),
        st.sampled_from(PODS),
        st.integers(0, 12),
    ),
    max_size=25,
)


class History:
    """A node and its pods. Errors are what users would read; the kubelet tries again, or not."""

    def __init__(self, root: Path, *, exclusive_rdma: bool) -> None:
        self.node = SimulatedNode(replace(MACHINE, exclusive_rdma=exclusive_rdma), root, shared="eth4")
        self.sandboxes: dict[str, PodSandbox] = {}
        self._numbers = 0
        self._process = AsyncExitStack()

    async def start(self) -> None:
        await self._process.enter_async_context(self.node.run())

    async def kill(self) -> None:
        await self._process.aclose()
        self.node.kill_at = -1
        await self.start()

    async def do(self, action: str, pod: str, number: int) -> None:
        node, agent = self.node, self.node.agent
        match action:
            case "claim" if pod not in agent.held:
                device = DEVICES[number % 5]
                await agent.prepare(pod, f"{device}/{pod}" if device == SHARED else device, pod=pod)
            case "begin" if pod in agent.held:
                await self.begin(pod)
            case "container" if sandbox := self.sandboxes.get(pod):
                await agent.runtime.create_container(Container(id=sandbox.id, pod_sandbox_id=sandbox.id))
                steps = [one.step for one in agent.held[pod].claim.steps] if pod in agent.held else []
                rdma = node.kernel.namespaces[sandbox.network_namespace].rdma
                found = {*node.names_in(sandbox), *(one.name for one in rdma)}
                for step in steps:
                    needed = step.moves and step.name if isinstance(step, GiveRdma) else step.target.name
                    assert not needed or needed in found, "a container runs without what the claim has"
            case "stop" if sandbox := self.sandboxes.pop(pod, None):
                await self.stop(sandbox)
            case "die" if sandbox := self.sandboxes.pop(pod, None):
                agent.runtime.pods.pop(sandbox.id, None)
                node.kernel.end_namespace(sandbox.network_namespace)
            case "end" if pod in agent.held:
                if sandbox := self.sandboxes.pop(pod, None):
                    await self.stop(sandbox)
                await agent.unprepare(pod)
            case "kill in":
                node.kill_at = len(node.steps) + number
            case "kill" | "restart":
                await self.kill()

    async def begin(self, pod: str) -> None:
        """Another sandbox; the one before, if there is one, has died."""
        if before := self.sandboxes.pop(pod, None):
            self.node.kernel.end_namespace(before.network_namespace)
        self._numbers += 1
        sandbox = self.sandboxes[pod] = self.node.begin_pod(pod, number=self._numbers)
        try:
            await self.node.agent.runtime.run_pod(sandbox)
        except OperationFailed:
            del self.sandboxes[pod]
            self.node.agent.runtime.pods.pop(sandbox.id, None)
            self.node.kernel.end_namespace(sandbox.network_namespace)
            raise

    async def stop(self, sandbox: PodSandbox) -> None:
        try:
            await self.node.agent.runtime.stop_pod(sandbox)
        finally:
            self.node.agent.runtime.pods.pop(sandbox.id, None)
            self.node.kernel.end_namespace(sandbox.network_namespace)

    async def finish(self) -> None:
        """All pods and claims end."""
        await self.kill()
        for sandbox in self.sandboxes.values():
            await self.stop(sandbox)
        for uid in sorted(self.node.agent.held):
            await self.node.agent.unprepare(uid)
        assert self.node.is_as_before()
        assert self.node.list_in_pods() == [], "a share outlives its claim"
        assert self.node.kernel.list_open() == [HOST], "a namespace is kept from ending"
        await self._process.aclose()


@settings(max_examples=MOST, deadline=None)
@given(actions=ACTIONS, exclusive_rdma=st.booleans())
async def test_no_history_loses_an_interface(actions: list[Action], exclusive_rdma: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="net", ignore_cleanup_errors=True) as root:
        history = History(Path(root), exclusive_rdma=exclusive_rdma)
        await history.start()
        for action in actions:
            try:
                await history.do(*action)
            except UndoLater:
                raise  # this kernel returns every interface at once
            except (Killed, OperationFailed, ClaimError):
                pass
            if 0 <= history.node.kill_at <= len(history.node.steps):
                await history.kill()
        await history.finish()
