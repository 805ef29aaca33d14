"""The agent and the kubelet come and go; pods and what they were given do not."""

from __future__ import annotations

import os
import shlex
import signal
from contextlib import ExitStack
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from pydra.kube.api_resources import RESOURCE_SLICES, JsonObject
from tests.e2e.agent import open_agent, run_agent
from tests.e2e.cluster import DRIVER, STAY, Cluster, cdi_files, open_cluster, records

RESTART_KUBELET = shlex.split(os.environ.get("PYDRA_E2E_KUBELET_RESTART", ""))


async def test_what_is_prepared_outlives_the_agent_and_is_unprepared_by_the_next(tmp_path: Path) -> None:
    async with open_cluster() as cluster:
        await cluster.create_class(DRIVER)
        await cluster.create_claim("accel")
        with run_agent(cluster.node, tmp_path) as agent:
            await agent.wait_serving(cluster)
            before = await cluster.slices()
            await cluster.start_pod("app", STAY, resourceClaimName="accel")
            assert await anyio.to_thread.run_sync(agent.stop) == 0
        assert len(cdi_files()) == 1
        async with open_agent(cluster, tmp_path):
            await cluster.delete_pod("app")
            await cluster.wait_unprepared()
            after = await cluster.slices()
            assert versions(after) == versions(before), "a restart must not write slices that are right already"


async def test_an_agent_that_is_killed_leaves_pods_running_and_its_successor_serves_them(tmp_path: Path) -> None:
    async with open_cluster() as cluster:
        await cluster.create_class(DRIVER)
        await cluster.create_claim("accel", template=True)
        with run_agent(cluster.node, tmp_path) as agent:
            for name in ("ends", "stays"):
                await cluster.start_pod(name, STAY, resourceClaimTemplateName="accel")
            assert await anyio.to_thread.run_sync(agent.stop, signal.SIGKILL) == -signal.SIGKILL
        async with open_agent(cluster, tmp_path):
            await cluster.delete_pod("ends")
            assert (await cluster.pod("stays"))["status"]["phase"] == "Running"
            assert len(cdi_files()) == 1
            await cluster.start_pod("new", STAY, resourceClaimTemplateName="accel")


async def test_a_pod_that_was_there_first_runs_once_the_agent_comes(tmp_path: Path) -> None:
    async with open_cluster() as cluster:
        await cluster.create_class(DRIVER)
        await cluster.create_claim("accel")
        for left in await cluster.slices():
            await cluster.client.delete(RESOURCE_SLICES, left["metadata"]["name"])
        await cluster.create_pod("early", STAY, resourceClaimName="accel")
        await cluster.stays_pending("early")
        async with open_agent(cluster, tmp_path):
            await cluster.wait_phase("early", "Running")


async def test_a_pod_in_the_middle_of_prepare_starts_although_the_agent_is_asked_to_stop(tmp_path: Path) -> None:
    slow = "faults: [{do: slow, call: prepare, seconds: 5}]"
    async with open_cluster() as cluster:
        await cluster.create_class(DRIVER)
        await cluster.create_claim("accel")
        with run_agent(cluster.node, tmp_path, scenario=slow) as agent:
            await agent.wait_serving(cluster)
            await cluster.create_pod("app", STAY, resourceClaimName="accel")
            await cluster.wait("the prepare has begun", has_records)
            assert await anyio.to_thread.run_sync(agent.stop) == 0
            await cluster.wait_phase("app", "Running")
            assert await cluster.notes("FailedPrepareDynamicResources") == []
        async with open_agent(cluster, tmp_path):
            await cluster.delete_pod("app")


async def test_rolling_updates_cost_no_pod_its_start_or_end(tmp_path: Path) -> None:
    async with open_cluster() as cluster:
        await cluster.create_class(DRIVER)
        await cluster.create_claim("accel", template=True)
        updated = anyio.Event()
        with ExitStack() as agents:
            old = agents.enter_context(run_agent(cluster.node, tmp_path, pod_uid="0000"))
            await old.wait_serving(cluster)
            before = [one["metadata"]["uid"] for one in await cluster.slices()]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(come_and_go, cluster, updated)
                for number in range(1, 5):
                    new = agents.enter_context(run_agent(cluster.node, tmp_path, pod_uid=f"{number:04}"))
                    await new.wait_serving(cluster)
                    assert await anyio.to_thread.run_sync(old.stop) == 0
                    old = new
                updated.set()
            assert [one["metadata"]["uid"] for one in await cluster.slices()] == before
            await cluster.wait_unprepared()
        assert await cluster.notes("FailedPrepareDynamicResources") == []


@pytest.mark.skipif(not RESTART_KUBELET, reason="PYDRA_E2E_KUBELET_RESTART names no command that restarts the kubelet")
async def test_after_a_restart_of_the_kubelet_all_is_as_before(tmp_path: Path) -> None:
    async with open_cluster() as cluster, open_agent(cluster, tmp_path) as agent:
        await cluster.create_class(DRIVER)
        await cluster.create_claim("accel", template=True)
        await cluster.start_pod("old", STAY, resourceClaimTemplateName="accel")
        before = await cluster.slices()
        await anyio.run_process(RESTART_KUBELET)
        await agent.wait_said(cluster, "the kubelet has registered", times=2)
        after = await cluster.wait_published()
        assert [one["spec"]["devices"] for one in after] == [one["spec"]["devices"] for one in before]
        assert (await cluster.pod("old"))["status"]["phase"] == "Running"
        await cluster.start_pod("new", STAY, resourceClaimTemplateName="accel")
        await cluster.delete_pod("old")
        assert len(cdi_files()) == 1


async def test_when_the_agent_is_gone_the_kubelet_takes_its_slices_away(tmp_path: Path) -> None:
    async with open_cluster() as cluster:
        async with open_agent(cluster, tmp_path):
            assert await cluster.slices()

        async def none_left() -> bool:
            return not await cluster.slices()

        await cluster.wait("no slices are left", none_left)


async def come_and_go(cluster: Cluster, until: anyio.Event) -> None:
    """One pod after another starts and ends; at least one of them after `until`."""
    for number in range(100):
        last = until.is_set()
        await cluster.start_pod(f"app-{number}", STAY, resourceClaimTemplateName="accel")
        await cluster.delete_pod(f"app-{number}")
        if last:
            return


def versions(slices: list[JsonObject]) -> list[str]:
    return [one["metadata"]["resourceVersion"] for one in slices]


async def has_records() -> bool:
    return bool(records())
