"""Pods with claims on a real node: what an application developer and a cluster admin see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydra.kube.resources import RESOURCE_CLAIMS, RESOURCE_SLICES
from tests.e2e.cluster import CDI_DIRECTORY, DRIVER, KUBELET_ROOT, Cluster, open_cluster, run_agent

SHOW = "env | grep ^SIM_ | sort; ls /dev/sim; sleep 1000"


def cdi_files() -> list[Path]:
    return sorted(CDI_DIRECTORY.glob(f"{DRIVER}-claim_*.json"))


def records() -> list[Path]:
    return sorted((KUBELET_ROOT / "plugins" / DRIVER).rglob("*.json"))


async def test_a_pod_that_asks_for_a_device_starts_with_it_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with open_cluster() as cluster:
        with run_agent(cluster.node, tmp_path):
            published = await cluster.wait_published()
            assert sum(len(one["spec"]["devices"]) for one in published) == 8
            await cluster.create_class(DRIVER)
            await cluster.create_claim("accel", template=True)
            await cluster.create_pod(
                "app", "ls /dev/sim >&2; env | grep -q ^SIM_ACCEL_0_UUID && exit 7", resourceClaimTemplateName="accel"
            )
            pod = await cluster.wait_phase("app", "Failed")
            ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
            assert ended["exitCode"] == 7, ended
            assert ended["message"].startswith("accel-"), ended
            await cluster.delete_pod("app")
            await cluster.wait("the CDI file is gone", lambda: _none(cdi_files))
            assert records() == []


async def test_two_pods_share_a_claim_and_it_is_unprepared_after_the_last(tmp_path: Path) -> None:
    async with open_cluster() as cluster:
        with run_agent(cluster.node, tmp_path):
            await cluster.wait_published()
            await cluster.create_class(DRIVER)
            await cluster.create_claim("shared")
            for name in ("one", "two"):
                await cluster.create_pod(name, SHOW, resourceClaimName="shared")
            for name in ("one", "two"):
                await cluster.wait_phase(name, "Running")
            assert len(cdi_files()) == 1
            await cluster.delete_pod("one")
            assert len(cdi_files()) == 1
            await cluster.delete_pod("two")
            await cluster.wait("the CDI file is gone", lambda: _none(cdi_files))


async def test_a_claim_with_wrong_parameters_says_in_an_event_what_to_change(
    tmp_path: Path,
) -> None:
    wrong = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "SimConfig", "clockMHz": 99999, "shraing": {}}
    async with open_cluster() as cluster:
        with run_agent(cluster.node, tmp_path):
            await cluster.wait_published()
            await cluster.create_class(DRIVER)
            await cluster.create_claim("picky", config=[{"opaque": {"driver": DRIVER, "parameters": wrong}}])
            await cluster.create_pod("app", SHOW, resourceClaimName="picky")
            notes = await cluster.wait("an Event on the claim", lambda: cluster.notes("InvalidConfig"))
            assert "clockMHz" in notes[0]
            assert "2000" in notes[0]
            assert "shraing" in notes[0]
            assert "sharing" in notes[0]
            await cluster.delete_pod("app")
            claim = await cluster.client.get(RESOURCE_CLAIMS, "picky", namespace=cluster.namespace)
            assert not claim["status"].get("reservedFor")


async def test_what_is_prepared_outlives_the_agent_and_is_unprepared_by_the_next(tmp_path: Path) -> None:
    async with open_cluster() as cluster:
        with run_agent(cluster.node, tmp_path) as agent:
            before = await cluster.wait_published()
            await cluster.create_class(DRIVER)
            await cluster.create_claim("accel")
            await cluster.create_pod("app", SHOW, resourceClaimName="accel")
            await cluster.wait_phase("app", "Running")
            assert agent.stop() == 0
        assert len(cdi_files()) == 1
        with run_agent(cluster.node, tmp_path):
            await cluster.wait_published()
            await cluster.delete_pod("app")
            await cluster.wait("the CDI file is gone", lambda: _none(cdi_files))
            after = await cluster.slices()
            assert [one["metadata"]["resourceVersion"] for one in after] == [
                one["metadata"]["resourceVersion"] for one in before
            ], "a restart must not write slices that are right already"


async def test_a_sick_device_is_tainted_and_shown_in_the_pods_status(tmp_path: Path) -> None:
    well = "groups: [{name: accel, count: 1}]\n"
    async with open_cluster() as cluster:
        with run_agent(cluster.node, tmp_path, scenario=well, flags=("--healthy-after", "0")):
            await cluster.wait_published()
            await cluster.create_class(DRIVER)
            await cluster.create_claim("accel")
            await cluster.create_pod("app", SHOW, resourceClaimName="accel")
            await cluster.wait_phase("app", "Running")
            (tmp_path / "scenario.yaml").write_text(well + "unhealthy: {accel-0: too hot}\n")
            await cluster.wait("a taint in the slice", lambda: _taints(cluster))
            await cluster.wait("Unhealthy in the pod's status", lambda: _health(cluster, "Unhealthy"))
            (tmp_path / "scenario.yaml").write_text(well)
            await cluster.wait("no taint any more", lambda: _no_taints(cluster))
            await cluster.wait("Healthy in the pod's status", lambda: _health(cluster, "Healthy"))


async def test_a_new_instance_takes_over_while_the_old_one_serves(tmp_path: Path) -> None:
    async with open_cluster() as cluster:
        await cluster.create_class(DRIVER)
        with run_agent(cluster.node, tmp_path, pod_uid="0001") as old:
            before = await cluster.wait_published()
            await cluster.create_claim("accel", template=True)
            await cluster.create_pod("first", SHOW, resourceClaimTemplateName="accel")
            await cluster.wait_phase("first", "Running")
            with run_agent(cluster.node, tmp_path, pod_uid="0002"):
                registry = KUBELET_ROOT / "plugins_registry"
                await cluster.wait("the second is there", lambda: _at_least(len(list(registry.glob(f"{DRIVER}*"))), 2))
                assert old.stop() == 0
                await cluster.create_pod("second", SHOW, resourceClaimTemplateName="accel")
                await cluster.wait_phase("second", "Running")
                await cluster.delete_pod("first")
                await cluster.delete_pod("second")
                await cluster.wait("the CDI files are gone", lambda: _none(cdi_files))
                after = await cluster.slices()
                assert [one["metadata"]["uid"] for one in after] == [one["metadata"]["uid"] for one in before]


async def test_slices_that_somebody_deletes_are_there_again_at_once(tmp_path: Path) -> None:
    async with open_cluster() as cluster:
        with run_agent(cluster.node, tmp_path):
            before = await cluster.wait_published()

            await cluster.client.delete(RESOURCE_SLICES, before[0]["metadata"]["name"])
            after = await cluster.wait_published()
            assert after[0]["metadata"]["uid"] != before[0]["metadata"]["uid"]
            assert after[0]["spec"]["devices"] == before[0]["spec"]["devices"]


async def _none(look: Callable[[], list[Path]]) -> bool:
    return not look()


async def _at_least(found: int, wanted: int) -> bool:
    return found >= wanted


async def _taints(cluster: Cluster) -> list[object]:
    return [
        taint
        for one in await cluster.slices()
        for device in one["spec"]["devices"]
        for taint in device.get("taints") or ()
    ]


async def _no_taints(cluster: Cluster) -> bool:
    return not await _taints(cluster)


async def _health(cluster: Cluster, wanted: str) -> bool:
    pod = await cluster.pod("app")
    statuses = pod["status"].get("containerStatuses") or [{}]
    shown = [
        one["health"] for status in statuses[0].get("allocatedResourcesStatus") or () for one in status["resources"]
    ]
    return wanted in shown
