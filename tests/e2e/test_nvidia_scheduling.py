"""What the real scheduler makes of NVIDIA devices: counters, shares, attributes, classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydra.kube.api_resources import PODS
from tests.e2e.cluster import IMAGE, STAY
from tests.e2e.nvidia import LOOK, ONE, PLAIN, TWO, allocated, ask, delete_pods, open_node, partition, start_pods

SMALL = [f"small-{number}" for number in range(7)]
SHARED = PLAIN + "settings: {consumable_shares: 4}\n"


@pytest.mark.gates("DRAPartitionableDevices")
async def test_a_gpu_holds_seven_small_partitions_or_is_given_whole(tmp_path: Path) -> None:
    async with open_node(tmp_path, ONE) as node:
        for name in (*SMALL, "eighth"):
            await node.cluster.create_claim(name, requests=[partition("1g.10gb")])
        await node.cluster.create_claim("whole", requests=[ask()])
        await start_pods(node.cluster, STAY, SMALL)
        assert len(node.partitions()) == 7
        for name in ("eighth", "whole"):
            await node.cluster.create_pod(name, STAY, resourceClaimName=name)
            await node.cluster.stays_pending(name)
        await node.cluster.delete_pod(SMALL[3])
        await node.cluster.wait_phase("eighth", "Running")
        await delete_pods(node.cluster, [*SMALL[:3], *SMALL[4:], "eighth"])
        await node.cluster.wait_phase("whole", "Running")
        assert (node.partitions(), node.gpus()[0].mig) == ([], False)


@pytest.mark.gates("DRAPartitionableDevices")
async def test_a_claim_gets_several_partitions_of_one_gpu(tmp_path: Path) -> None:
    async with open_node(tmp_path, TWO) as node:
        requests = [
            partition("3g.40gb", "large"),
            partition("2g.20gb", "middle"),
            partition("1g.10gb", "small", count=2),
        ]
        constraints = [{"matchAttribute": "gpu.nvidia.com/parentUUID"}]
        for name in ("one", "two"):
            await node.cluster.create_claim(name, requests=requests, constraints=constraints)
        await start_pods(node.cluster, STAY, ["one", "two"])
        parents = [
            {one["device"].partition("-mig-")[0] for one in await allocated(node.cluster, name)}
            for name in ("one", "two")
        ]
        assert sorted(map(sorted, parents)) == [["gpu-0"], ["gpu-1"]]
        assert len(node.partitions()) == 8


@pytest.mark.gates("DRAPrioritizedList")
async def test_expressions_and_constraints_written_for_the_vendors_driver_choose(tmp_path: Path) -> None:
    async with open_node(tmp_path, TWO) as node:
        new = "A.driverVersion.compareTo(semver('570.0.0')) >= 0 && C.memory.compareTo(quantity('40Gi')) >= 0"
        old = "A.driverVersion.compareTo(semver('590.0.0')) >= 0"
        linked = [{"matchAttribute": "gpu.nvidia.com/nvlinkIsland"}]
        near = [{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]
        wishes = [
            {"name": "three", "deviceClassName": "gpu.nvidia.com", "count": 3},
            {"name": "two", "deviceClassName": "gpu.nvidia.com", "count": 2},
        ]
        await node.cluster.create_claim("old", requests=[ask(where=old)])
        await node.cluster.create_claim("near", requests=[ask(count=2)], constraints=near)
        await node.cluster.create_claim("new", requests=[ask(where=new, count=2)], constraints=linked)
        await node.cluster.create_claim("wishes", requests=[{"name": "gpu", "firstAvailable": wishes}])
        for name in ("old", "near"):
            await node.cluster.create_pod(name, STAY, resourceClaimName=name)
            await node.cluster.stays_pending(name)
        await start_pods(node.cluster, STAY, ["new"])
        await node.cluster.delete_pod("new")
        await start_pods(node.cluster, STAY, ["wishes"])
        assert {one["request"] for one in await allocated(node.cluster, "wishes")} == {"gpu/two"}


@pytest.mark.gates("DRAConsumableCapacity")
async def test_a_gpu_is_shared_by_as_many_claims_as_it_has_shares(tmp_path: Path) -> None:
    async with open_node(tmp_path, SHARED) as node:
        sharers = [f"sharer-{number}" for number in range(4)]
        for name in (*sharers, "fifth"):
            share = ask(where=f"A.uuid == '{node.uuid(0)}'", capacity={"requests": {"memory": "10Gi"}})
            await node.cluster.create_claim(name, requests=[share])
        for name in sharers:  # one by one: of several at once the scheduler counts what it has in hand twice
            await node.cluster.start_pod(name, STAY, resourceClaimName=name)
        await node.cluster.create_pod("fifth", STAY, resourceClaimName="fifth")
        await node.cluster.stays_pending("fifth")
        results = [result for name in sharers for result in await allocated(node.cluster, name)]
        assert {one["device"] for one in results} == {"gpu-0"}
        assert {tuple(sorted(one["consumedCapacity"].items())) for one in results} == {
            (("memory", "10Gi"), ("shares", "1"))
        }


@pytest.mark.gates("DRAExtendedResource")
async def test_a_pod_that_asks_as_with_the_device_plugin_gets_a_gpu(tmp_path: Path) -> None:
    async with open_node(tmp_path, PLAIN) as node:
        container = {
            "name": "main",
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sh", "-c", LOOK],
            "resources": {"limits": {"nvidia.com/gpu": 2}},
        }
        spec = {"restartPolicy": "Never", "hostNetwork": True, "containers": [container]}
        await node.cluster.create(PODS, {"metadata": {"name": "app"}, "spec": spec})
        pod = await node.cluster.wait_phase("app", "Succeeded")
        found = pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"]
        assert "/dev/nvidia0 " in found
        assert "/dev/nvidia1 " in found


async def test_a_monitor_with_admin_access_sees_gpus_that_others_hold_and_changes_nothing(tmp_path: Path) -> None:
    labels = {"resource.kubernetes.io/admin-access": "true"}
    async with open_node(tmp_path, PLAIN, labels=labels) as node:
        await node.cluster.create_claim("worker", requests=[ask()])
        await node.cluster.start_pod("worker", STAY, resourceClaimName="worker")
        await node.cluster.create_claim("monitor", requests=[ask(allocationMode="All", adminAccess=True)])
        found = (await node.cluster.run_pod("monitor", LOOK, resourceClaimName="monitor"))["main"]
        assert {"/dev/nvidia0 1:3", "/dev/nvidia1 1:3"} <= set(found)
        await node.cluster.delete_pod("monitor")
        assert (await node.cluster.pod("worker"))["status"]["phase"] == "Running"
