"""The chart on a real cluster: it serves claims, keeps to its rights, and refuses what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import helm_python
import pytest

from pydra.errors import KubeError, NotFound
from pydra.kube.api_resources import (
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from tests.e2e.release import DAEMON_SETS, IMAGE, open_place

pytestmark = pytest.mark.skipif(not IMAGE, reason="PYDRA_E2E_CHART_IMAGE names no image that is on the node")


def slice_of(driver: str, node: str | None, *, pool_name: str = "") -> JsonObject:
    pool = {"name": pool_name or node or "strange", "generation": 1, "resourceSliceCount": 1}
    where: dict[str, Any] = {"nodeName": node} if node else {"allNodes": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"generateName": "strange-"},
        "spec": {"driver": driver, "pool": pool, **where, "devices": []},
    }


async def test_a_release_serves_claims_and_passes_its_test() -> None:
    async with open_place() as (cluster, release):
        await release.install()
        assert await cluster.slices()
        await cluster.create_claim("one")
        found = await cluster.run_pod("app", resourceClaimName="one")
        assert any(line.startswith("SIM_ACCEL_") for line in found["main"])
        await release.test()
        objects = await release.objects()
        assert {"daemonsets/pydra-sim", f"deviceclasses/{cluster.driver}"} <= objects
        assert not {one for one in objects if "test" in one}, "the test's own objects are gone"


async def test_an_agent_can_write_slices_of_its_node_and_driver_only(tmp_path: Path) -> None:
    async with open_place() as (cluster, release):
        await release.install()
        async with release.as_agent(tmp_path) as agent:
            own = await agent.create(RESOURCE_SLICES, slice_of(cluster.driver, cluster.node))
            await agent.delete(RESOURCE_SLICES, own["metadata"]["name"])
            for body, words in (
                (
                    slice_of(cluster.driver, "node-2"),
                    f"an agent on node '{cluster.node}' may not write a ResourceSlice of node 'node-2'",
                ),
                (
                    slice_of(cluster.driver, cluster.node, pool_name="node-2"),
                    f"an agent on node '{cluster.node}' may not write a ResourceSlice of pool 'node-2'",
                ),
                (slice_of(cluster.driver, None), "may not write a ResourceSlice of no single node"),
                (
                    slice_of("gpu.example.com", cluster.node),
                    f"an agent of {cluster.driver} may not write a ResourceSlice of driver gpu.example.com",
                ),
            ):
                with pytest.raises(KubeError) as caught:
                    await agent.create(RESOURCE_SLICES, body)
                assert words in str(caught.value)
            theirs = await cluster.create(RESOURCE_SLICES, slice_of(cluster.driver, "node-2"))
            name = theirs["metadata"]["name"]
            try:
                for attempt in (
                    agent.delete(RESOURCE_SLICES, name),
                    agent.replace(
                        RESOURCE_SLICES, name, {**theirs, "metadata": {**theirs["metadata"], "labels": {"a": "b"}}}
                    ),
                ):
                    with pytest.raises(KubeError, match="may not write a ResourceSlice of node 'node-2'"):
                        await attempt
            finally:
                await cluster.client.delete(RESOURCE_SLICES, name)
            with pytest.raises(KubeError, match="forbidden"):
                await agent.list(PODS)


async def test_the_doctor_examines_all_with_the_rights_of_an_agent(tmp_path: Path) -> None:
    async with open_place() as (cluster, release):
        await release.install()
        agent = (await release.agent())["metadata"]["uid"]
        async with release.as_agent(tmp_path):
            credentials = ["--kubeconfig", str(tmp_path / "agent.kubeconfig"), "--pod-uid", agent]
            doctor = [sys.executable, "-m", "pydra.cli.tool", "doctor", "-o", "json", "--node-name", cluster.node]
            report = json.loads((await anyio.run_process([*doctor, *credentials], check=False)).stdout)
        found = {one["subject"]: one["level"] for one in report["findings"] if one["level"] != "note"}
        subjects = ("API server", "node", "access", "clock", "gate")
        assert [found.get(one) for one in subjects] == ["ok"] * len(subjects), report


async def test_what_is_not_the_releases_own_is_neither_taken_nor_removed() -> None:
    async with open_place() as (cluster, release):
        await cluster.create(DEVICE_CLASSES, {"metadata": {"name": cluster.driver}, "spec": {}})
        try:
            with pytest.raises(helm_python.HelmError, match="exists already and belongs to no release"):
                await release.install()
            await release.install({"deviceClasses": {"create": False}})
            await release.uninstall()
            assert await cluster.client.get(DEVICE_CLASSES, cluster.driver)
        finally:
            await cluster.client.delete(DEVICE_CLASSES, cluster.driver)


def config_of(driver: str, **parameters: Any) -> list[JsonObject]:
    kind = {"apiVersion": "sim.pydra.dev/v1alpha1", "kind": "SimConfig"}
    return [{"opaque": {"driver": driver, "parameters": {**kind, **parameters}}}]


async def test_the_webhook_refuses_wrong_configs_and_leaves_all_else_alone() -> None:
    async with open_place() as (cluster, release):
        await release.install({"webhook": {"enabled": True}})
        bad, good = config_of(cluster.driver, clockMhz=1200), config_of(cluster.driver, clockMHz=1200)
        devices = {"requests": [{"name": "accel", "exactly": {"deviceClassName": cluster.driver}}]}
        for resource, spec, path in (
            (RESOURCE_CLAIMS, {"devices": {**devices, "config": bad}}, "spec.devices"),
            (RESOURCE_CLAIM_TEMPLATES, {"spec": {"devices": {**devices, "config": bad}}}, "spec.spec.devices"),
            (DEVICE_CLASSES, {"config": bad}, "spec"),
        ):
            with pytest.raises(KubeError) as caught:
                await cluster.create(resource, {"metadata": {"name": f"bad.{cluster.driver}"}, "spec": spec})
            assert f'{path}.config[0].opaque.parameters.clockMhz: unknown field (did you mean "clockMHz"?)' in str(
                caught.value
            )
        for name, config in (("good", good), ("foreign", config_of("other.example.com", anything=1)), ("none", [])):
            spec = {"devices": {**devices, "config": config}}
            await cluster.create(RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": spec})
        await release.test()


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
async def test_the_webhook_judges_older_versions_of_the_api(version: str) -> None:
    async with open_place() as (cluster, release):
        older = Resource(
            group="resource.k8s.io", version=version, plural="resourceclaims", kind="ResourceClaim", namespaced=True
        )
        try:
            await cluster.client.list(older, namespace=cluster.namespace)
        except NotFound:
            pytest.skip(f"the cluster does not serve {version}")
        await release.install({"webhook": {"enabled": True, "replicas": 1}})
        spec = {"devices": {"config": config_of(cluster.driver, clockMHz="fast")}}
        with pytest.raises(KubeError, match=r"spec\.devices\.config\[0\]\.opaque\.parameters\.clockMHz"):
            await cluster.create(older, {"metadata": {"name": "bad"}, "spec": spec})


async def test_an_upgrade_keeps_the_webhooks_certificate() -> None:
    secrets_ = Resource(version="v1", plural="secrets", kind="Secret", namespaced=True)
    async with open_place() as (cluster, release):
        await release.install({"webhook": {"enabled": True, "replicas": 1}})
        read = cluster.client.get
        before = await read(secrets_, "pydra-sim-webhook-tls", namespace=cluster.namespace)
        await release.upgrade({"webhook": {"enabled": True, "replicas": 1, "timeoutSeconds": 3}})
        after = await read(secrets_, "pydra-sim-webhook-tls", namespace=cluster.namespace)
        assert after["data"] == before["data"]


async def test_a_test_of_a_release_without_nodes_says_so() -> None:
    async with open_place() as (cluster, release):
        await release.install({"nodeSelector": {"pydra.dev/no-such-label": "x"}})
        daemon_set = await cluster.client.get(DAEMON_SETS, "pydra-sim", namespace=cluster.namespace)
        assert daemon_set["status"]["desiredNumberScheduled"] == 0
        with pytest.raises(helm_python.HelmReleaseError):
            await release.test()
        pod = await cluster.pod("pydra-test")
        (ended,) = pod["status"]["containerStatuses"]
        assert "no node has the labels that it asks for" in ended["state"]["terminated"]["message"]
        assert {one for one in await release.objects() if "test" in one} == {"pods/pydra-test"}
