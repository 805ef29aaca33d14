"""A pod that asks for an extended resource never runs without its devices."""

from __future__ import annotations

from typing import Any

import pytest

from pydra_dev.api.kinds import DEVICE_CLASSES, NODES, PODS
from pydra_dev.apiserver.verbs import Api
from pydra_dev.control_plane import serve_control_plane

GPU = "example.com/gpu"


def add_pod(api: Api, name: str, limits: dict[str, Any], **spec: Any) -> None:
    container = {"name": "c", "image": "i", "resources": {"limits": limits}}
    api.create(PODS, {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}, namespace="default")


async def read_outcome(api: Api, name: str) -> str:
    """Where the pod runs, or why it does not."""

    def look() -> str:
        pod = api.get(PODS, name, namespace="default")
        told = [one.get("message", "") for one in pod["status"].get("conditions") or ()]
        return pod["spec"].get("nodeName") or "".join(told[:1])

    return await api.store.wait(look)


@pytest.mark.parametrize(
    ("limits", "outcome"),
    [
        pytest.param({"example.com/gqu": 1}, '(did you mean "example.com/gpu"?)', id="misspelt"),
        pytest.param(
            {"other.example.org/x": "1"}, "neither the node nor a DeviceClass has this resource", id="unknown"
        ),
        pytest.param({GPU: 20}, "it stands for DeviceClass gpus", id="of a class"),
        pytest.param({"deviceclass.resource.kubernetes.io/gpus": 1}, "stands for DeviceClass gpus", id="implicit"),
        pytest.param({"example.com/old": 3}, "wants 3, 2 of the node's 2 are free", id="more than the node has"),
        pytest.param({GPU: "many"}, "Insufficient example.com/gpu", id="not a quantity"),
        pytest.param({"example.com/old": 2, "cpu": "1", "memory": "1Gi"}, "n1", id="what the node has"),
        pytest.param({GPU: 0}, "n1", id="none"),
    ],
)
async def test_a_pod_waits_with_the_reason_unless_the_node_has_its_extended_resources(
    limits: dict[str, Any], outcome: str
) -> None:
    async with serve_control_plane() as server:
        api = server.api
        api.create(DEVICE_CLASSES, {"metadata": {"name": "gpus"}, "spec": {"extendedResourceName": GPU}})
        api.create(NODES, {"metadata": {"name": "n1"}, "status": {"allocatable": {"example.com/old": "2"}}})
        add_pod(api, "p", limits)
        assert outcome in await read_outcome(api, "p")


async def test_the_pods_of_a_node_share_what_it_has() -> None:
    async with serve_control_plane() as server:
        api = server.api
        api.create(NODES, {"metadata": {"name": "n1"}, "status": {"allocatable": {"example.com/old": "2"}}})
        add_pod(api, "p", {"example.com/old": 2})
        assert await read_outcome(api, "p") == "n1"
        add_pod(api, "q", {"example.com/old": 1})
        assert "wants 1, 0 of the node's 2 are free" in await read_outcome(api, "q")
