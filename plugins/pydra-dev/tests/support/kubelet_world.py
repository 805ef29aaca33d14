"""A world for one kubelet: an API server, a node's directories, and plugins."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import msgspec

from fake_plugin import DRIVER, NODE, FakePlugin
from pydra.errors import NotFound
from pydra.kube.api_resources import EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject
from pydra.kube.client import KubeClient
from pydra.kube.credentials import load_credentials
from pydra_dev.apiserver.server import ApiServer, serve_api
from pydra_dev.kubelet.kubelet import run_kubelet
from pydra_dev.kubelet.observations import Step
from pydra_dev.kubelet.settings import KubeletSettings, Periods

DEADLINE = 60.0
StepT = TypeVar("StepT", bound=Step)
PERIODS = Periods(
    registry_scan=0.01, resync=0.05, unprepare_retry=0.05, reconcile=0.05, health_retry=0.02, wipe_after=0.05
)


class World:
    """What a test looks at and turns."""

    def __init__(self, root: str, server: ApiServer, client: KubeClient, settings: KubeletSettings) -> None:
        self.root = root
        self.cdi = settings.cdi_directories[0]
        self.server = server
        self.client = client
        self.settings = settings
        self.steps: list[Step] = []
        self._stepped = anyio.Event()

    def report(self, step: Step) -> None:
        self.steps.append(step)
        self._stepped.set()
        self._stepped = anyio.Event()

    @asynccontextmanager
    async def kubelet(self) -> AsyncIterator[None]:
        """A running kubelet; leaving the block stops it as a kill would, entering another is a restart."""
        async with anyio.create_task_group() as tasks:
            await tasks.start(run_kubelet, self.settings, self.client, self.report)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()

    async def wait_step(self, kind: type[StepT], found: Callable[[StepT], bool] = lambda _: True) -> StepT:
        """The first step of this kind and content, when it has happened."""
        with anyio.fail_after(DEADLINE):
            while True:
                for step in self.steps:
                    if isinstance(step, kind) and found(step):
                        return step
                await self._stepped.wait()

    async def wait_until(self, holds: Callable[[], Awaitable[bool]] | Callable[[], bool]) -> None:
        """Return when the condition holds."""
        with anyio.fail_after(DEADLINE):
            while True:
                answer = holds()
                if answer if isinstance(answer, bool) else await answer:
                    return
                await anyio.sleep(0.01)

    async def make_claim(self, name: str, *drivers: str) -> str:
        """A claim with a device of each driver; its uid. It is allocated when a pod is made for it."""
        requests = [{"name": "r", "exactly": {"deviceClassName": "any"}}]
        claim = await self.client.create(
            RESOURCE_CLAIMS,
            {"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}},
            namespace="default",
        )
        results = [{"request": "r", "driver": driver, "pool": NODE, "device": "d0"} for driver in drivers or (DRIVER,)]
        await self._patch_claim(name, {"allocation": {"devices": {"results": results}}})
        uid: str = claim["metadata"]["uid"]
        for driver in drivers or (DRIVER,):
            self.write_cdi(driver, uid)
        return uid

    def write_cdi(self, driver: str, uid: str) -> None:
        spec = {
            "cdiVersion": "0.5.0",
            "kind": f"{driver}/claim",
            "devices": [{"name": uid, "containerEdits": {"env": [f"DEVICE_OF={driver}"]}}],
        }
        with open(f"{self.cdi}/{driver}-{uid}.json", "wb") as stream:
            stream.write(msgspec.json.encode(spec))

    def spoil_cdi(self, driver: str, uid: str) -> None:
        with open(f"{self.cdi}/{driver}-{uid}.json", "w") as stream:
            stream.write("{}")

    def write_file(self, path: str) -> None:
        with open(f"{self.root}/{path}", "w") as stream:
            stream.write("not a socket")

    def damage_checkpoint(self) -> None:
        text = self.read_checkpoint()
        with open(self.settings.claim_checkpoint, "w") as stream:
            stream.write(text.replace(DRIVER, "gpu.example.org"))

    def read_checkpoint(self) -> str:
        with open(self.settings.claim_checkpoint) as stream:
            return stream.read()

    def read_claims(self) -> str:
        """The JSON text of the kubelet's claims, which the checkpoint carries as a string."""
        text: str = msgspec.json.decode(self.read_checkpoint())["Data"]
        return text

    async def make_pod(self, name: str, *claims: str, **spec: Any) -> JsonObject:
        """A pod that uses the claims, bound to the node; the claims are reserved for it."""
        body = {
            "metadata": {"name": name},
            "spec": {
                "containers": [
                    {"name": "main", "image": "i", "resources": {"claims": [{"name": claim} for claim in claims]}}
                ],
                "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
                **spec,
            },
        }
        pod = await self.client.create(PODS, body, namespace="default")
        for claim in claims:
            await self.reserve(claim, pod)
        self.server.api.bind(name, NODE, namespace="default")
        return pod

    async def reserve(self, claim: str, pod: JsonObject) -> None:
        found = await self.client.get(RESOURCE_CLAIMS, claim, namespace="default")
        consumer = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        await self._patch_claim(claim, {"reservedFor": [*(found["status"].get("reservedFor") or ()), consumer]})

    async def _patch_claim(self, name: str, status: JsonObject) -> None:
        await self.client.patch(RESOURCE_CLAIMS, name, {"status": status}, namespace="default", subresource="status")

    async def pod(self, name: str) -> JsonObject:
        return await self.client.get(PODS, name, namespace="default")

    async def has_phase(self, name: str, phase: str) -> bool:
        return bool((await self.pod(name)).get("status", {}).get("phase") == phase)

    async def wait_phase(self, name: str, phase: str) -> None:
        await self.wait_until(lambda: self.has_phase(name, phase))

    async def wait_gone(self, name: str) -> None:
        async def gone() -> bool:
            try:
                await self.pod(name)
            except NotFound:
                return True
            return False

        await self.wait_until(gone)

    async def delete_pod(self, name: str, *, force: bool = False) -> None:
        await self.client.delete(PODS, name, namespace="default", grace_period=0 if force else None)

    async def events(self) -> list[str]:
        found = await self.client.list(EVENTS, namespace="default")
        return [f"{event['reason']}: {event['note']}" for event in found.items]

    async def make_slice(self, name: str, driver: str, node: str = NODE) -> None:
        spec: JsonObject = {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "d0"}],
        }
        await self.client.create(RESOURCE_SLICES, {"metadata": {"name": name}, "spec": spec})

    async def slices(self) -> list[str]:
        return [one["metadata"]["name"] for one in (await self.client.list(RESOURCE_SLICES)).items]


@asynccontextmanager
async def open_world(*, minor: int = 36, **periods: Any) -> AsyncIterator[World]:
    """A world whose kubelet is that of 1.<minor>, impatient where `periods` do not say otherwise."""
    tuned: Periods = msgspec.structs.replace(PERIODS, **periods)
    with tempfile.TemporaryDirectory(prefix="pk-") as root:
        settings = KubeletSettings(
            node_name=NODE, root=root, cdi_directories=(f"{root}/cdi",), minor=minor, periods=tuned
        )
        os.mkdir(f"{root}/cdi")
        async with serve_api() as server:
            credentials = await load_credentials(environ={}, kubeconfig=str(server.kubeconfig))
            async with KubeClient(credentials) as client:
                yield World(root, server, client, settings)


@asynccontextmanager
async def running_plugin(world: World, driver: str = DRIVER, **attributes: Any) -> AsyncIterator[FakePlugin]:
    """A plugin that serves until the end of the block."""
    plugin = FakePlugin(world.root, driver, instance=str(attributes.pop("instance", "")))
    for name, value in attributes.items():
        setattr(plugin, name, value)
    await plugin.start()
    try:
        yield plugin
    finally:
        if plugin.gate is not None:
            plugin.gate.set()
        with anyio.CancelScope(shield=True):
            await plugin.stop()
