"""Network interfaces through the chart: into pods of this node's container runtime, and back as they were."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio.to_thread
import pytest
from msgspec.structs import replace

from pydra.kube.api_resources import PODS, RESOURCE_CLAIMS, JsonObject
from pydra_net.device_names import DRIVER
from tests.e2e.cluster import STAY, Cluster, find_processes, kill_processes, open_cluster
from tests.e2e.release import IMAGE, PRIVILEGED, Release, open_release

RUNTIME_RESTART = os.environ.get("PYDRA_E2E_RUNTIME_RESTART", "")
NIC, SWITCH, BELOW = "pydrae2e0", "pydrae2e1", "pydrae2e2"
"""What pods get, the other end of its cable, and what it is made on if it is not an end itself."""

_CABLE = f"ip link add {BELOW} type veth peer name {SWITCH}; ip link set {BELOW} up; "
LINKS = {
    "veth": f"ip link add {NIC} type veth peer name {SWITCH}",
    "dummy": f"ip link add {NIC} type dummy; ip link add {SWITCH} type dummy",
    "macvlan": f"{_CABLE} ip link add link {BELOW} name {NIC} type macvlan mode bridge",
    "ipvlan": f"{_CABLE} ip link add link {BELOW} name {NIC} type ipvlan",
    "vlan": f"{_CABLE} ip link add link {BELOW} name {NIC} type vlan id 5",
}

LOOK = f"{{ ip -o -4 addr show {NIC}; ip route; cat /sys/class/net/{NIC}/mtu; }} >/dev/termination-log"
SETTINGS = {"interfaces": NIC, "excludeTypes": ""}

pytestmark = [
    pytest.mark.skipif(not IMAGE, reason="PYDRA_E2E_CHART_IMAGE names no image that is on the node"),
    pytest.mark.skipif(not Path("/var/run/nri/nri.sock").exists(), reason="the container runtime serves no NRI"),
]


async def test_a_pod_has_the_interface_and_the_claim_says_so() -> None:
    async with open_net() as (cluster, _):
        before = describe()
        await cluster.create_pod("looks", LOOK, resourceClaimName="nic", host_network=False)
        (container,) = (await cluster.wait_phase("looks", "Succeeded"))["status"]["containerStatuses"]
        seen = container["state"]["terminated"]["message"]
        assert "inet 10.77.0.2/24" in seen
        assert "10.78.0.0/16 via 10.77.0.1" in seen
        assert seen.splitlines()[-1] == "1400"
        await cluster.delete_pod("looks")
        assert describe() == before
        await cluster.start_pod("told", STAY, resourceClaimName="nic", host_network=False)

        status = await wait_status(cluster, "nic")
        assert status["networkData"]["interfaceName"] == NIC
        assert status["networkData"]["ips"] == ["10.77.0.2/24"]


@pytest.mark.parametrize("kind", LINKS)
async def test_an_interface_comes_back_as_it_was_however_its_pod_ends(kind: str) -> None:
    async with open_net(kind) as (cluster, release):
        before = describe()

        async def start(name: str) -> JsonObject:
            pod = await cluster.start_pod(name, STAY, resourceClaimName="nic", host_network=False)
            assert NIC not in list_links()
            return pod

        await start("evicted")
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted"}}
        await cluster.create(replace(PODS, plural="pods/evicted/eviction"), eviction)
        await cluster.wait_gone("evicted")
        assert describe() == before
        killed = [await start("killed")]
        kill_processes(killed, b"pause" if any(find_processes(killed, b"pause")) else b"sleep")  # CRI-O needs no pause
        await cluster.wait_phase("killed", "Failed")
        await cluster.delete_pod("killed")
        assert describe() == before
        await start("removed")
        await release.kill_agent()
        await cluster.force_delete_pod("removed")
        await cluster.wait_unprepared()
        await cluster.wait("the interface is on the node", is_back)
        assert describe() == before


@pytest.mark.skipif(not RUNTIME_RESTART, reason="PYDRA_E2E_RUNTIME_RESTART names no command")
async def test_an_interface_comes_back_from_a_pod_that_is_older_than_the_container_runtime() -> None:
    async with open_net() as (cluster, _):
        before = describe()
        await cluster.start_pod("stays", STAY, resourceClaimName="nic", host_network=False)
        await anyio.to_thread.run_sync(lambda: subprocess.run(RUNTIME_RESTART, shell=True, check=True, timeout=60))
        assert NIC not in list_links()
        await cluster.delete_pod("stays")
        assert describe() == before


@pytest.mark.gates("DRAConsumableCapacity")
async def test_two_pods_use_shares_of_an_interface_which_stays_on_the_node() -> None:
    async with open_net(shared=NIC) as (cluster, _):
        before = describe()
        for name, address in (("first", "10.77.0.5"), ("second", "10.77.0.6")):
            interface = {"name": "net1", "type": "macvlan", "addresses": [f"{address}/24"]}
            config = [{"opaque": {"driver": DRIVER, "parameters": {"interface": interface}}}]
            await cluster.create_claim(name, config=config)  # keys that are not sorted: server-side apply changes them
        await cluster.start_pod("first", STAY, resourceClaimName="first", host_network=False)
        look = "ping -c 3 10.77.0.1 && ping -c 3 10.77.0.5 && ip -o -4 addr show net1 >/dev/termination-log"
        await cluster.create_pod("second", look, resourceClaimName="second", host_network=False)
        (container,) = (await cluster.wait_phase("second", "Succeeded"))["status"]["containerStatuses"]
        assert "inet 10.77.0.6/24" in container["state"]["terminated"]["message"]
        assert (await wait_status(cluster, "first"))["networkData"]["ips"] == ["10.77.0.5/24"]
        for name in ("first", "second"):
            await cluster.delete_pod(name)
        assert describe() == before


@asynccontextmanager
async def open_net(kind: str = "veth", **settings: str) -> AsyncIterator[tuple[Cluster, Release]]:
    """The backend, which offers one interface, and a claim for it."""
    backends = {"net": {"enabled": True, "settings": {**SETTINGS, **settings}}}
    try:
        if problem := try_to(LINKS[kind]):
            pytest.skip(f"this machine cannot make a {kind} link: {problem}")
        run(f"ip link set {SWITCH} up; ip addr add 10.77.0.1/24 dev {SWITCH}; ip link set {NIC} mtu 1400 alias e2e up")
        run(f"ip addr add 10.77.0.2/24 dev {NIC}; ip route add 10.78.0.0/16 via 10.77.0.1 dev {NIC} metric 7")
        async with open_cluster(DRIVER, **PRIVILEGED) as cluster, open_release(cluster, backends) as release:
            await release.install({"settings": {"deviceStatus": True}})
            await cluster.wait("devices are published", cluster.devices)
            await cluster.create_claim("nic")
            yield cluster, release
    finally:
        run(f"for one in {NIC} {BELOW} {SWITCH}; do ip link del $one 2>/dev/null || true; done")


async def wait_status(cluster: Cluster, claim: str) -> JsonObject:
    """What the claim says of its device, once that is in the pod."""

    async def look() -> JsonObject | None:
        found = await cluster.client.get(RESOURCE_CLAIMS, claim, namespace=cluster.namespace)
        for device in found["status"].get("devices") or ():
            if {"Ready": "True"}.items() <= {one["type"]: one["status"] for one in device["conditions"]}.items():
                return dict(device)
        return None

    status: JsonObject = await cluster.wait("the claim's status says that the interface is in the pod", look)
    return status


async def is_back() -> bool:
    return NIC in list_links()


def list_links() -> list[str]:
    return [one["ifname"] for one in json.loads(run("ip -j link"))]


def describe() -> str:
    """What is configured on the interface, without its number and what the kernel does by itself."""
    (link,) = json.loads(run(f"ip -j -4 addr show {NIC}"))
    kept = {key: link[key] for key in ("ifname", "ifalias", "mtu", "operstate", "addr_info") if key in link}
    return f"{kept} {run(f'ip -4 route show table all dev {NIC}')}"


def try_to(commands: str) -> str:
    """What the kernel says against it, or nothing."""
    done = subprocess.run(["sh", "-ec", commands], check=False, capture_output=True, text=True, timeout=10)
    return done.stderr.strip() if done.returncode else ""


def run(commands: str) -> str:
    return subprocess.run(["sh", "-ec", commands], check=True, capture_output=True, text=True, timeout=10).stdout
