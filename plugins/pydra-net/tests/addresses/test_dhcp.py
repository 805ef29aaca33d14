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
from msgspec.structs import replace

from dhcp_server import ADDRESS, ROUTES, SERVER, DhcpServer, advertise
from namespaces import find_problem, make_node
from net_agent import NetAgent, build_container, build_sandbox, build_settings
from pydra import Inventory
from pydra_net.claim_config import NetworkConfig
from pydra_net.dhcp.client import Client, Identity
from pydra_net.dhcp.messages import DECLINE, DISCOVER, RELEASE, REQUEST, Lease, Request, decode, encode
from pydra_net.kernel import Namespace
from pydra_net.network_types import FOREVER, Address, Reading
from pydra_net.simulation.kernel import HOST, SimulatedPackets
from pydra_net.simulation.machine import MACHINE_TYPES
from pydra_nri import PodSandbox
from pydra_nri.simulation.runtime import OperationFailed
from simulated_node import SimulatedNode

ETH1 = "pci-0000-10-00-0"
GATEWAY = {"destination": "10.9.0.0/16", "gateway": SERVER}
CONFIG = (msgspec.convert({"interface": {"name": "net1", "dhcp": True}, "routes": [GATEWAY]}, NetworkConfig),)


@pytest.fixture
def node(tmp_path: Path) -> SimulatedNode:
    return SimulatedNode(MACHINE_TYPES["server"], tmp_path)


async def lease_address(node: SimulatedNode, server: DhcpServer) -> PodSandbox:
    """The sandbox of a pod that has an address of the server, by a backend that does not run any more."""
    node.kernel.dhcp = server.answer
    sandbox = node.begin_pod("trainer")
    async with node.run() as agent:
        await agent.prepare("claim", ETH1, pod="trainer", configs=CONFIG)
        await agent.runtime.run_pod(sandbox)
    return sandbox


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
        await agent.runtime.create_container(build_container(sandbox))
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
        with pytest.raises(OperationFailed, match=r"no address, by DHCP or SLAAC, for eth1 "):
            await agent.runtime.create_container(build_container(sandbox))
        assert read_status(await agent.backend.discover()) == ("WaitingForAddress", ())
        assert "closed dra.net" not in agent.runtime.log
        server.silent = False
        async with asyncio.timeout(30):
            while read_status(await agent.backend.discover())[0] == "WaitingForAddress":
                await agent.backend.wait_changed()
        await agent.runtime.create_container(build_container(sandbox))
        assert read_status(await agent.backend.discover())[0] == "NetworkDeviceReady"


async def test_after_a_restart_the_address_is_asked_for_again_and_replaced_if_it_is_refused(
    node: SimulatedNode,
) -> None:
    """A container that starts at any moment of this waits for the other address."""
    server = DhcpServer()
    sandbox = await lease_address(node, server)
    node.agent.runtime.request_timeout = 30.0
    for address, kinds in ((ADDRESS, [REQUEST]), ("10.0.0.78", [REQUEST, DISCOVER, REQUEST])):
        server.log.clear()
        server.address = address
        async with node.run() as agent:
            ready = ("NetworkDeviceReady", (f"{address}/24",))
            async with asyncio.timeout(30):
                while read_status(await agent.backend.discover()) != ready or len(server.log) < len(kinds):
                    await agent.runtime.create_container(build_container(sandbox))
            assert read_pod(node, sandbox)[0] == [f"{address}/24"]
            assert [kind for kind, _ in server.log] == kinds


async def test_an_address_that_ends_after_a_restart_is_not_said_to_be_there(node: SimulatedNode) -> None:
    server = DhcpServer((1, ROUTES))
    sandbox = await lease_address(node, server)
    server.silent = True
    async with node.run() as agent:
        async with asyncio.timeout(30):
            while read_status(await agent.backend.discover()) != ("WaitingForAddress", ()):
                await agent.backend.wait_changed()
        assert read_pod(node, sandbox)[0] == []


@pytest.mark.parametrize(("valid", "has_lease"), [(60, True), (FOREVER, False)], ids=["beside it", "after its end"])
async def test_after_a_restart_an_address_that_the_pod_has_set_is_not_taken_for_the_lease(
    node: SimulatedNode, valid: int, has_lease: bool
) -> None:
    server = DhcpServer((FOREVER, ROUTES))
    sandbox = await lease_address(node, server)
    own = Address(address="192.168.7.1/24", valid=valid, preferred=valid)
    found: Reading = node.kernel.namespaces[sandbox.network_namespace]
    addresses = {index: (own, *(each if has_lease else ())) for index, each in found.addresses.items() if each}
    node.kernel.namespaces[sandbox.network_namespace] = replace(found, addresses=addresses)
    async with node.run() as agent, asyncio.timeout(30):
        while f"{ADDRESS}/24" not in str(read_status(await agent.backend.discover())):
            await agent.backend.wait_changed()
        assert sorted(read_pod(node, sandbox)[0]) == [f"{ADDRESS}/24", own.address]


async def test_an_address_that_a_server_refuses_after_a_restart_is_not_used_until_there_is_another(
    node: SimulatedNode,
) -> None:
    server = DhcpServer()
    sandbox = await lease_address(node, server)
    server.address = "10.0.0.78"
    node.kernel.dhcp = lambda message: server.answer(message) if message[242] == REQUEST else None
    async with node.run() as agent, asyncio.timeout(30):
        while read_status(await agent.backend.discover()) != ("WaitingForAddress", ()):
            await agent.backend.wait_changed()
        assert read_pod(node, sandbox)[0] == []


async def test_a_renewed_lease_replaces_the_routes_of_the_last_one_in_the_kernels_namespaces(
    caplog: pytest.LogCaptureFixture,
) -> None:
    if problem := find_problem():
        pytest.skip(problem)
    refused = bytes((16, 10, 7, 10, 99, 0, 1))
    """10.7.0.0/16 by a gateway that is in no network of the interface."""
    server = DhcpServer((4, ROUTES + refused))
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
            await agent.runtime.create_container(build_container(sandbox))
            found = pod.describe("net1")
            assert f"{ADDRESS}/24" in found
            assert "10.8.0.0/16 via 10.0.0.8" in found
            assert "10.9.0.0/16 via 10.0.0.8" in found
            assert "default" not in pod.run("ip route"), "the pod has one by its pod network"
            pod.run("ip addr add 10.0.0.200/32 dev net1")
            async with asyncio.timeout(60):
                while server.log.count((REQUEST, ADDRESS)) < 2:  # noqa: ASYNC110 - in the kernel
                    await asyncio.sleep(0.1)
                server.leases = [(3600, bytes((16, 10, 6, 10, 0, 0, 9)))]
                while "10.6.0.0/16 via 10.0.0.9" not in pod.describe("net1"):  # noqa: ASYNC110 - in the kernel
                    await asyncio.sleep(0.1)
            assert "10.8.0.0/16" not in pod.describe("net1")
            assert "10.0.0.200/32" in pod.describe("net1"), "what the pod has set stays"
            assert "valid_lft 3" in pod.run("ip addr show net1"), "the kernel ends it if nobody renews it"
            ends = caplog.text.count("has ended, since no DHCP server answered")  # where the machine stood still
            assert caplog.text.count("add route 10.7.0.0/16") == 1 + ends, "not once for each renewal"
            await agent.unprepare("claim")
            async with asyncio.timeout(30):
                while server.log[-1] != (RELEASE, ADDRESS):  # noqa: ASYNC110 - in the kernel
                    await asyncio.sleep(0.01)
        assert node.host.describe("nic0") == before


async def test_an_address_that_somebody_else_has_is_declined_in_the_kernels_namespaces() -> None:
    if problem := find_problem():
        pytest.skip(problem)
    server = DhcpServer()
    with make_node() as node:
        node.switch.run(f"ip addr add {SERVER}/24 dev switch0; ip addr add {ADDRESS}/24 dev switch0")
        its_mac = node.switch.run("ip -o link show switch0").split("link/ether ")[1].split()[0]
        settings = build_settings(node)
        agent = NetAgent(settings)
        agent.runtime.request_timeout = 5.0
        pod = node.begin_pod("trainer")
        sandbox = build_sandbox("trainer", pod.path)
        async with server.serve(node.switch.path, "switch0"), agent.runtime.serve(settings.nri_socket), agent.run():
            await agent.prepare("claim", "nic0", pod="trainer", configs=CONFIG)
            await agent.runtime.run_pod(sandbox)
            async with asyncio.timeout(30):
                while (DECLINE, "0.0.0.0") not in server.log:  # noqa: ASYNC110 - in the kernel
                    await asyncio.sleep(0.01)
            with pytest.raises(OperationFailed, match=f"gives it {ADDRESS}, which {its_mac} has already"):
                await agent.runtime.create_container(build_container(sandbox))
            assert ADDRESS not in pod.describe("net1")
            await agent.unprepare("claim")


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

    async def find_user(_address: str) -> str:
        return ""

    client = Client(Identity(name="eth1", mac="02:00:00:00:00:01"), open_packets, find_user, set_lease)
    running = asyncio.create_task(client.run())
    while flood.received < 10:  # noqa: ASYNC110 - the turn itself is what is tested
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert running.cancelled()


@pytest.mark.parametrize("earlier", ["", ADDRESS], ids=["a new client", "one that had the address elsewhere"])
async def test_after_an_address_that_somebody_else_has_the_server_is_asked_for_another(earlier: str) -> None:
    server, leases, client = DhcpServer(), asyncio.Queue[Lease | None](), Identity(name="eth1", mac="02:00:00:00:00:01")
    sent = list[tuple[int, bool, bool]]()

    def answer(message: bytes) -> bytes | None:
        reply, wish = server.answer(message), b"\x32\x04" + socket.inet_aton(ADDRESS)
        sent.append((server.log[-1][0], message[10] == 0x80, wish in message))
        return reply

    async def open_packets(_address: str) -> SimulatedPackets:
        return SimulatedPackets(answer)

    async def find_user(address: str) -> str:
        user = "02:00:00:00:00:99" if address == ADDRESS else ""
        server.address = "10.0.0.78"
        return user

    run = Client(client, open_packets, find_user, leases.put, after_conflict=0).run(earlier=earlier)
    running = asyncio.create_task(run)
    async with asyncio.timeout(30):
        lease = await leases.get()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert lease is not None
    assert lease.address == "10.0.0.78/24"
    asked = [] if earlier else [(DISCOVER, True, False)]
    refused = [(REQUEST, True, True), (DECLINE, False, True)]
    assert sent == [*asked, *refused, (DISCOVER, True, False), (REQUEST, True, False)]


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
        ("0.0.0.0", 60, "found the address 0.0.0.0/24, which no host can have"),
        ("127.0.0.1", 60, "found the address 127.0.0.1/24, which no host can have"),
        ("224.0.0.1", 60, "found the address 224.0.0.1/24, which no host can have"),
        ("255.255.255.255", 60, "found the address 255.255.255.255/24, which no host can have"),
        ("10.0.0.255", 60, "found the address 10.0.0.255/24, which no host can have"),
        (ADDRESS, 0, "found a lease of 0 s"),
    ],
)
def test_a_lease_that_no_host_can_have_is_not_taken(address: str, seconds: int, message: str) -> None:
    server = DhcpServer((seconds, ROUTES))
    server.address = address
    answer = server.answer(encode(Request(kind=DISCOVER, transaction=7, mac="02:00:00:00:00:01")))
    assert answer is not None
    with pytest.raises(ValueError, match=message):
        decode(answer)


def test_options_are_also_read_where_a_server_has_put_them_for_want_of_room() -> None:
    """In the fields for names of files, which it says by option 52 (RFC 2132, 9.3); parts of one option are joined."""
    answer = DhcpServer().answer(encode(Request(kind=DISCOVER, transaction=7, mac="02:00:00:00:00:01")))
    assert answer is not None
    one, two = (bytes((121, 7, 24, 10, number, 1, 10, 0, 0)) for number in (1, 2))
    file, sname = (one + bytes((121, 1, 8)) + b"\xff").ljust(128, b"\0"), (two + bytes((121, 1, 9))).ljust(64, b"\0")
    without_routes = answer[240:].replace(bytes((121, len(ROUTES))) + ROUTES, bytes((52, 1, 3)))
    found = decode(answer[:44] + sname + file + answer[236:240] + without_routes)
    assert found.lease.routes == (("10.1.1.0/24", "10.0.0.8"), ("10.2.1.0/24", "10.0.0.9"))


@pytest.mark.parametrize("time", [b"\x33\x02\x0e\x10", b""])
def test_a_lease_without_a_time_that_can_be_read_is_not_taken(time: bytes) -> None:
    """It would be taken for one that does not end, and never be renewed."""
    answer = DhcpServer().answer(encode(Request(kind=DISCOVER, transaction=7, mac="02:00:00:00:00:01")))
    assert answer is not None
    with pytest.raises(ValueError, match="found a lease without its time"):
        decode(answer.replace(b"\x33\x04\x00\x00\x0e\x10", time))


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
        lease = reply.lease
        assert 0 <= lease.renew <= lease.rebind <= lease.seconds
        assert not lease.seconds or lease.renew >= min(60, lease.seconds / 2)


@pytest.mark.parametrize(
    ("seconds", "renew", "rebind", "found"),
    [
        (3600, 600, 1200, (600, 1200)),
        (3600, None, None, (1800, 3150)),
        (3600, 0, 0, (1800, 3150)),
        (3600, 1, 2, (60, 105)),
        (3600, 600, 3600, (1800, 3150)),
        (3600, 1200, 600, (1800, 3150)),
        (40, 1, 35, (20, 35)),
        (1, 0, 0, (0.5, 0.875)),
    ],
)
def test_a_server_cannot_have_its_lease_renewed_all_the_time(
    seconds: int, renew: int | None, rebind: int | None, found: tuple[float, float]
) -> None:
    """Source: RFC 2131, 4.4.5: T1 is before T2, which is before the end; half the rest, or 60 s, is waited."""
    answer = DhcpServer((seconds, ROUTES)).answer(
        encode(Request(kind=DISCOVER, transaction=7, mac="02:00:00:00:00:01"))
    )
    assert answer is not None
    for code, value in ((58, renew), (59, rebind)):
        if value is not None:
            answer = answer[:-1] + bytes((code, 4)) + value.to_bytes(4) + b"\xff"
    lease = decode(answer).lease
    assert (lease.renew, lease.rebind) == found
