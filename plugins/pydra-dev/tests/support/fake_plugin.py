"""A driver's plugin that answers a kubelet as a test says, over real sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any

import anyio

from pydra.kubelet import pb
from pydra.kubelet.grpc_server import GrpcServer, Method

NODE = "node-1"
DRIVER = "gpu.example.com"


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
        self._servers: dict[str, GrpcServer] = {}
        self._listeners: dict[str, _CountingSocket] = {}

    async def start(self, *, registration: bool = True, service: bool = True) -> None:
        """Serve, the DRA service first, as a plugin must."""
        if service:
            await self._serve(self.endpoint, [_Dra(self), *self._health_services()])
        if registration:
            await self._serve(self.registration_socket, [_Registration(self)])

    def _health_services(self) -> list[Any]:
        return [_Health(self, version) for version in self.health_versions]

    async def stop(self, *, registration: bool = True, service: bool = True, grace: float = 0) -> None:
        """Stop serving and remove the sockets; `registration` first, so that nobody calls what is gone."""
        for path, wanted in ((self.registration_socket, registration), (self.endpoint, service)):
            if wanted and path in self._servers:
                with suppress(FileNotFoundError):
                    os.unlink(path)
                await self._servers.pop(path).drain(grace)

    async def _serve(self, path: str, services: Sequence[Any]) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        server = self._servers[path] = GrpcServer(
            {path: method for one in services for path, method in one.methods().items()}
        )
        listener = self._listeners[path] = _CountingSocket(socket.AF_UNIX)
        listener.setblocking(False)
        # The kubelet may look between bind and listen: it must find the socket only when it accepts.
        draft = os.path.join(os.path.dirname(path), ".draft")
        listener.bind(draft)
        await server.listen(listener)
        os.rename(draft, path)

    async def start_common(self) -> None:
        """Serve everything on the registration socket."""
        services = [_Registration(self), _Dra(self)]
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


class _Registration:
    def __init__(self, plugin: FakePlugin) -> None:
        self.plugin = plugin

    def methods(self) -> dict[str, Method]:
        service = "/pluginregistration.Registration"
        return {
            f"{service}/GetInfo": Method(unary=self.get_info),
            f"{service}/NotifyRegistrationStatus": Method(unary=self.notify_registration_status),
        }

    async def get_info(self, _: bytes) -> bytes:
        plugin = self.plugin
        if plugin.info_failures:
            raise plugin.info_failures.pop(0)
        endpoint = plugin.endpoint if plugin.advertised_endpoint is None else plugin.advertised_endpoint
        return bytes(
            pb.PluginInfo(type=plugin.type, name=plugin.driver, endpoint=endpoint, supported_versions=plugin.versions)
        )

    async def notify_registration_status(self, request: bytes) -> bytes:
        message = pb.RegistrationStatus.parse(request)
        self.plugin.statuses.append((message.plugin_registered, message.error))
        if self.plugin.notify_failures:
            raise self.plugin.notify_failures.pop(0)
        return b""


class _Dra:
    def __init__(self, plugin: FakePlugin) -> None:
        self.plugin = plugin

    def methods(self) -> dict[str, Method]:
        calls = {"NodePrepareResources": self.prepare, "NodeUnprepareResources": self.unprepare}
        service = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
        return {f"{service}/{name}": Method(unary=call) for name, call in calls.items()}

    async def prepare(self, request: bytes) -> bytes:
        plugin = self.plugin
        message = pb.NodePrepareResourcesRequest.parse(request)
        await plugin.answer("prepare", tuple(claim.uid for claim in message.claims))
        entries = {claim.uid: self._prepared(claim) for claim in message.claims if claim.uid not in plugin.skipped}
        entries |= {uid: pb.NodePrepareResourceResponse() for uid in plugin.extra}
        return bytes(pb.NodePrepareResourcesResponse(claims=entries))

    def _prepared(self, claim: Any) -> Any:
        plugin = self.plugin
        if claim.uid in plugin.claim_errors:
            return pb.NodePrepareResourceResponse(error=plugin.claim_errors[claim.uid])
        ids = [f"{plugin.driver}/claim={claim.uid}"] if plugin.cdi else []
        device = pb.Device(request_names=["r"], pool_name=NODE, device_name="d0", cdi_device_ids=ids)
        if plugin.share_id is not None:
            device.share_id = plugin.share_id
        return pb.NodePrepareResourceResponse(devices=[device])

    async def unprepare(self, request: bytes) -> bytes:
        plugin = self.plugin
        message = pb.NodeUnprepareResourcesRequest.parse(request)
        await plugin.answer("unprepare", tuple(claim.uid for claim in message.claims))
        entries = {
            claim.uid: pb.NodeUnprepareResourceResponse(error=plugin.claim_errors.get(claim.uid, ""))
            for claim in message.claims
            if claim.uid not in plugin.skipped
        }
        entries |= {uid: pb.NodeUnprepareResourceResponse() for uid in plugin.extra}
        return bytes(pb.NodeUnprepareResourcesResponse(claims=entries))


class _Health:
    def __init__(self, plugin: FakePlugin, version: str) -> None:
        self.plugin = plugin
        self.version = version

    def methods(self) -> dict[str, Method]:
        return {f"/{self.version}.DRAResourceHealth/NodeWatchResources": Method(stream=self.watch)}

    async def watch(self, _: bytes) -> AsyncGenerator[bytes, None]:
        plugin = self.plugin
        plugin.streams.append(self.version)
        if plugin.health_failures:
            raise plugin.health_failures.pop(0)
        while True:
            changed = plugin.health_changed
            devices = [
                pb.DeviceHealth(
                    device=pb.DeviceIdentifier(pool_name=NODE, device_name=name),
                    health=pb.HealthStatus(health),
                    message=f"{name} told so",
                )
                for name, health in plugin.health.items()
            ]
            yield bytes(pb.NodeWatchResourcesResponse(devices=devices))
            await changed.wait()
