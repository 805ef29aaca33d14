"""Shares of one interface, in the kernel's own network namespaces: made in pods, and removed."""

from __future__ import annotations

import errno
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from namespaces import TestNode, find_problem, make_node
from net_agent import NetAgent, build_sandbox, build_settings
from pydra_net.claim_config import NetworkConfig
from pydra_nri.simulation.runtime import OperationFailed

_PROBLEM = find_problem("macvlan")
pytestmark = pytest.mark.skipif(bool(_PROBLEM), reason=_PROBLEM)


@pytest.fixture
def node() -> Iterator[TestNode]:
    with make_node() as node:
        yield node


def build_agent(node: TestNode, shared: str = "nic0") -> NetAgent:
    settings = build_settings(node, shared=shared, exclude_types="veth")
    return NetAgent(settings)


@asynccontextmanager
async def serve(agent: NetAgent) -> AsyncIterator[None]:
    async with agent.runtime.serve(agent.settings.nri_socket), agent.run():
        yield


def config(**fields: Any) -> tuple[NetworkConfig, ...]:
    return (msgspec.convert(fields, NetworkConfig),)


async def test_pods_with_shares_of_an_interface_reach_each_other_and_the_node_keeps_it_as_it_was(
    node: TestNode,
) -> None:
    before = node.host.describe("nic0")
    agent = build_agent(node)
    first, second = node.begin_pod("first"), node.begin_pod("second")
    async with serve(agent):
        for number, pod in enumerate((first, second), 1):
            name = Path(pod.path).name
            wanted = config(
                interface={"name": "net1", "addresses": [f"10.0.0.{number + 10}/24"]},
                routes=[{"destination": "10.8.0.0/16", "gateway": "10.0.0.9"}],
            )
            await agent.prepare(name, f"nic0/{number}", pod=name, configs=wanted)
            await agent.start(build_sandbox(name, pod.path))
        assert (node.host.links(), first.links(), second.links()) == (["nic0", "up0"], ["net1"], ["net1"])
        assert "mtu 1400" in first.describe("net1"), "as the interface that it is on"
        assert "10.8.0.0/16 via 10.0.0.9" in first.describe("net1")
        assert "fd00::1" not in first.describe("net1"), "what the node has on its own stays there"
        connect = "import socket; one = socket.socket(); one.settimeout(30); print(one.connect_ex(('10.0.0.12', 9)))"
        assert int(first.run(f'{sys.executable} -c "{connect}"')) == errno.ECONNREFUSED, "by the other pod"
        await agent.runtime.stop_pod(build_sandbox("first", first.path))
        assert (first.links(), second.links()) == ([], ["net1"])
        await agent.unprepare("first")
        await agent.unprepare("second")
        assert second.links() == []
    assert node.host.describe("nic0") == before


async def test_a_share_is_removed_when_the_backend_was_killed_and_the_end_of_the_pod_is_never_reported(
    node: TestNode,
) -> None:
    agent = build_agent(node)
    pod, gone = node.begin_pod("trainer"), node.begin_pod("gone")
    async with serve(agent):
        await agent.prepare("claim", "nic0/1", pod="trainer", configs=config(interface={"name": "net1"}))
        await agent.prepare("other", "nic0/2", pod="gone", configs=config(interface={"name": "net1"}))
        await agent.start(build_sandbox("trainer", pod.path))
        await agent.start(build_sandbox("gone", gone.path))
    gone.end()
    agent.runtime.pods.clear()
    async with serve(agent):
        await agent.unprepare("claim")
        await agent.unprepare("other")
    assert pod.links() == []


async def test_another_sandbox_of_the_pod_has_the_share_with_the_same_address(node: TestNode) -> None:
    agent = build_agent(node)
    first, second = node.begin_pod("first"), node.begin_pod("second")
    read = "ip -o link show net1 | sed 's/.*ether //; s/ .*//'"
    async with serve(agent):
        await agent.prepare("claim", "nic0/1", pod="trainer", configs=config(interface={"name": "net1"}))
        dead = build_sandbox("trainer", first.path)
        await agent.start(dead)
        mac = first.run(read)
        await agent.start(build_sandbox("trainer", second.path, number=2))
        assert (first.links(), second.run(read)) == ([], mac)
        await agent.runtime.stop_pod(dead)
        assert second.links() == ["net1"], "the late end of the first takes nothing from the second"
        await agent.unprepare("claim")


async def test_a_pod_that_has_an_interface_of_that_name_does_not_start(node: TestNode) -> None:
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    pod.run("ip link add net1 type veth peer name other")
    async with serve(agent):
        await agent.prepare("claim", "nic0/1", pod="trainer", configs=config(interface={"name": "net1"}))
        with pytest.raises(OperationFailed, match=r"the pod has an interface net1 already; set another interface.name"):
            await agent.start(build_sandbox("trainer", pod.path))
        assert pod.links() == ["net1", "other"]


async def test_a_claim_can_have_an_interface_on_one_that_is_not_shared(node: TestNode) -> None:
    """As DRANET does it: the claim has the whole interface, and it stays on the node."""
    agent = NetAgent(msgspec.structs.replace(build_agent(node).settings, shared="", exclude_types=""))
    pod = node.begin_pod("trainer")
    wanted = config(interface={"type": "macvlan", "name": "net1", "macvlan": {"mode": "private"}})
    async with serve(agent):
        await agent.prepare("claim", "nic0", pod="trainer", configs=wanted)
        await agent.start(build_sandbox("trainer", pod.path))
        assert (node.host.links(), pod.links()) == (["nic0", "up0"], ["net1"])
        assert "mode private" in pod.run("ip -d link show net1")
        await agent.unprepare("claim")
    assert pod.links() == []


async def test_shares_of_the_nodes_own_interface_leave_its_network_as_it_is(node: TestNode) -> None:
    before = node.host.describe("up0")
    agent = build_agent(node, shared="up0")
    pod = node.begin_pod("trainer")
    wanted = config(interface={"name": "net1", "addresses": ["192.0.2.77/24"]})
    async with serve(agent):
        await agent.prepare("claim", "up0/1", pod="trainer", configs=wanted)
        await agent.start(build_sandbox("trainer", pod.path))
        assert (pod.links(), node.host.describe("up0")) == (["net1"], before)
        await agent.unprepare("claim")
    assert node.host.describe("up0") == before


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("ipvlan", {"type": "ipvlan", "ipvlan": {"mode": "l3s"}}),
        ("vlan", {"type": "vlan", "vlan": {"id": 100}, "hardwareAddr": "02:00:00:00:0a:01"}),
    ],
)
async def test_other_kinds_of_shares_where_the_kernel_has_them(
    kind: str, wanted: dict[str, Any], node: TestNode
) -> None:
    agent = build_agent(node)
    pod = node.begin_pod("trainer")
    async with serve(agent):
        interface = {"name": "net1", "addresses": ["10.0.0.7/24"], **wanted}
        await agent.prepare("claim", "nic0/1", pod="trainer", configs=config(interface=interface))
        if problem := find_problem(kind):
            with pytest.raises(OperationFailed, match=f"cannot make a {kind} interface on nic0 .* not supported"):
                await agent.start(build_sandbox("trainer", pod.path))
            assert pod.links() == []
            await agent.unprepare("claim")
            pytest.skip(problem)
        await agent.start(build_sandbox("trainer", pod.path))
        found = pod.run("ip -d link show net1")
        assert ("ipvlan  mode l3s" if kind == "ipvlan" else "id 100") in found
        assert "10.0.0.7/24" in pod.describe("net1")
        await agent.unprepare("claim")
    assert (pod.links(), node.host.links()) == ([], ["nic0", "up0"])
