"""Every way to ask for devices: what the scheduler allocates is what the containers get.

Of an agent that is a process beside the kubelet, and of one that the chart has installed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from pydra.errors import KubeError
from pydra.kube.api_resources import DEVICE_CLASSES, RESOURCE_CLAIMS, JsonObject
from tests.e2e.agent import open_agent
from tests.e2e.cluster import DRIVER, STAY, Cluster, open_cluster
from tests.e2e.release import IMAGE as RELEASED
from tests.e2e.release import open_served

Serve = Callable[..., AbstractAsyncContextManager[object]]

ONE = "groups: [{name: accel, count: 1}]"
CUT = "groups: [{name: accel, count: 1, slices: 4, partitions: [1, 2]}]"
MIXED = "groups: [{name: small, count: 2, memoryGiB: 16}, {name: large, count: 2}]"
SHARED = "groups: [{name: accel, count: 1, shared: true}]"


@pytest.fixture(params=["process", "release"])
def serve(request: pytest.FixtureRequest, tmp_path: Path) -> Serve:
    """`serve(cluster, scenario=...)`: simulated accelerators are offered within it."""
    if request.param == "process":
        return partial(open_agent, scratch=tmp_path)
    if not RELEASED:
        pytest.skip("PYDRA_E2E_CHART_IMAGE names no image that is on the node")
    return open_served


def ask(name: str, **exactly: object) -> JsonObject:
    return {"name": name, "exactly": {"deviceClassName": DRIVER, **exactly}}


def names(found: list[str]) -> list[str]:
    return [line for line in found if line.startswith("accel-")]


@pytest.mark.gates("DRAPartitionableDevices")
async def test_partitions_are_given_as_far_as_the_counters_reach(serve: Serve) -> None:
    half = {"cel": {"expression": f"device.attributes['{DRIVER}'].profile == '2of4'"}}
    async with open_cluster() as cluster, serve(cluster, scenario=CUT):
        await cluster.create_class(f"partition.{DRIVER}", kind="partition")
        for name in ("one", "two", "three"):
            request = ask("part", deviceClassName=f"partition.{DRIVER}", selectors=[half])
            await cluster.create_claim(name, requests=[request])
        for name in ("one", "two"):
            await cluster.start_pod(name, STAY, resourceClaimName=name)
        await cluster.create_pod("three", STAY, resourceClaimName="three")
        await cluster.stays_pending("three")
        await cluster.delete_pod("one")
        await cluster.wait_phase("three", "Running")
        assert {(await allocated(cluster, name))[0]["device"] for name in ("two", "three")} == {
            "accel-0-2of4-0",
            "accel-0-2of4-2",
        }


@pytest.mark.gates("DRAConsumableCapacity")
async def test_two_claims_share_a_device_and_each_container_learns_its_share(serve: Serve) -> None:
    async with open_cluster() as cluster, serve(cluster, scenario=SHARED):
        await cluster.create_class(DRIVER)
        shares = {"small": "16Gi", "large": "40Gi", "extra": "9Gi"}
        for name, memory in shares.items():
            requests = {"memory": memory, "cores": "1"}
            await cluster.create_claim(name, requests=[ask("share", capacity={"requests": requests})])
        for name in ("small", "large"):
            await cluster.start_pod(name, STAY, resourceClaimName=name)
        await cluster.create_pod("extra", STAY, resourceClaimName="extra")
        await cluster.stays_pending("extra")
        results = {name: (await allocated(cluster, name))[0] for name in ("small", "large")}
        assert {one["device"] for one in results.values()} == {"accel-0"}
        assert len({one["shareID"] for one in results.values()}) == 2
        for name in ("small", "large"):
            assert results[name]["consumedCapacity"] == {"memory": shares[name], "cores": "1"}
            found = (await cluster.run_pod(f"{name}-too", resourceClaimName=name))["main"]
            assert f"SIM_ACCEL_0_MEMORY={shares[name]}" in found
            assert "SIM_ACCEL_0_CORES=1" in found


@pytest.mark.gates("DRAPrioritizedList")
async def test_the_first_available_of_several_wishes_is_granted(serve: Serve) -> None:
    wishes = [
        {"name": "many", "deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 9},
        {"name": "one", "deviceClassName": DRIVER},
    ]
    async with open_cluster() as cluster, serve(cluster):
        await cluster.create_class(DRIVER)
        await cluster.create_claim("modest", requests=[{"name": "accel", "firstAvailable": wishes}])
        uses = [{"name": "claim", "request": "accel"}]
        await cluster.start_pod("holder", STAY, resourceClaimName="modest")
        found = await cluster.run_pod("app", claims={"claim": "modest"}, containers={"main": uses})
        result = (await allocated(cluster, "modest"))[0]
        assert result["request"] == "accel/one"
        assert names(found["main"]) == [result["device"]]


async def test_a_monitor_with_admin_access_sees_a_device_that_another_claim_holds(serve: Serve) -> None:
    labels = {"resource.kubernetes.io/admin-access": "true"}
    async with open_cluster(**labels) as cluster, serve(cluster, scenario=ONE):
        await cluster.create_class(DRIVER)
        await cluster.create_claim("worker")
        await cluster.start_pod("worker", STAY, resourceClaimName="worker")
        request = ask("all", allocationMode="All", adminAccess=True)
        claim = await cluster.create_claim("monitor", requests=[request])
        if "adminAccess" not in claim["spec"]["devices"]["requests"][0]["exactly"]:
            pytest.skip("the cluster drops adminAccess: feature gate DRAAdminAccess is off")
        found = (await cluster.run_pod("monitor", resourceClaimName="monitor"))["main"]
        assert names(found) == ["accel-0"]
        assert "SIM_ACCEL_0_ADMIN=true" in found
        await cluster.delete_pod("monitor")
        assert (await cluster.pod("worker"))["status"]["phase"] == "Running"


async def test_admin_access_is_refused_where_the_namespace_does_not_allow_it(serve: Serve) -> None:
    async with open_cluster() as cluster, serve(cluster, scenario=ONE):
        await cluster.create_class(DRIVER)
        request = ask("all", allocationMode="All", adminAccess=True)
        for template in (False, True):
            with pytest.raises(KubeError, match=r"resource\.kubernetes\.io/admin-access"):
                await cluster.create_claim("spy", template=template, requests=[request])


async def test_selectors_choose_by_what_the_slices_say(serve: Serve) -> None:
    large = f"device.capacity['{DRIVER}'].memory.compareTo(quantity('32Gi')) >= 0"
    second = f"device.attributes['{DRIVER}'].index == 1"
    absent = f"device.attributes['{DRIVER}'].colour == 'red'"
    async with open_cluster() as cluster, serve(cluster, scenario=MIXED):
        await cluster.create_class(DRIVER)
        for name, expressions in (("fits", (large, second)), ("never", (absent,))):
            selectors = [{"cel": {"expression": one}} for one in expressions]
            await cluster.create_claim(name, requests=[ask("one", selectors=selectors)])
        await cluster.start_pod("fits", STAY, resourceClaimName="fits")
        assert (await allocated(cluster, "fits"))[0]["device"] == "large-1"
        await cluster.create_pod("never", STAY, resourceClaimName="never")
        assert "no such key: colour" in await cluster.stays_pending("never")


async def test_configs_of_class_claim_and_request_reach_the_containers(serve: Serve) -> None:
    async with open_cluster() as cluster, serve(cluster):
        fast = f"{cluster.namespace}.{DRIVER}"
        selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
        spec = {"selectors": [selector], "config": [opaque(clockMHz=1000)]}
        await cluster.create(DEVICE_CLASSES, {"metadata": {"name": fast}, "spec": spec})
        try:
            config = [{"requests": ["own"], **opaque(clockMHz=1500, sharing={"strategy": "TimeSliced", "interval": 7})}]
            requests = [ask(name, deviceClassName=fast) for name in ("own", "plain")]
            await cluster.create_claim("pair", requests=requests, config=config)
            containers = {name: [{"name": "claim", "request": name}] for name in ("own", "plain")}
            found = await cluster.run_pod("app", claims={"claim": "pair"}, containers=containers)
            assert settings(found["own"]) == {"CLOCK_MHZ=1500", "TIME_SLICE_MS=7"}
            assert settings(found["plain"]) == {"CLOCK_MHZ=1000"}
        finally:
            await cluster.client.delete(DEVICE_CLASSES, fast)


def opaque(**parameters: object) -> JsonObject:
    kind = {"apiVersion": f"{DRIVER}/v1alpha1", "kind": "SimConfig"}
    return {"opaque": {"driver": DRIVER, "parameters": {**kind, **parameters}}}


def settings(found: list[str]) -> set[str]:
    """What a container got to know of the only device that it has, beside what that is."""
    told = {line.split("_", 3)[3] for line in found if line.startswith("SIM_ACCEL_")}
    return {one for one in told if not one.startswith(("UUID", "MEMORY", "CORES", "SLOTS"))}


async def test_containers_get_the_devices_of_the_requests_that_they_name(serve: Serve) -> None:
    async with open_cluster() as cluster, serve(cluster):
        await cluster.create_class(DRIVER)
        await cluster.create_claim("pair", requests=[ask("left"), ask("right", count=2)])
        containers = {
            "left": [{"name": "claim", "request": "left"}],
            "right": [{"name": "claim", "request": "right"}],
            "both": [{"name": "claim"}],
            "none": [],
        }
        await cluster.start_pod("holder", STAY, resourceClaimName="pair")
        found = await cluster.run_pod("app", claims={"claim": "pair"}, containers=containers)
        given: dict[str, list[str]] = {"left": [], "right": []}
        for result in await allocated(cluster, "pair"):
            given[result["request"]].append(result["device"])
        assert len(given["right"]) == 2
        assert names(found["left"]) == given["left"]
        assert names(found["right"]) == sorted(given["right"])
        assert names(found["both"]) == sorted(given["left"] + given["right"])
        assert [line for line in found["none"] if line.startswith("SIM_")] == []


async def allocated(cluster: Cluster, name: str) -> list[JsonObject]:
    """The results of a claim that a pod holds; without one its allocation is taken back."""
    claim = await cluster.client.get(RESOURCE_CLAIMS, name, namespace=cluster.namespace)
    results: list[JsonObject] = claim["status"]["allocation"]["devices"]["results"]
    return results
