"""What a claim configures is so in the pod, and nothing of it stays when the interface is back."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from pydra import Inventory, NetworkData, TerminalError
from pydra_net.claim_config import NetworkConfig
from pydra_net.network_types import Address, Ethtool, Feature, Link, Neighbour, Reading, Route, Rule
from pydra_net.simulation.kernel import HOST
from pydra_net.simulation.machine import MACHINE_TYPES
from simulated_node import SimulatedNode

ETH1, ETH2 = "pci-0000-10-00-0", "pci-0000-20-00-0"


def config(**fields: Any) -> NetworkConfig:
    return msgspec.convert(fields, NetworkConfig)


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode(MACHINE_TYPES["server"], tmp_path)


async def test_the_interface_in_the_pod_is_as_the_claim_configures_it(node: SimulatedNode) -> None:
    wanted = config(
        interface={"name": "net1", "addresses": ["10.1.0.5/24"], "mtu": 1400, "hardwareAddr": "02:AA:00:00:00:01"},
        routes=[
            {"destination": "10.8.0.0/16", "gateway": "10.7.255.255", "table": 100},
            {"destination": "10.7.0.0/16", "scope": 253},
        ],
        rules=[{"source": "10.1.0.0/24", "table": 100, "priority": 50}],
        neighbors=[{"destination": "10.1.0.1", "hardwareAddr": "02:00:00:00:00:aa"}],
    )
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer", configs=(wanted,))
        await agent.start(sandbox)
        found = node.kernel.namespaces[sandbox.network_namespace]
        link = found.find_name("net1")
        assert link is not None
        assert (link.up, link.mtu, link.mac) == (True, 1400, "02:aa:00:00:00:01")
        assert found.addresses[link.index] == (Address(address="10.1.0.5/24"),)
        assert found.routes[link.index] == (
            Route(destination="10.7.0.0/16", scope=253, protocol=4),
            Route(destination="10.8.0.0/16", gateway="10.7.255.255", table=100, protocol=4),
        )
        assert found.rules == (Rule(family=4, table=100, priority=50, source="10.1.0.0/24"),)
        assert found.neighbours[link.index] == (Neighbour(destination="10.1.0.1", mac="02:00:00:00:00:aa"),)
        await agent.unprepare("claim")
    assert node.is_as_before()


async def test_sizes_and_sysctls_are_so_in_the_pod_only(node: SimulatedNode) -> None:
    wanted = config(interface={"gsoMaxSize": 131072, "arpIgnore": 8, "arpAnnounce": 2, "forwarding": False})
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer", configs=(wanted,))
        await agent.start(sandbox)
        link = node.kernel.namespaces[sandbox.network_namespace].find_name("eth1")
        assert link is not None
        assert link.parameters == {
            "gso_max_size": 131072,
            "gro_max_size": 65536,
            "arp_ignore": 8,
            "arp_announce": 2,
            "forwarding": 0,
        }
        await agent.unprepare("claim")
    assert node.is_as_before()


@pytest.mark.parametrize(
    ("interface", "message"),
    [
        ({"gsoMaxSize": 262145}, "interface.gsoMaxSize: found 262145, but eth1 can have 262144 at most"),
        ({"groIPv4MaxSize": 70000}, "interface.groIPv4MaxSize: the node's kernel cannot set it for eth1; remove it"),
        ({"dhcp": True}, "interface.dhcp: eth1 is not an Ethernet interface; set addresses instead"),
        ({"mtu": 9217}, "interface.mtu: found 9217, but eth1 can have 9216 at most"),
        ({"mtu": 1000}, "interface.mtu: found 1000, less than the 1280 that IPv6 needs, but eth1 has fd00::1/64; set"),
    ],
)
async def test_what_the_kernel_would_refuse_is_refused_before_the_pod_starts(
    interface: dict[str, int], message: str, node: SimulatedNode
) -> None:
    links = tuple(replace(one, hardware=32) if one.name == "eth1" else one for one in node.before.links)
    index = next(one.index for one in links if one.name == "eth1")
    addresses = {**node.before.addresses, index: (Address(address="fd00::1/64"),)}
    node.kernel.namespaces[HOST] = replace(node.before, links=links, addresses=addresses)
    async with node.run() as agent:
        with pytest.raises(TerminalError, match=message):
            await agent.prepare("claim", ETH1, configs=(config(interface=interface),))


async def test_a_gateway_that_no_address_of_the_node_leads_to_is_refused(node: SimulatedNode) -> None:
    wanted = config(routes=[{"destination": "10.8.0.0/16", "gateway": "10.2.0.1"}])
    async with node.run() as agent:
        with pytest.raises(TerminalError, match=r"routes.0..gateway: found 10.2.0.1, .* in.* interface .10.0.3.0/24."):
            await agent.prepare("claim", ETH1, configs=(wanted,))


STATIC = {"addresses": ["10.0.0.5/24"]}
TO_9, TO_9_ELSEWHERE = ({"destination": "10.9.0.0/16", "gateway": f"10.0.0.{one}"} for one in (1, 2))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(
            ({"interface": {"name": name}}, f"name: found {name}, which the kernel refuses; choose another")
            for name in ("all", "lo", "..")
        ),
        ({"interface": {"vrf": {"name": "default"}}}, "name: found default, which the kernel refuses"),
        *(
            ({"interface": {"addresses": [address]}}, f'addresses[0]: found "{address}", which no host can have')
            for address in ("::1/128", "::/64", "ff02::1/64", "0.0.0.0/24", "127.0.0.1/8", "224.0.0.1/24")
        ),
        ({"interface": {"addresses": ["10.0.0.255/24"]}}, 'found "10.0.0.255/24", which no host can have'),
        ({"interface": {"addresses": ["255.255.255.255/32"]}}, "which no host can have"),
        ({"interface": {"hardwareAddr": "00:00:00:00:00:00"}}, "which no interface can have"),
        ({"interface": {"hardwareAddr": "01:00:5e:00:00:01"}}, "which no interface can have"),
        ({"routes": [{"destination": "10.9.0.0/16", "gateway": "0.0.0.0"}]}, 'gateway: found "0.0.0.0", which no host'),
        ({"routes": [{"destination": "fd00::/16", "gateway": "ff02::1"}]}, 'gateway: found "ff02::1", which no host'),
        (
            {"interface": STATIC, "routes": [{"destination": "10.9.0.0/16", "gateway": "10.0.1.1"}]},
            "routes[0].gateway: found 10.0.1.1, which is in no network of the interface (10.0.0.0/24); add an address",
        ),
        (
            {"interface": STATIC, "routes": [{"destination": "10.9.0.0/16", "gateway": "10.0.0.5"}]},
            "routes[0].gateway: found 10.0.0.5, which is the address of the interface itself; name that of a router",
        ),
        (
            {"interface": STATIC, "routes": [{"destination": "10.9.0.0/16", "gateway": "10.0.0.255"}]},
            "routes[0].gateway: found 10.0.0.255, which no host of 10.0.0.0/24 can have; name that of a router",
        ),
        (
            {"interface": STATIC, "routes": [TO_9, {**TO_9_ELSEWHERE, "table": 254}]},
            "routes[1]: found another routes[0] before it, which it would replace; remove one of both",
        ),
        (
            {"neighbors": [{"destination": "fd00::1", "hardwareAddr": f"02:00:00:00:00:0{one}"} for one in (1, 2)]},
            "neighbors[1]: found another neighbors[0] before it, which it would replace; remove one of both",
        ),
        ({"rules": [{"source": "10.0.0.0/8", "table": 0}]}, "Expected `int` >= 1"),
        (
            {"interface": {"disableIPv6": True, "addresses": ["10.0.0.1/8", "fd00::1/64"]}},
            'interface.disableIPv6: found true, but also "fd00::1/64", which is of IPv6',
        ),
        (
            {"interface": {"mtu": 1279, "addresses": ["fd00::1/64"]}},
            'interface.mtu: found 1279, less than the 1280 that IPv6 needs, but also "fd00::1/64", which is of IPv6',
        ),
        ({"interface": {"disableIPv6": True, "addressing": "SLAAC"}}, 'but also "SLAAC", which is of IPv6'),
    ],
)
def test_what_no_pod_could_start_with_is_refused_before_there_is_a_claim(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=re.escape(message)):
        config(**fields)


def test_routes_are_not_compared_with_each_other() -> None:
    """A claim may have 32 configurations with hundreds of them, and the event loop of the webhook checks them."""
    calls = 0

    def count(_frame: object, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call"

    routes = [{"destination": f"{number:x}::/64", "scope": 253} for number in range(256)]
    sys.setprofile(count)
    try:
        config(routes=routes)
    finally:
        sys.setprofile(None)
    assert calls < 256 * 256


@pytest.mark.parametrize("addressing", ["DHCP", "SLAAC"])
def test_an_address_from_a_network_that_the_interface_cannot_ask_is_refused(addressing: str) -> None:
    interface = {"type": "ipvlan", "ipvlan": {"mode": "l3"}, "addressing": addressing}
    with pytest.raises(msgspec.ValidationError, match=r"ipvlan.mode: found l3, by which no broadcast reaches"):
        config(interface=interface)


async def test_settings_of_the_hardware_are_so_in_the_pod_only(node: SimulatedNode) -> None:
    before = Ethtool(features={"rx-gro": Feature(enabled=True)}, private_flags={"legacy-rx": False})
    node.kernel.ethtool["02:00:00:00:00:03"] = before
    wanted = config(ethtool={"features": {"gro": False}, "privateFlags": {"legacy-rx": True}})
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer", configs=(wanted,))
        await agent.start(sandbox)
        inside = Ethtool(features={"rx-gro": Feature(enabled=False)}, private_flags={"legacy-rx": True})
        assert node.kernel.ethtool["02:00:00:00:00:03"] == inside
        node.kernel.end_namespace(sandbox.network_namespace)
        await agent.unprepare("claim")
    assert node.kernel.ethtool["02:00:00:00:00:03"] == before


async def test_a_vrf_has_the_interfaces_of_the_pod_that_name_it_with_all_of_their_routes(node: SimulatedNode) -> None:
    in_vrf, in_another, named_so = (
        (config(interface=interface),)
        for interface in ({"vrf": {"name": "blue"}}, {"vrf": {"name": "blue", "table": 10}}, {"name": "blue"})
    )
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.prepare("one", ETH1, pod="trainer", configs=in_vrf)
        await agent.prepare("two", ETH2, pod="trainer", configs=in_vrf)
        with pytest.raises(TerminalError, match=r"in the VRF blue with table 10, which has table 1541 for another"):
            await agent.prepare("three", "pci-0000-30-00-0", pod="trainer", configs=in_another)
        with pytest.raises(TerminalError, match=r"vrf.name: found blue, but pci-0000-30-00-0 of the same claim has"):
            await agent.prepare("three", "pci-0000-30-00-0", pod="trainer", configs=named_so)
        await agent.start(sandbox)
        found = node.kernel.namespaces[sandbox.network_namespace]
        names = {link.name: link for link in found.links}
        assert {names["eth1"].master, names["eth2"].master} == {names["blue"].index}
        assert {route.table for routes in found.routes.values() for route in routes} == {1541}
        await agent.unprepare("one")
        await agent.unprepare("two")
    assert node.is_as_before()


async def test_two_configurations_for_one_request_are_refused(node: SimulatedNode) -> None:
    both = (config(interface={"mtu": 1400}), config(interface={"mtu": 9000}))
    async with node.run() as agent:
        with pytest.raises(TerminalError, match=r"2 configurations are for request r0, .* write them into one"):
            await agent.prepare("claim", ETH1, configs=both)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("10.0.5.1/24", "interface.addresses: the node itself has 10.0.5.1; give the pod an address of its own"),
        ("10.1.0.5/16", "pci-0000-20-00-0 would have 10.1.0.5 in the pod, as pci-0000-10-00-0 of claim team/first"),
    ],
)
async def test_an_address_in_use_is_refused_before_the_pod_starts(
    address: str, message: str, node: SimulatedNode
) -> None:
    first, second = (config(interface={"addresses": [one]}) for one in ("10.1.0.5/24", address))
    async with node.run() as agent:
        await agent.prepare("first", ETH1, pod="trainer", configs=(first,))
        with pytest.raises(TerminalError, match=message):
            await agent.prepare("second", ETH2, pod="trainer", configs=(second,))


@pytest.mark.parametrize(
    ("name", "holder"),
    [("eth0", "the interface of the pod network"), ("net1", "an interface of claim team/first")],
)
async def test_a_name_that_the_pod_has_already_is_refused_before_the_pod_starts(
    name: str, holder: str, node: SimulatedNode
) -> None:
    async with node.run() as agent:
        await agent.prepare("first", ETH1, pod="trainer", configs=(config(interface={"name": "net1"}),))
        with pytest.raises(TerminalError, match=f"would have the name {name} in the pod, which {holder} has"):
            await agent.prepare(
                "second", "pci-0000-20-00-0", pod="trainer", configs=(config(interface={"name": name}),)
            )


async def test_the_claims_status_says_whether_the_interface_is_in_the_pod_and_how(node: SimulatedNode) -> None:
    def read_status(inventory: Inventory) -> tuple[str, str]:
        (one,) = inventory.claim_statuses
        (ready,) = one.status.conditions
        return ready.reason, ready.message

    wanted = config(interface={"name": "net1", "addresses": ["10.1.0.5/24"]})
    first, second = node.begin_pod("trainer"), node.begin_pod("trainer", number=2)
    async with node.run() as agent:
        (prepared,) = await agent.prepare("claim", ETH1, pod="trainer", configs=(wanted,))
        assert prepared.status is not None
        assert prepared.status.network_data == NetworkData(
            interface_name="net1", ips=("10.1.0.5/24",), hardware_address="02:00:00:00:00:03"
        )
        assert read_status(await agent.backend.discover())[0] == "WaitingForPod"
        taken = Link(index=5, name="net1", kind="dummy")
        node.kernel.namespaces[first.network_namespace] = Reading(links=(taken,))
        await agent.runtime.run_pod(first)
        await agent.backend.wait_changed()
        inventory = await agent.backend.discover()
        reason, message = read_status(inventory)
        assert inventory.claim_statuses[0].warning == message, "an Event on the claim"
        assert (reason, message[:33]) == ("InterfaceNotAttached", "the pod has an interface net1 alr")
        await agent.start(second)
        await agent.backend.wait_changed()
        assert read_status(await agent.backend.discover())[0] == "NetworkDeviceReady"
        await agent.unprepare("claim")
        assert (await agent.backend.discover()).claim_statuses == ()
