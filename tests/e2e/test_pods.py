"""Pods with claims on a real node: what an application developer and a cluster admin see."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest

from pydra.kube.api_resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.e2e.agent import open_agent
from tests.e2e.cluster import DRIVER, STAY, cdi_files, open_cluster


async def test_a_pod_that_asks_for_a_device_starts_with_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with open_cluster() as cluster, open_agent(cluster, tmp_path):
        assert len(await cluster.devices()) == 8
        await cluster.create_class(DRIVER)
        await cluster.create_claim("accel", template=True)
        found = (await cluster.run_pod("app", resourceClaimTemplateName="accel"))["main"]
        device = found[-1]
        assert device.startswith("accel-")
        prefix = f"SIM_{device.upper().replace('-', '_')}"
        assert [line.partition("=")[0] for line in found[:-1]] == [
            f"{prefix}_{name}" for name in ("CORES", "MEMORY", "SLOTS", "UUID")
        ]
        await cluster.delete_pod("app")
        await cluster.wait_unprepared()


async def test_two_pods_share_a_claim_and_it_is_unprepared_after_the_last(tmp_path: Path) -> None:
    async with open_cluster() as cluster, open_agent(cluster, tmp_path):
        await cluster.create_class(DRIVER)
        await cluster.create_claim("shared")
        for name in ("one", "two"):
            await cluster.create_pod(name, STAY, resourceClaimName="shared")
        for name in ("one", "two"):
            await cluster.wait_phase(name, "Running")
        assert len(cdi_files()) == 1
        await cluster.delete_pod("one")
        assert len(cdi_files()) == 1
        await cluster.delete_pod("two")
        await cluster.wait_unprepared()


async def test_a_claim_with_wrong_parameters_says_what_to_change(tmp_path: Path) -> None:
    wrong = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "SimConfig", "clockMHz": 99999, "shraing": {}}
    async with open_cluster() as cluster, open_agent(cluster, tmp_path):
        await cluster.create_class(DRIVER)
        await cluster.create_claim("picky", config=[{"opaque": {"driver": DRIVER, "parameters": wrong}}])
        await cluster.create_pod("app", STAY, resourceClaimName="picky")
        note = await cluster.wait_note("InvalidConfig", about="picky")
        for word in ("clockMHz", "2000", "shraing", "sharing"):
            assert word in note
        await cluster.wait_note("FailedPrepareDynamicResources", about="app", saying="clockMHz")
        await cluster.delete_pod("app")

        async def is_free() -> bool:
            claim = await cluster.client.get(RESOURCE_CLAIMS, "picky", namespace=cluster.namespace)
            return not claim["status"].get("reservedFor")

        await cluster.wait("the claim is reserved for no pod", is_free)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on the PATH")
async def test_kubectl_describe_shows_a_claims_trouble_with_the_claim(tmp_path: Path) -> None:
    refused = "faults: [{do: refuse-forever, claim: picky, message: this accelerator wants another claim}]"
    async with open_cluster() as cluster, open_agent(cluster, tmp_path, scenario=refused):
        await cluster.create_class(DRIVER)
        await cluster.create_claim("picky")
        await cluster.create_pod("app", STAY, resourceClaimName="picky")
        await cluster.wait_note("ClaimFailedTerminally", about="picky")
        command = ["kubectl", "describe", "resourceclaim", "picky", "--namespace", cluster.namespace]
        described = (await anyio.run_process(command)).stdout.decode()
        events = described.partition("Events:")[2]
        assert "ClaimFailedTerminally" in events, described
        assert "pydra-agent" in events
        assert "this accelerator wants another claim" in events


async def test_slices_that_somebody_deletes_are_there_again_at_once(tmp_path: Path) -> None:
    async with open_cluster() as cluster, open_agent(cluster, tmp_path):
        before = await cluster.slices()
        await cluster.client.delete(RESOURCE_SLICES, before[0]["metadata"]["name"])
        after = await cluster.wait_published()
        assert after[0]["metadata"]["uid"] != before[0]["metadata"]["uid"]
        assert after[0]["spec"]["devices"] == before[0]["spec"]["devices"]
