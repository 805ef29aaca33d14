"""Interfaces whose addresses come from a DHCP server: in simulated namespaces, and in those of the kernel."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dhcp_server import ADDRESS, SERVER, DhcpServer, advertise
from namespaces import find_problem, make_node
from net_agent import NetAgent, build_sandbox, build_settings
from pydra import Inventory
from pydra_net.claim_config import NetworkConfig
from pydra_net.dhcp.client import Client
from pydra_net.dhcp.messages import DISCOVER, RELEASE, REQUEST, Lease, Request, decode, encode
from pydra_net.hardware_types import Reading
from pydra_net.operations import Namespace
from pydra_net.simulation.kernel import HOST
from pydra_net.simulation.machine import MACHINE_TYPES
from pydra_nri import Container, PodSandbox
from pydra_nri.simulation.runtime import OperationFailed
from simulated_node import SimulatedNode

ETH1 = "pci-0000-10-00-0"
GATEWAY = {"destination": "10.9.0.0/16", "gateway": SERVER}
CONFIG = (msgspec.convert({"interface": {"name": "net1", "dhcp": True}, "routes": [GATEWAY]}, NetworkConfig),)


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode(MACHINE_TYPES["server"], tmp_path)


def container(sandbox: PodSandbox) -> Container:
    return Container(id=f"{sandbox.id}-main", name="main", pod_sandbox_id=sandbox.id)


def read_status(inventory: Inventory) -> tuple[str, tuple[str, ...]]:
    (one,) = inventory.claim_statuses
    assert one.status.network_data is not None
    return one.status.conditions[0].reason, one.status.network_data.ips


def read_pod(node: SimulatedNode, sandbox: PodSandbox) -> tuple[list[str], list[str]]:
    found: Reading = node.kernel.namespaces[sandbox.network_namespace]
    addresses = [one.address for each in found.addresses.values() for one in each]
    return addresses, [one.destination for each in found.routes.values() for one in each]


async def test_an_interface_has_the_address_and_routes_of_the_server_until_it_is_back(node: SimulatedNode) -> None:
    server = DhcpServer()
    node.kernel.dhcp = server.answer
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer", configs=CONFIG)
        await agent.runtime.run_pod(sandbox)
        await agent.runtime.create_container(container(sandbox))
        assert read_pod(node, sandbox) == ([f"{ADDRESS}/24"], ["10.8.0.0/16", "10.9.0.0/16"]), "no default route"
        assert read_status(await agent.backend.discover()) == ("NetworkDeviceReady", (f"{ADDRESS}/24",))
        await agent.unprepare("claim")
    assert server.log == [(DISCOVER, "0.0.0.0"), (REQUEST, "0.0.0.0"), (RELEASE, ADDRESS)]
    assert node.is_as_before()


async def test_no_container_starts_before_a_server_has_answered(node: SimulatedNode) -> None:
    """The runtime would go on without the backend if that waited for a server that is slow."""
    server = DhcpServer()
    server.silent = True
    node.agent.runtime.request_timeout = 1.0
    node.kernel.dhcp = server.answer
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer", configs=CONFIG)
        await agent.runtime.run_pod(sandbox)
        with pytest.raises(OperationFailed, match=r"nobody has given eth1 .* an address, by DHCP or SLAAC"):
            await agent.runtime.create_container(container(sandbox))
        assert read_status(await agent.backend.discover()) == ("WaitingForAddress", ())
        assert "closed dra.net" not in agent.runtime.log
        server.silent = False
        async with asyncio.timeout(30):
            while read_status(await agent.backend.discover())[0] == "WaitingForAddress":
                await agent.backend.wait_changed()
        await agent.runtime.create_container(container(sandbox))
        assert read_status(await agent.backend.discover())[0] == "NetworkDeviceReady"


async def test_after_a_restart_the_address_is_asked_for_again_and_replaced_if_it_is_refused(
    node: SimulatedNode,
) -> None:
    server = DhcpServer()
    node.kernel.dhcp = server.answer
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer", configs=CONFIG)
        await agent.runtime.run_pod(sandbox)
    for address, kinds in ((ADDRESS, [REQUEST]), ("10.0.0.78", [REQUEST, DISCOVER, REQUEST])):
        server.log.clear()
        server.address = address
        async with node.run() as agent:
            await agent.runtime.create_container(container(sandbox))
            async with asyncio.timeout(30):
                while read_pod(node, sandbox)[0] != [f"{address}/24"] or len(server.log) < len(kinds):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert [kind for kind, _ in server.log] == kinds


async def test_an_address_that_ends_after_a_restart_is_not_said_to_be_there(node: SimulatedNode) -> None:
    server = DhcpServer(seconds=1)
    node.kernel.dhcp = server.answer
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer", configs=CONFIG)
        await agent.runtime.run_pod(sandbox)
    server.silent = True
    async with node.run() as agent:
        async with asyncio.timeout(30):
            while read_status(await agent.backend.discover()) != ("WaitingForAddress", ()):
                await agent.backend.wait_changed()
        assert read_pod(node, sandbox)[0] == []


async def test_an_address_is_renewed_in_the_kernels_namespaces() -> None:
    if problem := find_problem():
        pytest.skip(problem)
    server = DhcpServer()
    server.renews = [0, 1800]
    with make_node() as node:
        before = node.host.describe("nic0")
        node.switch.run(f"ip addr add {SERVER}/24 dev switch0")
        settings = build_settings(node)
        agent = NetAgent(settings)
        pod = node.begin_pod("trainer")
        sandbox = build_sandbox("trainer", pod.path)
        async with server.serve(node.switch.path, "switch0"), agent.runtime.serve(settings.nri_socket), agent.run():
            await agent.prepare("claim", "nic0", pod="trainer", configs=CONFIG)
            await agent.runtime.run_pod(sandbox)
            await agent.runtime.create_container(container(sandbox))
            found = pod.describe("net1")
            assert f"{ADDRESS}/24" in found
            assert "10.8.0.0/16 via 10.0.0.8" in found
            assert "10.9.0.0/16 via 10.0.0.8" in found
            assert "valid_lft 3" in pod.run("ip addr show net1"), "the kernel ends it if nobody renews it"
            async with asyncio.timeout(30):
                while (REQUEST, ADDRESS) not in server.log:  # noqa: ASYNC110 - in the kernel
                    await asyncio.sleep(0.01)
            await agent.unprepare("claim")
            async with asyncio.timeout(30):
                while server.log[-1] != (RELEASE, ADDRESS):  # noqa: ASYNC110 - in the kernel
                    await asyncio.sleep(0.01)
        assert node.host.describe("nic0") == before


async def test_an_interface_gets_an_address_from_a_router_in_the_kernels_namespaces() -> None:
    if problem := find_problem():
        pytest.skip(problem)
    with make_node() as node:
        before = node.host.describe("nic0")
        settings = build_settings(node)
        agent = NetAgent(settings)
        pod = node.begin_pod("trainer")
        sandbox = build_sandbox("trainer", pod.path)
        interface = {"addressing": "SLAAC", "dadTransmits": 0}
        routes = [{"destination": "2001:db8:9::/48", "gateway": "2001:db8::1"}]
        configs = (msgspec.convert({"interface": interface, "routes": routes}, NetworkConfig),)
        async with agent.runtime.serve(settings.nri_socket), agent.run():
            await agent.prepare("claim", "nic0", pod="trainer", configs=configs)
            begun = asyncio.create_task(agent.runtime.run_pod(sandbox))
            async with asyncio.timeout(30):
                while "nic0" not in pod.links():  # noqa: ASYNC110 - in the kernel
                    await asyncio.sleep(0.01)
                while not begun.done():
                    with suppress(OSError):  # its own address is checked for duplicates
                        advertise(node.switch.path, "switch0")
                    await asyncio.sleep(0.1)
            await begun
            found = pod.describe("nic0")
            assert "2001:db8::" in found
            assert "2001:db8:9::/48 via 2001:db8::1" in found
            assert "fd00::1" not in found
            reason, addresses = read_status(await agent.backend.discover())
            assert (reason, addresses[0][:10]) == ("NetworkDeviceReady", "2001:db8::")
            await agent.unprepare("claim")
        assert node.host.describe("nic0") == before


class Flood:
    """Packets of a stranger: another one is there whenever the client looks."""

    received = 0

    async def send(self, _message: bytes, _server: str) -> None:
        pass

    async def receive(self) -> bytes:
        self.received += 1
        assert self.received < 1000, "nothing else runs"
        return b"noise"

    def close(self) -> None:
        pass


async def test_whoever_floods_the_pods_network_does_not_stop_the_backend() -> None:
    flood = Flood()

    async def open_packets(_address: str) -> Flood:
        return flood

    async def set_lease(_lease: Lease | None) -> None:
        pass

    running = asyncio.create_task(Client("eth1", "02:00:00:00:00:01", b"", open_packets, set_lease).run())
    while flood.received < 10:  # noqa: ASYNC110 - the turn itself is what is tested
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()


class Advertised:
    """Events of a namespace in which a stranger advertises routers all the time."""

    async def wait(self) -> None:
        pass

    def close(self) -> None:
        pass


async def test_whoever_advertises_routers_all_the_time_is_looked_at_sometimes(node: SimulatedNode) -> None:
    node.agent.runtime.request_timeout = 1.0
    sandbox = node.begin_pod("trainer")
    configs = (msgspec.convert({"interface": {"addressing": "SLAAC"}}, NetworkConfig),)
    watch, read = node.kernel.watch, node.kernel.read
    readings: list[Namespace] = []
    node.kernel.watch = lambda where: watch(where) if where.path == HOST else Advertised()
    node.kernel.read = lambda where: (where.path == HOST or readings.append(where), read(where))[1]
    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer", configs=configs)
        await agent.runtime.run_pod(sandbox)
        assert 0 < len(readings) < 12, "in 0.6 s"


@pytest.mark.parametrize(
    ("address", "seconds", "message"),
    [
        ("0.0.0.0", 60, "found the address 0.0.0.0, which no interface can have"),
        ("127.0.0.1", 60, "found the address 127.0.0.1, which no interface can have"),
        ("224.0.0.1", 60, "found the address 224.0.0.1, which no interface can have"),
        ("255.255.255.255", 60, "found the address 255.255.255.255, which no interface can have"),
        (ADDRESS, 0, "found a lease of 0 s"),
    ],
)
def test_a_lease_that_no_interface_can_have_is_not_taken(address: str, seconds: int, message: str) -> None:
    server = DhcpServer(seconds=seconds)
    server.address = address
    answer = server.answer(encode(Request(kind=DISCOVER, transaction=7, mac="02:00:00:00:00:01")))
    assert answer is not None
    with pytest.raises(ValueError, match=message):
        decode(answer)


@pytest.mark.fuzz
@given(st.binary(max_size=600), st.binary(max_size=80))
def test_whatever_comes_is_a_lease_in_order_or_no_message(noise: bytes, options: bytes) -> None:
    request = encode(Request(kind=DISCOVER, transaction=7, mac="02:00:00:00:00:01"))
    for data in (noise, b"\2" + request[1:16] + socket.inet_aton(ADDRESS) + request[20:240] + b"\x35\1\2" + options):
        try:
            reply = decode(data)
        except ValueError:
            continue
        assert ipaddress.ip_interface(reply.lease.address).version == 4
        assert reply.lease.renew <= reply.lease.rebind <= reply.lease.seconds
