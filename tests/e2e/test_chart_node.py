"""An agent in its pod on a real node: the kubelet and the agent come and go, and pods ask in the chart's ways."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from pydra.kube.api_resources import PODS
from tests.e2e.cluster import IMAGE as BUSYBOX
from tests.e2e.cluster import REPORT, STAY, Cluster, cdi_files, found_by
from tests.e2e.kubelet import count_failures
from tests.e2e.release import IMAGE, Release, open_place

pytestmark = pytest.mark.skipif(not IMAGE, reason="PYDRA_E2E_CHART_IMAGE names no image that is on the node")

RESTART_KUBELET = shlex.split(os.environ.get("PYDRA_E2E_KUBELET_RESTART", ""))


@pytest.mark.skipif(not RESTART_KUBELET, reason="PYDRA_E2E_KUBELET_RESTART names no command that restarts the kubelet")
async def test_an_agent_in_its_pod_serves_on_when_the_kubelet_is_back() -> None:
    async with open_place() as (cluster, release):
        await release.install()
        await cluster.create_claim("accel", template=True)
        await cluster.start_pod("old", STAY, resourceClaimTemplateName="accel")
        before = await release.agent()
        await anyio.run_process(RESTART_KUBELET)
        await cluster.start_pod("new", STAY, resourceClaimTemplateName="accel")
        assert len(await cluster.devices()) == 8
        await cluster.delete_pod("old")
        assert len(cdi_files(cluster.driver)) == 1
        after = await release.agent()
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_claims_come_and_go_after_an_agents_pod_was_deleted_or_removed_by_force() -> None:
    async with open_place() as (cluster, release):
        await release.install()
        await cluster.create_claim("stays")
        await cluster.start_pod("stays", STAY, resourceClaimName="stays")
        before = [one["metadata"]["uid"] for one in await cluster.slices()]
        for round_, grace in enumerate((None, 0)):
            gone = (await release.agent())["metadata"]
            await cluster.client.delete(PODS, gone["name"], namespace=cluster.namespace, grace_period=grace)
            await cluster.wait("another agent is ready", partial(_is_replaced, release, gone["uid"]))
            await cluster.create_claim(f"app-{round_}")
            await cluster.run_pod(f"app-{round_}", resourceClaimName=f"app-{round_}")
            await cluster.delete_pod(f"app-{round_}")
            assert [one["metadata"]["uid"] for one in await cluster.slices()] == before
        assert (await cluster.pod("stays"))["status"]["containerStatuses"][0]["restartCount"] == 0


async def test_a_backend_of_another_user_serves_claims_and_cannot_read_the_agents_token() -> None:
    process = {"runAsUser": 65532, "memoryLimit": "256Mi", "seccompProfile": {"type": "RuntimeDefault"}}
    own = {"backends": {"sim": {"settings": {"state": "/tmp/pydra-sim"}, "process": process}}}
    async with open_place() as (cluster, release):
        await release.install(own)
        await cluster.create_claim("one")
        found = await cluster.run_pod("app", resourceClaimName="one")
        assert any(line.startswith("SIM_ACCEL_") for line in found["main"])
        uid = (await release.agent())["metadata"]["uid"]
        backend, agent = await anyio.to_thread.run_sync(_find_processes, uid)
        assert (_user(agent), _user(backend)) == (0, 65532)
        assert int(_status(backend)["Seccomp_filters"]) == int(_status(agent)["Seccomp_filters"]) + 1
        # /var/run is a link to /run in the image, which would lead to the host from here.
        token = os.stat(backend / "root/run/secrets/kubernetes.io/serviceaccount/token")
        assert (token.st_uid, token.st_mode & 0o077) == (0, 0)


def _find_processes(pod: str) -> tuple[Path, Path]:
    """Return those of the backend and of the agent, which has its pod's uid in its environment, as directories."""
    for one in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"PYDRA_POD_UID={pod}".encode() in (one / "environ").read_bytes():
                command = (one / "cmdline").read_bytes()
                if b"pydra.backends.child.main" in command:
                    return one, Path("/proc", _status(one)["PPid"])
    raise LookupError(f"pod {pod} has no process of a backend")


def _user(process: Path) -> int:
    return int(_status(process)["Uid"].split()[0])


def _status(process: Path) -> dict[str, str]:
    lines = (process / "status").read_text().splitlines()
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


async def _is_replaced(release: Release, uid: str) -> bool:
    agents = [one for one in await release.agents() if one["metadata"]["uid"] != uid]
    conditions = [one for agent in agents for one in agent["status"].get("conditions") or ()]
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


async def test_a_pod_removed_by_force_is_unprepared_by_an_agent_in_its_pod() -> None:
    async with open_place() as (cluster, release):
        await release.install()
        await cluster.create_claim("accel", template=True)
        await cluster.start_pod("app", STAY, resourceClaimTemplateName="accel")
        before = await count_failures(cluster)
        await cluster.force_delete_pod("app")
        await cluster.wait_unprepared()
        assert await count_failures(cluster) == before


@pytest.mark.gates("DRAExtendedResource")
async def test_a_container_asks_for_devices_by_the_name_of_an_extended_resource() -> None:
    async with open_place() as (cluster, release):
        resource = f"{cluster.namespace}.example.com/accel"
        names = {"deviceClasses": {"extendedResourceNames": {"sim.pydra.dev": resource}}}
        await release.install({"backends": {"sim": names}})
        await create_plain_pod(cluster, "three", {resource: 3})
        await create_plain_pod(cluster, "nine", {resource: 9})
        found = found_by(await cluster.wait_phase("three", "Succeeded"))["main"]
        assert len([line for line in found if line.startswith("accel-")]) == 3
        await cluster.stays_pending("nine")
        await cluster.delete_pod("three")
        await cluster.wait_unprepared()


async def create_plain_pod(cluster: Cluster, name: str, limits: dict[str, int]) -> None:
    """A pod without a claim of its own."""
    container = {
        "name": "main",
        "image": BUSYBOX,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", REPORT],
        "resources": {"limits": limits},
    }
    spec = {"restartPolicy": "Never", "hostNetwork": True, "containers": [container]}
    await cluster.create(PODS, {"metadata": {"name": name}, "spec": spec})
