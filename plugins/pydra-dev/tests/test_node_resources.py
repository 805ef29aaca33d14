"""What the scheduler counts of a node's CPUs and memory when claims use them, too."""

from __future__ import annotations

from typing import Any

import pytest

from pydra_dev.api.feature_gates import ALLOCATABLE
from pydra_dev.api.kinds import DEVICE_CLASSES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from pydra_dev.apiserver.verbs import Api
from pydra_dev.control_plane import serve_control_plane

JsonObject = dict[str, Any]
DRIVER = "cpu.example.com"
SHARED: JsonObject = {"name": "numa", "capacity": {"cpu": {"value": "8"}}, "allowMultipleAllocations": True}
BY_SHARE: JsonObject = {"mapping": {"capacityKey": "cpu", "capacityMultiplier": "1"}}
SINGLE: JsonObject = {"name": "single"}
EACH: JsonObject = {"mapping": {"deviceMultiplier": "2"}}


def publish(api: Api, *devices: JsonObject) -> None:
    api.create(NODES, {"metadata": {"name": "n1"}, "status": {"allocatable": {"cpu": "8", "memory": "8Gi"}}})
    api.create(DEVICE_CLASSES, {"metadata": {"name": "cpu"}, "spec": {}})
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "n1", "pool": pool, "devices": list(devices)}
    api.create(RESOURCE_SLICES, {"metadata": {"name": "slice"}, "spec": spec})


def add_claim(api: Api, name: str, cpus: int = 0) -> None:
    exactly: JsonObject = {"deviceClassName": "cpu"}
    if cpus:
        exactly["capacity"] = {"requests": {"cpu": str(cpus)}}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    api.create(RESOURCE_CLAIMS, {"metadata": {"name": name}, "spec": spec}, namespace="default")


async def schedule(api: Api, name: str, claim: str = "", *, requests: JsonObject | None = None, **spec: Any) -> str:
    """Where a pod with two containers runs, or why it does not."""
    claims = [{"name": "cpus"}] if claim else []
    containers = [
        {"name": "a", "image": "i", "resources": {"requests": requests or {}, "claims": claims}},
        {"name": "b", "image": "i", "resources": {"claims": claims}},
    ]
    body = {"containers": containers, **spec}
    if claim:
        body["resourceClaims"] = [{"name": "cpus", "resourceClaimName": claim}]
    api.create(PODS, {"metadata": {"name": name}, "spec": body}, namespace="default")

    def look() -> str:
        pod = api.get(PODS, name, namespace="default")
        told = [one["message"] for one in pod["status"].get("conditions") or () if one.get("message")]
        return pod["spec"].get("nodeName") or "".join(told[:1])

    return await api.store.wait(look)


def read_status(api: Api, name: str) -> Any:
    return api.get(PODS, name, namespace="default")["status"].get("nodeAllocatableResourceClaimStatuses")


async def test_claims_and_requests_share_the_cpus_of_the_node() -> None:
    async with serve_control_plane(version="1.37.0", gates={ALLOCATABLE: True}) as server:
        api = server.api
        publish(api, {**SHARED, "nodeAllocatableResources": {"cpu": BY_SHARE}})
        add_claim(api, "five", 5)
        add_claim(api, "two", 2)
        assert await schedule(api, "p", "five", requests={"cpu": "1"}) == "n1"
        mapped = [{"name": "cpu", "quantity": "5"}]
        assert read_status(api, "p") == [{"resourceClaimName": "five", "containers": ["a", "b"], "mapping": mapped}]
        assert "Insufficient cpu: wants 3, 2 are free" in await schedule(api, "q", requests={"cpu": "3"})
        assert "Insufficient cpu: wants 2500m, 2 are free" in await schedule(api, "r", "two", requests={"cpu": "500m"})
        assert await schedule(api, "s", requests={"cpu": "2"}) == "n1"


async def test_what_pods_need_besides_is_counted_for_each_pod_and_container() -> None:
    overhead = {"overhead": {"perPod": "1Gi", "perContainer": "512Mi"}}
    async with serve_control_plane(version="1.37.0", gates={ALLOCATABLE: True}) as server:
        api = server.api
        publish(api, {**SINGLE, "nodeAllocatableResources": {"memory": overhead}})
        add_claim(api, "claim")
        for name in ("p", "q", "r", "s"):
            assert await schedule(api, name, "claim") == "n1", "a claim of which nothing is mapped can be shared"
        entry = {"name": "memory", "perPod": "1Gi", "perContainer": "512Mi"}
        assert read_status(api, "p") == [{"resourceClaimName": "claim", "containers": ["a", "b"], "overhead": [entry]}]
        assert "Insufficient memory: wants 2Gi, 0 are free" in await schedule(api, "t", "claim")


async def test_a_claim_that_uses_the_node_s_cpus_is_for_one_pod() -> None:
    async with serve_control_plane(version="1.37.0", gates={ALLOCATABLE: True}) as server:
        api = server.api
        publish(api, {**SINGLE, "nodeAllocatableResources": {"cpu": EACH}})
        add_claim(api, "claim")
        assert await schedule(api, "p", "claim") == "n1"
        assert "claim claim has a mapped device and cannot be shared" in await schedule(api, "q", "claim")


@pytest.mark.parametrize(
    ("pod", "outcome"),
    [
        pytest.param({"resources": {"requests": {"cpu": "2"}}}, "n1", id="what it says for the whole"),
        pytest.param({"resources": {"requests": {"cpu": "1"}}}, "request for cpu is insufficient", id="too little"),
        pytest.param({"resources": {"requests": {"cpu": "9"}}}, "wants 9, 8 are free", id="too much"),
        pytest.param(
            {"initContainers": [{"name": "i", "image": "i", "resources": {"limits": {"cpu": "7"}}}]},
            "wants 9, 8 are free",
            id="an init container",
        ),
    ],
)
async def test_a_pod_may_say_what_it_needs_in_all(pod: JsonObject, outcome: str) -> None:
    async with serve_control_plane(version="1.37.0", gates={ALLOCATABLE: True}) as server:
        publish(server.api, {**SINGLE, "nodeAllocatableResources": {"cpu": EACH}})
        add_claim(server.api, "claim")
        assert outcome in await schedule(server.api, "p", "claim", **pod)


async def test_1_36_has_its_own_fields() -> None:
    async with serve_control_plane(version="1.36.2", gates={ALLOCATABLE: True}) as server:
        api = server.api
        mapping = {"cpu": {"capacityKey": "cpu", "allocationMultiplier": "1500m"}}
        publish(api, {**SHARED, "nodeAllocatableResourceMappings": mapping})
        add_claim(api, "four", 4)
        assert await schedule(api, "p", "four") == "n1"
        entry = {"resourceClaimName": "four", "containers": ["a", "b"], "resources": {"cpu": "6"}}
        assert read_status(api, "p") == [entry]
        assert "wants 3, 2 are free" in await schedule(api, "q", requests={"cpu": "3"})


async def test_nothing_is_counted_with_the_gate_off() -> None:
    async with serve_control_plane(version="1.37.0") as server:
        publish(server.api, {**SHARED, "nodeAllocatableResources": {"cpu": BY_SHARE}})
        add_claim(server.api, "eight", 8)
        assert await schedule(server.api, "p", "eight", requests={"cpu": "5"}) == "n1"
        assert read_status(server.api, "p") is None
