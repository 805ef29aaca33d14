"""Virtual functions of a real card, or of one that QEMU emulates, in the namespace of a test."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from namespaces import TestNode, make_node
from net_agent import NetAgent, build_sandbox
from pydra_net.claim_config import NetworkConfig
from pydra_net.settings import Settings


def find_card() -> str:
    """The interface of a card that can have virtual functions, and is switched off: nobody needs it."""
    for place in sorted(Path("/sys/class/net").glob("*/device/sriov_numvfs")):
        if place.read_text().strip() == "0" and (place.parents[1] / "operstate").read_text().strip() == "down":
            return place.parents[1].name
    return ""


@pytest.fixture
def node() -> Iterator[TestNode]:
    """A node whose `pf0` is a card."""
    if not (card := find_card()):
        pytest.skip("this machine has no card with virtual functions that nobody uses")
    numbers = Path(f"/sys/class/net/{card}/device").resolve() / "sriov_numvfs"
    with make_node() as node:
        subprocess.run(["ip", "link", "set", card, "netns", node.host.path, "name", "pf0"], check=True)
        try:
            yield node
        finally:
            numbers.write_text("0")
            node.host.run(f"ip link set pf0 down; ip link set pf0 netns 1 name {card}")


def move_functions(node: TestNode) -> None:
    """Let the node have the functions, which the kernel makes in the namespace that the machine began with."""
    for place in sorted(Path("/sys/bus/pci/devices").glob("*")):
        for one in sorted((place / "net").glob("*")) if (place / "physfn").exists() else ():
            subprocess.run(["ip", "link", "set", one.name, "netns", node.host.path], check=True)


async def test_a_function_of_a_card_goes_into_a_pod_and_comes_back_as_it_was(node: TestNode) -> None:
    settings = Settings(
        network_namespace=node.host.path,
        pod_namespaces=str(node.pods),
        nri_socket=str(node.pods.parent / "nri.sock"),
        virtual_functions="pf0=2",
        interfaces="eth*,pf0,net*,en*",
        poll_period=1000.0,
    )
    agent = NetAgent(settings)
    node.host.run("ip link set pf0 up")
    pod = node.begin_pod("trainer")
    async with agent.runtime.serve(settings.nri_socket), agent.run():
        await agent.backend.discover()
        await asyncio.to_thread(move_functions, node)
        inventory = await agent.backend.discover()
        functions = [one for one in inventory.devices if one.attributes.get("isSriovVf")]
        assert len(functions) == 2
        assert inventory.unreadable == ()
        name = functions[1].attributes["ifName"]
        node.host.run(f"ip link set {name} up; ip addr add 10.7.0.1/24 dev {name}")
        before = node.host.describe(str(name)), node.host.run("ip link show pf0")
        wanted = {
            "interface": {
                "name": "net1",
                "hardwareAddr": "02:00:00:00:07:01",
                "addresses": ["10.7.0.9/24"],
                "vf": {"vlan": 100, "vlanQoS": 3, "maxTxRate": 100, "spoofChk": False, "trust": True},
            }
        }
        configs = (msgspec.convert(wanted, NetworkConfig),)
        await agent.prepare("claim", functions[1].name, pod="trainer", configs=configs)
        await agent.start(build_sandbox("trainer", pod.path))
        assert pod.links() == ["net1"]
        found = pod.run("ip -o addr show net1; ip -o link show net1")
        assert "10.7.0.9/24" in found
        assert "02:00:00:00:07:01" in found
        shown = node.host.run("ip link show pf0 | grep 'vf 1'")
        for words in ("02:00:00:00:07:01", "vlan 100, qos 3", "max_tx_rate 100Mbps", "checking off", "trust on"):
            assert words in shown
        await agent.runtime.stop_pod(build_sandbox("trainer", pod.path))
        await agent.unprepare("claim")
        assert (node.host.describe(str(name)), node.host.run("ip link show pf0")) == before
