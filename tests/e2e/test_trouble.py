"""A backend that crashes or hangs, a pod that vanishes: who is told, and who does not notice."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.agent import open_agent
from tests.e2e.cluster import DRIVER, STAY, Cluster, cdi_files, open_cluster

CRASHES = "faults: [{call: prepare, claim: bad, do: segfault}]"
HANGS = "faults: [{call: prepare, claim: bad, do: hang}]"


async def test_a_claim_that_crashes_the_backend_is_reported_and_the_others_are_served(tmp_path: Path) -> None:
    async with open_cluster() as cluster, open_agent(cluster, tmp_path, scenario=CRASHES) as agent:
        await start_one_bad_pod_among_good_ones(cluster)
        await cluster.wait_note("BackendDied", about="bad", saying="died of SIGSEGV")
        await cluster.wait_note("FailedPrepareDynamicResources", about="bad", saying="died of SIGSEGV")
        await cluster.wait_note("ClaimQuarantined", about="bad", saying="Delete the claim")
        assert await cluster.notes("BackendDied", about="good-0") == []
        assert agent.process.poll() is None
        await cluster.delete_pod("bad")


async def test_a_claim_that_hangs_the_backend_is_reported_and_the_others_are_served(tmp_path: Path) -> None:
    flags = ("--prepare-deadline", "3")
    async with open_cluster() as cluster, open_agent(cluster, tmp_path, scenario=HANGS, flags=flags) as agent:
        await start_one_bad_pod_among_good_ones(cluster)
        await cluster.wait_note("BackendTimeout", about="bad", saying="timed out after 3 s")
        await cluster.wait_note("FailedPrepareDynamicResources", about="bad", saying="timed out after 3 s")
        await cluster.wait_note("ClaimQuarantined", about="bad", saying="Delete the claim")
        assert agent.process.poll() is None
        await cluster.delete_pod("bad")


async def test_a_pod_that_is_removed_by_force_is_unprepared_all_the_same(tmp_path: Path) -> None:
    async with open_cluster() as cluster, open_agent(cluster, tmp_path):
        await cluster.create_class(DRIVER)
        await cluster.create_claim("accel", template=True)
        await cluster.start_pod("app", STAY, resourceClaimTemplateName="accel")
        assert len(cdi_files()) == 1
        await cluster.force_delete_pod("app")
        await cluster.wait_unprepared()


async def start_one_bad_pod_among_good_ones(cluster: Cluster) -> None:
    """Return when the good ones run."""
    await cluster.create_class(DRIVER)
    for name in ("good-0", "bad", "good-1"):
        await cluster.create_claim(name)
        await cluster.create_pod(name, STAY, resourceClaimName=name)
    for name in ("good-0", "good-1"):
        await cluster.wait_phase(name, "Running")
