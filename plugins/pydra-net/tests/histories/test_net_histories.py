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
from pydra_net.claim_config import InterfaceConfig, NetworkConfig, VfConfig
from pydra_net.simulation.kernel import HOST
from pydra_net.simulation.machine import MACHINE_TYPES, Card
from pydra_net.steps import GiveRdma
from pydra_nri import Container, PodSandbox
from pydra_nri.simulation.runtime import OperationFailed
from simulated_node import Killed, SimulatedNode

PODS = ("a", "b", "c")
SERVER = MACHINE_TYPES["server"]
MACHINE = replace(
    SERVER,
    cards=(
        *SERVER.cards,
        Card(name="", address="0000:50:00.0", rdma="mlx5_5", alone=True),
        Card(name="eth6", address="0000:60:00.0", most_functions=4),
    ),
)
CARD, FUNCTION = "0000:60:00.0", "pci-0000-60-02-0"
DEVICES = (*(f"pci-0000-{number}0-00-0" for number in range(1, 6)), FUNCTION)
CONFIGURED = NetworkConfig(interface=InterfaceConfig(vf=VfConfig(vlan=100, trust=True)))

SHARED = DEVICES[3]

MOST = int(os.environ.get("TEST_HISTORIES", "40"))
Action = tuple[str, str, int]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(
            (
                "claim",
                "claim",
                "begin",
                "begin",
                "container",
                "stop",
                "die",
                "end",
                "end",
                "kill",
                "kill in",
                "restart",
                "make again",
            )
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
        self.node.cards.set_functions(CARD, 1)
        self.node.before = self.node.kernel.namespaces[HOST]
        self._numbers = 0
        self._taken: set[str] = set()
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
                device = DEVICES[number % 6]
                configs = (CONFIGURED,) if device == FUNCTION else ()
                await agent.prepare(pod, f"{device}/{pod}" if device == SHARED else device, pod=pod, configs=configs)
            case "begin" if pod in agent.held:
                await self.begin(pod)
            case "container" if sandbox := self.sandboxes.get(pod):
                await agent.runtime.create_container(Container(id=sandbox.id, pod_sandbox_id=sandbox.id))
                given = pod in agent.held and pod not in self._taken
                steps = [one.step for one in agent.held[pod].claim.steps if one.step.moves] if given else []
                rdma = node.kernel.namespaces[sandbox.network_namespace].rdma
                found = {*node.names_in(sandbox), *(one.name for one in rdma)}
                needed = {one.name if isinstance(one, GiveRdma) else one.target.name for one in steps}
                assert needed <= found, "a container runs without what the claim has"
            case "stop" if sandbox := self.sandboxes.pop(pod, None):
                await self.stop(sandbox)
            case "die" if sandbox := self.sandboxes.pop(pod, None):
                agent.runtime.pods.pop(sandbox.id, None)
                node.kernel.end_namespace(sandbox.network_namespace)
            case "end" if pod in agent.held:
                if sandbox := self.sandboxes.pop(pod, None):
                    await self.stop(sandbox)
                await agent.unprepare(pod)
                self._taken.discard(pod)
            case "make again":
                holders = [uid for uid, held in agent.held.items() if held.claim.devices[0].device == FUNCTION]
                self._taken |= {*holders}
                node.cards.set_functions(CARD, 1)
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
