"""Releases that follow each other on a node: upgraded, changed, rolled back, broken, and downgraded.

PYDRA_E2E_OLDER_IMAGE names the images of an earlier version, as PYDRA_E2E_CHART_IMAGE does those under test.
"""

from __future__ import annotations

import os

import anyio
import pytest

from pydra.kube.api_resources import NODES, Resource
from tests.e2e.cluster import STAY, Cluster
from tests.e2e.kubelet import count_failures
from tests.e2e.release import IMAGE, Release, image_values, open_place

pytestmark = pytest.mark.skipif(not IMAGE, reason="PYDRA_E2E_CHART_IMAGE names no image that is on the node")

CONFIG_MAPS = Resource(group="", version="v1", plural="configmaps", kind="ConfigMap", namespaced=True)
UPGRADES = 20
POOL = "e2e.pydra.dev/pool"
OLDER = os.environ.get("PYDRA_E2E_OLDER_IMAGE", "")
ONE = "groups: [{name: accel, count: 1}]"
THREE = "groups: [{name: accel, count: 3}]"


@pytest.mark.timeout(900)
async def test_upgrades_let_claims_come_and_go() -> None:
    async with open_place() as (cluster, release):
        await release.install()
        await start(cluster, "stays")
        first = (await release.agent())["metadata"]["uid"]
        before = await count_failures(cluster)
        done: list[str] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_come_and_go, cluster, done)
            for number in range(UPGRADES):
                await release.upgrade({"podAnnotations": {"upgrade": str(number)}})
            came = len(done)
            assert came >= UPGRADES // 2, "pods came and went meanwhile"
            await cluster.wait("one more pod came and went", lambda: _longer(done, came))
            tasks.cancel_scope.cancel()
        assert (await release.agent())["metadata"]["uid"] != first
        assert await cluster.notes("FailedPrepareDynamicResources") == []
        assert await count_failures(cluster) == before
        await _assert_untouched(cluster, "stays")


async def test_agents_on_the_hosts_network_follow_each_other() -> None:
    async with open_place() as (cluster, release):
        on_host = {"backends": {"sim": {"hostNetwork": True}}}
        await release.install(on_host)
        first = (await release.agent())["metadata"]["uid"]
        await release.upgrade(on_host, {"podAnnotations": {"upgrade": "1"}})
        assert (await release.agent())["metadata"]["uid"] != first
        await cluster.create_claim("app")
        await cluster.run_pod("app", resourceClaimName="app")


async def _come_and_go(cluster: Cluster, done: list[str]) -> None:
    while True:
        name = f"app-{len(done)}"
        await cluster.create_claim(name)
        await cluster.run_pod(name, resourceClaimName=name)
        await cluster.delete_pod(name)
        done.append(name)


async def _longer(done: list[str], than: int) -> bool:
    return len(done) > than


async def _assert_untouched(cluster: Cluster, *names: str) -> None:
    for name in names:
        status = (await cluster.pod(name))["status"]
        assert status["phase"] == "Running"
        assert status["containerStatuses"][0]["restartCount"] == 0


async def test_other_values_count_at_once_and_what_was_prepared_stays() -> None:
    async with open_place() as (cluster, release):
        await release.install(release.hardware(ONE))
        await start(cluster, "old")
        await cluster.create_claim("new")
        await cluster.create_pod("new", STAY, resourceClaimName="new")
        await cluster.stays_pending("new")
        first = (await release.agent())["metadata"]["uid"]
        more = release.hardware(THREE, name="more")
        await release.upgrade(more, {"settings": {"logLevel": "debug"}, "resources": {"limits": {"memory": "300Mi"}}})
        await cluster.wait_phase("new", "Running")
        agent = await release.agent()
        assert agent["metadata"]["uid"] != first
        assert agent["spec"]["containers"][0]["resources"]["limits"]["memory"] == "300Mi"
        assert await device_names(cluster) == ["accel-0", "accel-1", "accel-2"]
        await release.upgrade(more, {"deviceClasses": {"create": False}}, {"http": {"port": 9900}})
        await release.upgrade(more)
        await _assert_untouched(cluster, "old", "new")
        await cluster.clear()
        await cluster.wait_unprepared()


async def test_a_node_that_joins_a_pool_gets_its_settings_and_keeps_what_was_prepared() -> None:
    async with open_place() as (cluster, release):
        machines = {"metadata": {"name": "machines"}, "data": {"three.yaml": THREE}}
        await cluster.client.create(CONFIG_MAPS, machines, namespace=cluster.namespace)
        large = {"values": ["large"], "settings": {"scenario": "/etc/machines/three.yaml"}}
        volume = {"name": "machines", "configMap": {"name": "machines"}, "mountPath": "/etc/machines", "readOnly": True}
        pools = {"nodePools": {"label": POOL, "pools": {"large": large}}, "volumes": [volume]}
        probes = {"readiness": {"periodSeconds": 2}}
        await release.install(release.hardware(ONE), {"backends": {"sim": pools}, "probes": probes})
        await start(cluster, "old")
        await cluster.client.patch(NODES, cluster.node, {"metadata": {"labels": {POOL: "large"}}})
        try:
            await cluster.wait("the pool's agent is alone", lambda: _is_alone(release, "pydra-sim-large-"))
            await start(cluster, "new")
            assert await device_names(cluster) == ["accel-0", "accel-1", "accel-2"]
            agent = (await release.agent())["spec"]["containers"][0]
            assert agent["readinessProbe"]["periodSeconds"] == 2
        finally:
            await cluster.client.patch(NODES, cluster.node, {"metadata": {"labels": {POOL: None}}})
        await cluster.wait("the backend's own agent is alone", lambda: _is_alone(release, "pydra-sim-"))
        await _assert_untouched(cluster, "old", "new")
        await cluster.clear()
        await cluster.wait_unprepared()


async def start(cluster: Cluster, name: str) -> None:
    await cluster.create_claim(name)
    await cluster.start_pod(name, STAY, resourceClaimName=name)


async def _is_alone(release: Release, prefix: str) -> bool:
    """Whether the only agent is of this DaemonSet, and ready."""
    agents = await release.agents()
    ready = [one["ready"] for agent in agents for one in agent["status"].get("containerStatuses") or ()]
    return ready == [True] and [one["metadata"]["generateName"] for one in agents] == [prefix]


async def device_names(cluster: Cluster) -> list[str]:
    return sorted(one["name"] for one in await cluster.devices())


async def test_a_rollback_serves_what_the_later_revision_prepared_even_on_devices_that_it_has_not() -> None:
    async with open_place() as (cluster, release):
        await release.install(release.hardware(ONE))
        await release.upgrade(release.hardware(THREE, name="more"))
        names = ["a", "b", "c"]
        for name in names:
            await start(cluster, name)
        before = await count_failures(cluster)
        await release.roll_back(1)
        await cluster.wait("the devices of before", lambda: _has_devices(cluster, ["accel-0"]))
        await _assert_untouched(cluster, *names)
        await cluster.clear()
        await cluster.wait_unprepared()
        await cluster.create_claim("last")
        await cluster.run_pod("last", resourceClaimName="last")
        assert await cluster.notes("FailedPrepareDynamicResources") == []
        assert await count_failures(cluster) == before


async def _has_devices(cluster: Cluster, names: list[str]) -> bool:
    return await device_names(cluster) == names


async def test_while_an_upgrade_cannot_start_the_agent_of_before_serves() -> None:
    async with open_place() as (cluster, release):
        await release.install()
        first = (await release.agent())["metadata"]["uid"]
        await release.upgrade({"image": {"tag": "no-such-version"}}, wait=False)
        await cluster.wait("an agent that lacks its image", lambda: _waits_for(release, "ErrImageNeverPull"))
        await cluster.create_claim("one")
        await cluster.run_pod("app", resourceClaimName="one")
        await cluster.delete_pod("app")
        await cluster.wait_unprepared()
        await release.roll_back(1)
        assert (await release.agent())["metadata"]["uid"] == first


async def _waits_for(release: Release, reason: str) -> bool:
    statuses = [one["status"].get("containerStatuses") or () for one in await release.agents()]
    return reason in [(one["state"].get("waiting") or {}).get("reason") for status in statuses for one in status]


@pytest.mark.skipif(not OLDER, reason="PYDRA_E2E_OLDER_IMAGE names no image of an earlier version")
async def test_an_older_version_serves_what_this_one_prepared_and_this_one_what_the_older_did() -> None:
    async with open_place() as (cluster, release):
        await release.install(image_values(OLDER))
        await start(cluster, "by-older")
        await release.upgrade()
        await cluster.create_claim("by-newer")
        for name in ("by-newer", "beside"):
            await cluster.start_pod(name, STAY, resourceClaimName="by-newer")
        await cluster.delete_pod("by-older")
        before = await count_failures(cluster)
        await release.roll_back(1)
        await _assert_untouched(cluster, "by-newer", "beside")
        await cluster.run_pod("late", resourceClaimName="by-newer")
        await cluster.clear()
        await cluster.wait_unprepared()
        assert await cluster.notes("FailedPrepareDynamicResources") == []
        assert await count_failures(cluster) == before
