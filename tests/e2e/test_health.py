"""A device falls ill: what the slice, the scheduler, the pod's status and the pod itself show of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.agent import open_agent
from tests.e2e.cluster import DRIVER, STAY, Cluster, open_cluster
from tests.integration.gates import TAINT_RULES

WELL = "groups: [{name: accel, count: 1}]\n"
SICK = f"{WELL}unhealthy: {{accel-0: too hot}}\n"


@pytest.mark.gates("DRADeviceTaints")
async def test_a_sick_device_is_tainted_and_shown_in_the_pods_status(tmp_path: Path) -> None:
    async with open_cluster() as cluster, open_agent(cluster, tmp_path, scenario=WELL, flags=("--healthy-after", "0")):
        await cluster.create_class(DRIVER)
        await cluster.create_claim("accel")
        await cluster.start_pod("app", STAY, resourceClaimName="accel")
        (tmp_path / "scenario.yaml").write_text(SICK)
        await cluster.wait("a taint in the slice", lambda: _tainted(cluster, True))
        await cluster.wait_health("app", "Unhealthy")
        (tmp_path / "scenario.yaml").write_text(WELL)
        await cluster.wait("no taint any more", lambda: _tainted(cluster, False))
        await cluster.wait_health("app", "Healthy")


@pytest.mark.gates("DRADeviceTaints")
async def test_pods_leave_a_sick_device_where_the_admin_wants_that(tmp_path: Path) -> None:
    flags = ("--health-taint", "NoExecute")
    async with open_cluster() as cluster, open_agent(cluster, tmp_path, scenario=WELL, flags=flags):
        await cluster.create_class(DRIVER)
        await cluster.create_claim("accel")
        await cluster.start_pod("app", STAY, resourceClaimName="accel")
        (tmp_path / "scenario.yaml").write_text(SICK)
        await cluster.wait("a taint in the slice", lambda: _tainted(cluster, True))
        await cluster.wait_gone("app")
        await cluster.wait_unprepared()


@pytest.mark.gates("DRADeviceTaintRules")
async def test_an_admins_taint_rule_sends_a_pod_away_and_its_claim_is_unprepared(tmp_path: Path) -> None:
    async with open_cluster() as cluster, open_agent(cluster, tmp_path, scenario=WELL):
        await cluster.create_class(DRIVER)
        await cluster.create_claim("accel")
        await cluster.start_pod("app", STAY, resourceClaimName="accel")
        taint = {"key": "example.com/maintenance", "effect": "NoExecute"}
        spec = {"deviceSelector": {"driver": DRIVER, "device": "accel-0"}, "taint": taint}
        await cluster.create(TAINT_RULES, {"metadata": {"name": cluster.namespace}, "spec": spec})
        try:
            await cluster.wait_gone("app")
            await cluster.wait_unprepared()
        finally:
            await cluster.client.delete(TAINT_RULES, cluster.namespace)


async def _tainted(cluster: Cluster, wanted: bool) -> bool:
    return any("taints" in device for device in await cluster.devices()) is wanted
