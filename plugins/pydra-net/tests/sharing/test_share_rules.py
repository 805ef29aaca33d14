"""What a share may not have beside the node's interface and other shares is refused before the pod starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from pydra import ClaimError, TerminalError
from pydra_net.claim_config import NetworkConfig
from pydra_net.netlink.link_reading import parse_link
from pydra_net.network_types import Link
from pydra_net.simulation.machine import MACHINE_TYPES
from simulated_node import SimulatedNode

ETH1, ETH2 = "pci-0000-10-00-0", "pci-0000-20-00-0"


def config(interface: dict[str, Any]) -> tuple[NetworkConfig, ...]:
    return (msgspec.convert({"interface": interface}, NetworkConfig),)


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode(MACHINE_TYPES["server"], tmp_path, shared="eth2")


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            {"type": "vlan", "vlan": {"id": 5}},
            {"type": "vlan", "vlan": {"id": 5}},
            "has VLAN 5 for claim team/first already; it is free when that has ended",
        ),
        (
            {},
            {"type": "ipvlan"},
            "has macvlan interfaces, for claim team/first, so the kernel makes no ipvlan interface on it",
        ),
        (
            {"addresses": ["10.0.4.5/24"]},
            {"addresses": ["10.0.4.5/16"]},
            "has a share with the address 10.0.4.5 for claim team/first already",
        ),
        (
            {"type": "ipvlan"},
            {"type": "ipvlan", "ipvlan": {"mode": "l3"}},
            "has ipvlan interfaces of mode l2, for claim team/first, which would get the mode l3, too; set the same",
        ),
        ({}, {"addresses": ["10.0.2.1/24"]}, "the node itself has 10.0.2.1; give the pod an address of its own"),
        ({}, {"mtu": 9001}, "interface.mtu: found 9001, but eth2 has 9000"),
        ({}, {"type": "passthrough"}, "interface.type: found passthrough, but pci-0000-20-00-0 is offered in shares"),
        ({}, {"gsoMaxSize": 262145}, "interface.gsoMaxSize: found 262145, but eth2 can have 262144 at most"),
    ],
)
async def test_what_excludes_a_share_is_said_before_the_pod_starts(
    first: dict[str, Any], second: dict[str, Any], message: str, node: SimulatedNode
) -> None:
    async with node.run() as agent:
        await agent.prepare("first", f"{ETH2}/1", configs=config(first))
        with pytest.raises(ClaimError, match=re.escape(message)):
            await agent.prepare("second", f"{ETH2}/2", configs=config(second))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"type": "vlan", "vlan": {"id": 5}}, {"type": "vlan", "vlan": {"id": 5}}, "VLAN 5 for the same claim already"),
        ({}, {"type": "ipvlan"}, "has macvlan interfaces, for the same claim, so the kernel makes no ipvlan"),
        ({"addresses": ["10.0.4.5/24"]}, {"addresses": ["10.0.4.5/24"]}, "address 10.0.4.5 for the same claim"),
    ],
)
async def test_shares_of_one_claim_that_exclude_each_other_are_refused_for_good(
    first: dict[str, Any], second: dict[str, Any], message: str, node: SimulatedNode
) -> None:
    async with node.run() as agent:
        with pytest.raises(TerminalError, match=message):
            await agent.prepare(
                "claim",
                f"{ETH2}/1",
                f"{ETH2}/2",
                configs_by_device=(config({"name": "net1", **first}), config({"name": "net2", **second})),
            )


@pytest.mark.parametrize(
    ("present", "wanted", "message"),
    [
        ({"kind": "vlan", "vlan": 5}, {"type": "vlan", "vlan": {"id": 5}}, "has VLAN 5 for the node itself (own0)"),
        ({"kind": "macvlan"}, {"type": "ipvlan"}, "has macvlan interfaces, for the node itself (own0), so the kernel"),
        (
            {"kind": "ipvlan", "ipvlan_mode": "l3s"},
            {"type": "ipvlan"},
            "has ipvlan interfaces of mode l3s, for the node itself (own0), which would get the mode l2",
        ),
    ],
)
async def test_what_the_node_itself_has_on_the_interface_excludes_a_share_before_the_pod_starts(
    present: dict[str, Any], wanted: dict[str, Any], message: str, node: SimulatedNode
) -> None:
    parent = node.before.find_name("eth2")
    assert parent is not None
    node.kernel.add_link(Link(index=20, name="own0", lower=parent.index, **present))
    async with node.run() as agent:
        with pytest.raises(TerminalError, match=re.escape(message)):
            await agent.prepare("claim", f"{ETH2}/1", configs=config(wanted))
        await agent.prepare("other", f"{ETH2}/1", configs=config({"type": "vlan", "vlan": {"id": 6}}))


@pytest.mark.parametrize(
    ("kind", "attributes", "found"),
    [
        ("vlan", [["IFLA_VLAN_ID", 5], ["IFLA_VLAN_PROTOCOL", 0x8100]], (5, "")),
        ("vlan", [["IFLA_VLAN_ID", 5], ["IFLA_VLAN_PROTOCOL", 0x88A8]], (0, "")),
        ("ipvlan", [["IFLA_IPVLAN_MODE", 2]], (0, "l3s")),
    ],
)
def test_the_kernel_says_which_vlan_and_mode_a_link_has(
    kind: str, attributes: list[list[Any]], found: tuple[int, str]
) -> None:
    message = ifinfmsg()
    info = [["IFLA_INFO_KIND", kind], ["IFLA_INFO_DATA", {"attrs": attributes}]]
    message["attrs"] = [["IFLA_IFNAME", "own0"], ["IFLA_LINKINFO", {"attrs": info}]]
    message.encode()
    link = parse_link(message.data)
    assert (link.vlan, link.ipvlan_mode) == found


async def test_vlans_and_macvlans_are_beside_each_other(node: SimulatedNode) -> None:
    async with node.run() as agent:
        for number, wanted in enumerate(({}, {"type": "vlan", "vlan": {"id": 5}}, {"type": "vlan", "vlan": {"id": 6}})):
            await agent.prepare(f"claim-{number}", f"{ETH2}/{number}", configs=config(wanted))


@pytest.mark.parametrize(
    ("interface", "message"),
    [
        ({"type": "vlan"}, "vlan: is required with type vlan"),
        ({"vlan": {"id": 5}}, "vlan: needs type vlan"),
        ({"type": "macvlan", "ipvlan": {}}, "ipvlan: needs type ipvlan"),
        ({"type": "ipvlan", "hardwareAddr": "02:00:00:00:00:01"}, "hardwareAddr: cannot be set with type ipvlan"),
        ({"type": "vlan", "vlan": {"id": 4095}}, "`int` <= 4094"),
    ],
)
def test_contradictions_are_refused_by_the_webhook_already(interface: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=re.escape(message)):
        config(interface)


async def test_the_claims_status_says_it_of_each_share(node: SimulatedNode) -> None:
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.prepare("claim", f"{ETH2}/1", pod="trainer", configs=config({"name": "net1"}))
        await agent.prepare("waiting", f"{ETH2}/2", configs=config({"addresses": ["10.0.4.5/24"]}))
        await agent.start(sandbox)
        found = {one.share_id: one.status for one in (await agent.backend.discover()).claim_statuses}
        ready = {share: status.conditions[0].reason for share, status in found.items()}
        assert ready == {"1": "NetworkDeviceReady", "2": "WaitingForPod"}
        data = found["1"].network_data
        assert data is not None
        link = node.kernel.namespaces[sandbox.network_namespace].find_name("net1")
        assert link is not None
        assert (data.interface_name, data.hardware_address) == ("net1", link.mac)


async def test_an_interface_that_is_not_shared_any_more_is_not_given_in_shares_and_its_shares_end(
    node: SimulatedNode,
) -> None:
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.prepare("claim", f"{ETH2}/1", pod="trainer", configs=config({"name": "net1"}))
        await agent.start(sandbox)
    node.agent.settings = msgspec.structs.replace(node.agent.settings, shared="eth1")
    async with node.run() as agent:
        with pytest.raises(ClaimError, match=r"eth2 .pci-0000-20-00-0. is not offered in shares any more"):
            await agent.prepare("second", f"{ETH2}/2")
        with pytest.raises(ClaimError, match=r"pci-0000-10-00-0 is offered in shares"):
            await agent.prepare("whole", ETH1, configs=config({"type": "passthrough"}))
        await agent.unprepare("claim")
    assert node.list_in_pods() == []


async def test_a_cluster_without_shares_gives_the_interface_to_one_claim_which_leaves_it_on_the_node(
    node: SimulatedNode,
) -> None:
    """Without the feature gate, the allocation has no share ID."""
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.prepare("claim", ETH2, pod="trainer", configs=config({"name": "net1"}))
        await agent.start(sandbox)
        assert node.names_in(sandbox) == ["net1"]
        assert node.is_as_before()
        await agent.unprepare("claim")
    assert node.list_in_pods() == []
