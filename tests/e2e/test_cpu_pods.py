"""CPUs through the chart: this node's own, on which its container runtime pins containers, asked through NRI."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from pydra.kube.api_resources import PODS, JsonObject
from pydra_cpu.cpu_list import parse_cpu_list
from pydra_cpu.devices import DRIVER
from tests.e2e.cluster import IMAGE as POD_IMAGE
from tests.e2e.cluster import STAY, Cluster, find_processes, open_cluster
from tests.e2e.hardware import ask
from tests.e2e.release import IMAGE, PRIVILEGED, Release, open_release

pytestmark = [
    pytest.mark.skipif(not IMAGE, reason="PYDRA_E2E_CHART_IMAGE names no image that is on the node"),
    pytest.mark.skipif(not Path("/var/run/nri/nri.sock").exists(), reason="the container runtime serves no NRI"),
    pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="the node has one CPU: no claim may take it from others"),
]
RUNTIME_RESTART = os.environ.get("PYDRA_E2E_RUNTIME_RESTART", "")
LOOK = "grep Cpus_allowed_list: /proc/self/status >/dev/termination-log"


@asynccontextmanager
async def open_published() -> AsyncIterator[tuple[Cluster, Release, frozenset[int]]]:
    """Yield a cluster in which the chart's agent publishes the CPUs of this node, and these."""
    async with (
        open_cluster(DRIVER, **PRIVILEGED) as cluster,
        open_release(cluster, {"cpu": {"enabled": True}}) as release,
    ):
        await release.install()
        await cluster.wait("devices are published", cluster.devices)
        yield cluster, release, parse_cpu_list(Path("/sys/devices/system/cpu/online").read_text().strip())


@pytest.mark.gates("DRAConsumableCapacity")
async def test_a_claim_has_cpus_of_its_own_and_others_have_them_back_when_it_ends() -> None:
    async with open_published() as (cluster, _, everything):
        for name in ("pinned", "stays"):
            await cluster.create_claim(name, requests=ask(DRIVER, capacity={"requests": {f"{DRIVER}/cpu": "1"}}))
        await cluster.create_pod("pinned", LOOK, resourceClaimName="pinned")
        assert len(await read_cpus(cluster, "pinned")) == 1
        await cluster.delete_pod("pinned")
        await cluster.start_pod("stays", STAY, resourceClaimName="stays")
        await cluster.create_pod("neighbour", LOOK, claims={})
        assert len(await read_cpus(cluster, "neighbour")) == len(everything) - 1
        await cluster.delete_pod("stays")
        await cluster.create_pod("alone", LOOK, claims={})
        assert await read_cpus(cluster, "alone") == everything


@pytest.mark.gates("DRAConsumableCapacity")
async def test_containers_keep_their_cpus_when_agent_and_runtime_are_killed_and_others_get_them_afterwards() -> None:
    async with open_published() as (cluster, release, everything):
        await cluster.create_claim("stays", requests=ask(DRIVER, capacity={"requests": {f"{DRIVER}/cpu": "1"}}))
        pinned = await cluster.start_pod("stays", STAY, resourceClaimName="stays")
        neighbour = await cluster.start_pod("neighbour", STAY, claims={})
        own = read_running(pinned)
        assert len(own) == 1
        assert read_running(neighbour) == everything - own
        await release.kill_agent()
        if RUNTIME_RESTART:
            await anyio.to_thread.run_sync(lambda: subprocess.run(RUNTIME_RESTART, shell=True, check=True, timeout=60))
        later = await cluster.start_pod("later", STAY, claims={})

        async def is_corrected() -> bool:
            return read_running(later) == everything - own

        await cluster.wait("a new container leaves the claim its CPU", is_corrected)
        assert (read_running(pinned), read_running(neighbour)) == (own, everything - own)
        await cluster.delete_pod("stays")
        assert read_running(neighbour) == everything


@pytest.mark.gates("DRAConsumableCapacity")
async def test_the_scheduler_counts_the_cpus_of_claims_as_those_of_the_node() -> None:
    cpus = os.cpu_count() or 1
    backend = {"enabled": True, "settings": {"nodeAllocatable": True}}
    async with open_cluster(DRIVER, **PRIVILEGED) as cluster, open_release(cluster, {"cpu": backend}) as release:
        await release.install()
        devices = await cluster.wait("devices are published", cluster.devices)
        if not {"nodeAllocatableResourceMappings", "nodeAllocatableResources"} & {
            key for one in devices for key in one
        }:
            pytest.skip("feature gate DRANodeAllocatableResources is off")
        await cluster.create_claim("one", requests=ask(DRIVER, capacity={"requests": {f"{DRIVER}/cpu": "1"}}))
        await cluster.start_pod("pinned", STAY, resourceClaimName="one")
        container: JsonObject = {"name": "main", "image": POD_IMAGE, "imagePullPolicy": "IfNotPresent"}
        container |= {"command": STAY.split(), "resources": {"requests": {"cpu": f"{cpus * 1000 - 500}m"}}}
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
        await cluster.create(PODS, {"metadata": {"name": "large"}, "spec": {**spec, "hostNetwork": True}})

        async def is_refused() -> bool:
            conditions = (await cluster.pod("large"))["status"].get("conditions") or ()
            return any("Insufficient cpu" in one.get("message", "") for one in conditions)

        await cluster.wait("the node has too few CPUs left", is_refused)
        await cluster.delete_pod("pinned")
        await cluster.wait_phase("large", "Running")


def read_running(pod: JsonObject) -> frozenset[int]:
    """The CPUs that the processes of the pod's container, of STAY, may run on now."""
    found = [(path / "status").read_text() for path in find_processes([pod], STAY.replace(" ", "\0").encode())]
    return parse_cpu_list(re.findall(r"^Cpus_allowed_list:\s+(\S+)$", found[0], re.MULTILINE)[0])


async def read_cpus(cluster: Cluster, pod: str) -> frozenset[int]:
    """The CPUs that the pod's container could run on, once it has ended."""
    (container,) = (await cluster.wait_phase(pod, "Succeeded"))["status"]["containerStatuses"]
    return parse_cpu_list(container["state"]["terminated"]["message"].partition(":")[2].strip())
