"""What the kernel's own namespaces refuse while an interface is put back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from namespaces import TestNode, find_problem, make_node
from net_agent import NetAgent, build_sandbox, build_settings
from pydra import UndoLater

_PROBLEM, _NO_MACVLAN = find_problem(), find_problem("macvlan")
pytestmark = pytest.mark.skipif(bool(_PROBLEM), reason=_PROBLEM)


@pytest.fixture
def node() -> Iterator[TestNode]:
    with make_node() as node:
        yield node


@asynccontextmanager
async def serve(node: TestNode) -> AsyncIterator[NetAgent]:
    agent = NetAgent(build_settings(node))
    async with agent.runtime.serve(agent.settings.nri_socket), agent.run():
        yield agent


@pytest.mark.skipif(bool(_NO_MACVLAN), reason=_NO_MACVLAN)
@pytest.mark.parametrize("is_told", [True, False])
async def test_a_claim_stays_held_while_something_of_the_pod_keeps_its_interface_out_of_the_bridge(
    node: TestNode, *, is_told: bool
) -> None:
    """Also if the runtime does not tell that the pod ends."""
    node.host.run("ip link add br0 type bridge; ip link set nic0 master br0")
    pod = node.begin_pod("trainer")
    sandbox = build_sandbox("trainer", pod.path)
    async with serve(node) as agent:
        await agent.prepare("claim", "nic0", pod="trainer")
        await agent.start(sandbox)
        pod.run("ip link add link nic0 name own0 type macvlan mode bridge")
        if is_told:
            await agent.runtime.stop_pod(sandbox)
        with pytest.raises(UndoLater, match=r"nic0 is back, but not as it was before: set master \d+: .* busy"):
            await agent.unprepare("claim")
        pod.end()
        while "claim" in agent.held:
            with suppress(UndoLater):  # the kernel ends the pod's namespace in the background
                await agent.unprepare("claim")
    assert "master br0" in node.host.run("ip link show nic0")


@pytest.mark.skipif(bool(_NO_MACVLAN), reason=_NO_MACVLAN)
async def test_an_interface_comes_back_after_the_one_that_it_is_made_on(node: TestNode) -> None:
    node.host.run("ip link add link nic0 name own0 type macvlan mode bridge; ip link set own0 up")
    before = node.host.describe("own0")
    pod = node.begin_pod("trainer")
    async with serve(node) as agent:
        await agent.prepare("claim", "own0", pod="trainer")
        await agent.start(build_sandbox("trainer", pod.path))
        assert [one.name for one in (await agent.backend.discover()).devices] == ["own0"], "nic0 is still below it"
        node.host.run(f"ip link set nic0 netns {node.switch.path}")
        with pytest.raises(UndoLater, match=r"own0 .own0. is back, but what it is made on .index \d+. is not here"):
            await agent.unprepare("claim")
        node.switch.run(f"ip link set nic0 netns {node.host.path}; nsenter --net={node.host.path} ip link set nic0 up")
        await agent.unprepare("claim")
    assert node.host.describe("own0") == before


async def test_a_veth_interface_comes_back_wherever_its_other_end_is_by_then(node: TestNode) -> None:
    node.host.run("ip link add ve0 type veth peer name ve1; ip link set ve0 up; ip addr add 10.8.0.1/24 dev ve0")
    async with serve(node) as agent:
        await agent.prepare("claim", "ve0", pod="trainer")
        node.host.run(f"ip link set ve1 netns {node.switch.path}")
        await agent.unprepare("claim")
    assert "10.8.0.1/24" in node.host.run("ip addr show dev ve0")


async def test_what_can_never_be_put_back_holds_no_claim(node: TestNode, caplog: pytest.LogCaptureFixture) -> None:
    node.host.run("ip addr add 192.0.2.77/32 dev up0; ip route add 10.9.0.0/16 dev nic0 src 192.0.2.77")
    async with serve(node) as agent:
        await agent.prepare("claim", "nic0", pod="trainer")
        node.host.run("ip link set nic0 down; ip addr del 192.0.2.77/32 dev up0")
        await agent.unprepare("claim")
    assert "nic0 is back, but not as it was before: add route 10.9.0.0/16 in table 254: Invalid" in caplog.text
    assert "10.5.0.0/16 via 10.0.0.9" in node.host.run("ip route show dev nic0")
