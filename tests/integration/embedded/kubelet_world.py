"""A world for one kubelet: an API server, a node's directories, plugins that do as a test says."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import anyio
import msgspec

from pydra.embedded.apiserver import ApiServer, serve_api
from pydra.embedded.kubelet.kubelet import Kubelet
from pydra.embedded.kubelet.settings import QUICK, KubeletSettings, Periods
from pydra.embedded.kubelet.steps import Step
from pydra.errors import NotFound
from pydra.kube.auth import load_credentials
from pydra.kube.client import KubeClient
from pydra.kube.resources import EVENTS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject
from pydra.kubelet.pb import dra_health_v1, dra_health_v1alpha1, dra_v1, dra_v1beta1, pluginregistration_v1
from pydra.kubelet.server import DrainServer

NODE = "node-1"
DRIVER = "gpu.example.com"
DEADLINE = 10.0
StepT = TypeVar("StepT", bound=Step)
PERIODS = msgspec.structs.replace(
    QUICK, registry_scan=0.01, resync=0.05, unprepare_retry=0.05, reconcile=0.05, health_retry=0.02, wipe_after=0.05
)


class FakePlugin:
    """A driver's plugin. What it answers is in attributes that a test sets; what it was asked is in `asked`."""

    def __init__(self, root: str, driver: str = DRIVER, *, instance: str = "") -> None:
        self.driver = driver
        self.versions = ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        self.type = "DRAPlugin"
        self.registration_socket = f"{root}/plugins_registry/{driver}{instance}-reg.sock"
        self.endpoint = f"{root}/plugins/{driver}{instance}.sock"
        self.advertised_endpoint: str | None = None
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.statuses: list[tuple[bool, str]] = []
        self.failures: list[Exception] = []
        self.notify_failures: list[Exception] = []
        self.info_failures: list[Exception] = []
        self.claim_errors: dict[str, str] = {}
        self.gate: anyio.Event | None = None
        self.skipped: set[str] = set()
        self.extra: set[str] = set()
        self.share_id: str | None = None
        self.cdi = True
        self.health_versions: tuple[str, ...] = ()
        self.health: dict[str, int] = {}
        self.health_changed = anyio.Event()
        self.streams: list[str] = []
        self.health_failures: list[Exception] = []
        self._servers: dict[str, DrainServer] = {}
        self._listeners: dict[str, _CountingSocket] = {}

    async def start(self, *, registration: bool = True, service: bool = True) -> None:
        """Serve, the DRA service first, as a plugin must."""
        if service:
            await self._serve(self.endpoint, [_Dra(self, dra_v1), _Dra(self, dra_v1beta1), *self._health_services()])
        if registration:
            await self._serve(self.registration_socket, [_Registration(self)])

    def _health_services(self) -> list[Any]:
        known = {"v1": dra_health_v1, "v1alpha1": dra_health_v1alpha1}
        return [_Health(self, version, known[version]) for version in self.health_versions]

    async def stop(self, *, registration: bool = True, service: bool = True, grace: float = 0) -> None:
        """Stop serving and remove the sockets; `registration` first, so that nobody calls what is gone."""
        for path, wanted in ((self.registration_socket, registration), (self.endpoint, service)):
            if wanted and path in self._servers:
                with suppress(FileNotFoundError):
                    os.unlink(path)
                await self._servers.pop(path).drain(grace)

    async def _serve(self, path: str, services: Sequence[Any]) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        server = self._servers[path] = DrainServer(services)
        listener = self._listeners[path] = _CountingSocket(socket.AF_UNIX)
        listener.setblocking(False)
        # The kubelet may look between bind and listen: it must find the socket only when it accepts.
        draft = os.path.join(os.path.dirname(path), ".draft")
        listener.bind(draft)
        await server.listen(listener)
        os.rename(draft, path)

    async def start_common(self) -> None:
        """Serve everything on the registration socket."""
        services = [_Registration(self), _Dra(self, dra_v1), _Dra(self, dra_v1beta1)]
        await self._serve(self.registration_socket, services)

    async def replace_registration(self) -> None:
        """Put a new socket in the place of the registration socket."""
        old = self._servers.pop(self.registration_socket)
        await self._serve(self.registration_socket, [_Registration(self)])
        await old.drain(0)

    @property
    def accepted(self) -> int:
        """How many connections the DRA service accepted."""
        return self._listeners[self.endpoint].accepted

    def called(self, method: str) -> list[tuple[str, ...]]:
        """The claims of each call of a method."""
        return [uids for name, uids in self.asked if name == method]

    async def answer(self, method: str, uids: tuple[str, ...]) -> None:
        """What every call does first."""
        self.asked.append((method, uids))
        if self.gate is not None:
            await self.gate.wait()
        if self.failures:
            raise self.failures.pop(0)


class _CountingSocket(socket.socket):
    accepted = 0

    def accept(self) -> Any:
        found = super().accept()
        self.accepted += 1
        return found


class _Registration(pluginregistration_v1.RegistrationBase):
    def __init__(self, plugin: FakePlugin) -> None:
        self.plugin = plugin

    async def get_info(self, message: Any) -> Any:
        plugin = self.plugin
        if plugin.info_failures:
            raise plugin.info_failures.pop(0)
        endpoint = plugin.endpoint if plugin.advertised_endpoint is None else plugin.advertised_endpoint
        return pluginregistration_v1.PluginInfo(
            type=plugin.type, name=plugin.driver, endpoint=endpoint, supported_versions=plugin.versions
        )

    async def notify_registration_status(self, message: Any) -> Any:
        self.plugin.statuses.append((message.plugin_registered, message.error))
        if self.plugin.notify_failures:
            raise self.plugin.notify_failures.pop(0)
        return pluginregistration_v1.RegistrationStatusResponse()


class _Dra:
    """Both versions of the service at once: their messages have the same names."""

    def __init__(self, plugin: FakePlugin, pb: Any) -> None:
        self.plugin = plugin
        self.pb = pb

    def __mapping__(self) -> Any:
        outer = self

        class Service(self.pb.DraPluginBase):  # type: ignore[name-defined, misc]
            async def node_prepare_resources(self, message: Any) -> Any:
                return await outer.prepare(message)

            async def node_unprepare_resources(self, message: Any) -> Any:
                return await outer.unprepare(message)

        return Service().__mapping__()

    async def prepare(self, message: Any) -> Any:
        plugin, pb = self.plugin, self.pb
        await plugin.answer("prepare", tuple(claim.uid for claim in message.claims))
        entries = {claim.uid: self._prepared(claim) for claim in message.claims if claim.uid not in plugin.skipped}
        entries |= {uid: pb.NodePrepareResourceResponse() for uid in plugin.extra}
        return pb.NodePrepareResourcesResponse(claims=entries)

    def _prepared(self, claim: Any) -> Any:
        plugin, pb = self.plugin, self.pb
        if claim.uid in plugin.claim_errors:
            return pb.NodePrepareResourceResponse(error=plugin.claim_errors[claim.uid])
        ids = [f"{plugin.driver}/claim={claim.uid}"] if plugin.cdi else []
        device = pb.Device(request_names=["r"], pool_name=NODE, device_name="d0", cdi_device_ids=ids)
        if plugin.share_id is not None:
            device.share_id = plugin.share_id
        return pb.NodePrepareResourceResponse(devices=[device])

    async def unprepare(self, message: Any) -> Any:
        plugin, pb = self.plugin, self.pb
        await plugin.answer("unprepare", tuple(claim.uid for claim in message.claims))
        entries = {
            claim.uid: pb.NodeUnprepareResourceResponse(error=plugin.claim_errors.get(claim.uid, ""))
            for claim in message.claims
            if claim.uid not in plugin.skipped
        }
        entries |= {uid: pb.NodeUnprepareResourceResponse() for uid in plugin.extra}
        return pb.NodeUnprepareResourcesResponse(claims=entries)


class _Health:
    def __init__(self, plugin: FakePlugin, version: str, pb: Any) -> None:
        self.plugin = plugin
        self.version = version
        self.pb = pb

    def __mapping__(self) -> Any:
        outer = self

        class Service(self.pb.DraResourceHealthBase):  # type: ignore[name-defined, misc]
            async def node_watch_resources(self, message: Any) -> AsyncIterator[Any]:
                async for one in outer.watch():
                    yield one

        return Service().__mapping__()

    async def watch(self) -> AsyncIterator[Any]:
        plugin, pb = self.plugin, self.pb
        plugin.streams.append(self.version)
        if plugin.health_failures:
            raise plugin.health_failures.pop(0)
        while True:
            changed = plugin.health_changed
            yield pb.NodeWatchResourcesResponse(
                devices=[
                    pb.DeviceHealth(
                        device=pb.DeviceIdentifier(pool_name=NODE, device_name=name),
                        health=pb.HealthStatus(health),
                        message=f"{name} told so",
                    )
                    for name, health in plugin.health.items()
                ]
            )
            await changed.wait()


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
            await tasks.start(Kubelet(self.settings, self.client, self.report).run)
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
