"""Two agents at once, as in a rolling update: what either does for a claim, the other knows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from grpclib.client import Channel, UnaryUnaryMethod

from pydra.kube.api_resources import RESOURCE_CLAIMS, JsonObject
from pydra.kubelet.pb import Claim, NodePrepareResourcesRequest, NodePrepareResourcesResponse
from pydra_nvidia import DRIVER

if TYPE_CHECKING:
    from conftest import Scene

    MakeScene = Callable[..., AbstractAsyncContextManager[Scene]]

SLICED = {
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}
FIRST, SECOND = "first", "second"


async def test_a_share_that_the_old_instance_prepares_keeps_the_time_slice(make_scene: MakeScene) -> None:
    shares = {"consumable_shares": "unlimited"}
    async with make_scene({"model": "t4"}, settings=shares) as scene, scene.agent("--pod-uid", "old"):
        await scene.start(FIRST, "gpu", config=SLICED)
        await scene.wait_running(FIRST)
        socket = _find_socket(Path(scene.node.root))
        second = await _copy_claim(scene)
        async with scene.agent("--pod-uid", "new"):  # which has begun, and does not know of the second claim
            await _prepare(socket, second)
            await scene.end(FIRST)
            assert [gpu.time_slice for gpu in scene.gpus()] == [3]
            await scene.node.client.delete(RESOURCE_CLAIMS, SECOND, namespace="default")


def _find_socket(root: Path) -> str:
    (found,) = (str(path) for path in root.rglob(f"{DRIVER}/*.sock") if path.is_socket())
    return found


async def _copy_claim(scene: Scene) -> JsonObject:
    """A second claim with a share of the same device and the same config, for no pod."""
    made = await scene.node.client.get(RESOURCE_CLAIMS, FIRST, namespace="default")
    (result,) = made["status"]["allocation"]["devices"]["results"]
    share = {**result, "shareID": "5a3cbb9c-53b1-43cd-b64e-4c2f4b2fd9f7"}
    devices = {**made["status"]["allocation"]["devices"], "results": [share]}
    body = {"metadata": {"name": SECOND}, "spec": made["spec"]}
    second = await scene.node.client.create(RESOURCE_CLAIMS, body, namespace="default")
    second["status"] = {"allocation": {**made["status"]["allocation"], "devices": devices}}
    return await scene.node.client.replace(RESOURCE_CLAIMS, SECOND, second, namespace="default", subresource="status")


async def _prepare(socket: str, claim: JsonObject) -> None:
    """As a kubelet does that has not switched to the new instance yet."""
    metadata = claim["metadata"]
    wanted = Claim(uid=metadata["uid"], namespace=metadata["namespace"], name=metadata["name"])
    async with Channel(path=socket) as channel:
        call = UnaryUnaryMethod(
            channel,
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            NodePrepareResourcesRequest,
            NodePrepareResourcesResponse,
        )
        answer = await call(NodePrepareResourcesRequest(claims=[wanted]))
    assert answer.claims[metadata["uid"]].error == ""
