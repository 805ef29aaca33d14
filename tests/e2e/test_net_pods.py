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

from pydra.kube.api_resources import RESOURCE_CLAIMS, JsonObject
from pydra_net.device_names import DRIVER
from tests.e2e.cluster import STAY, Cluster, open_cluster
from tests.e2e.release import IMAGE, PRIVILEGED, Release, open_release

RUNTIME_RESTART = os.environ.get("PYDRA_E2E_RUNTIME_RESTART", "")
NIC, SWITCH = "pydrae2e0", "pydrae2e1"
"""The two ends of a cable: what pods get, and what stays on the node."""

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

        async def look() -> JsonObject | None:
            claim = await cluster.client.get(RESOURCE_CLAIMS, "nic", namespace=cluster.namespace)
            for device in claim["status"].get("devices") or ():
                if {"Ready": "True"}.items() <= {one["type"]: one["status"] for one in device["conditions"]}.items():
                    return dict(device)
            return None

        status = await cluster.wait("the claim's status says that the interface is in the pod", look)
        assert status["networkData"]["interfaceName"] == NIC
        assert status["networkData"]["ips"] == ["10.77.0.2/24"]


async def test_an_interface_comes_back_as_it_was_when_the_agent_is_killed_and_the_pod_removed_by_force() -> None:
    async with open_net() as (cluster, release):
        before = describe()
        await cluster.start_pod("stays", STAY, resourceClaimName="nic", host_network=False)
        assert NIC not in list_links()
        await release.kill_agent()
        await cluster.force_delete_pod("stays")
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
            await cluster.create_claim(name, config=config)
        await cluster.start_pod("first", STAY, resourceClaimName="first", host_network=False)
        look = "ping -c 3 10.77.0.1 && ping -c 3 10.77.0.5 && ip -o -4 addr show net1 >/dev/termination-log"
        await cluster.create_pod("second", look, resourceClaimName="second", host_network=False)
        (container,) = (await cluster.wait_phase("second", "Succeeded"))["status"]["containerStatuses"]
        assert "inet 10.77.0.6/24" in container["state"]["terminated"]["message"]
        for name in ("first", "second"):
            await cluster.delete_pod(name)
        assert describe() == before


@asynccontextmanager
async def open_net(**settings: str) -> AsyncIterator[tuple[Cluster, Release]]:
    """The backend, which offers one interface, and a claim for it."""
    backends = {"net": {"enabled": True, "settings": {**SETTINGS, **settings}}}
    run(f"ip link add {NIC} type veth peer name {SWITCH}")
    try:
        run(f"ip link set {SWITCH} up; ip addr add 10.77.0.1/24 dev {SWITCH}; ip link set {NIC} mtu 1400 alias e2e up")
        run(f"ip addr add 10.77.0.2/24 dev {NIC}; ip route add 10.78.0.0/16 via 10.77.0.1 dev {NIC} metric 7")
        async with open_cluster(DRIVER, **PRIVILEGED) as cluster, open_release(cluster, backends) as release:
            await release.install({"settings": {"deviceStatus": True}})
            await cluster.wait("devices are published", cluster.devices)
            await cluster.create_claim("nic")
            yield cluster, release
    finally:
        run(f"ip link del {SWITCH}")


async def is_back() -> bool:
    return NIC in list_links()


def list_links() -> list[str]:
    return [one["ifname"] for one in json.loads(run("ip -j link"))]


def describe() -> str:
    """What is configured on the interface, without its number and what the kernel does by itself."""
    (link,) = json.loads(run(f"ip -j -4 addr show {NIC}"))
    kept = {key: link[key] for key in ("ifname", "ifalias", "mtu", "operstate", "addr_info") if key in link}
    return f"{kept} {run(f'ip -4 route show table all dev {NIC}')}"


def run(commands: str) -> str:
    return subprocess.run(["sh", "-ec", commands], check=True, capture_output=True, text=True, timeout=10).stdout
