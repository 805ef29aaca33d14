"""A kubelet that is nothing but a gRPC client: it finds sockets in the registry, registers plugins and calls them.

It speaks through grpcio and protobuf's own codec, from the .proto files, and shares no code with the agent.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc as _grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

from tests.behaviour.waiting import DEADLINE, wait_for

grpc: Any = _grpc  # which has no types
PROTO = Path(__file__).parents[2] / "proto"
DRA_V1 = "k8s.io.kubelet.pkg.apis.dra.v1"
"""The messages of v1beta1 are the same, without share ids."""
REGISTRATION = "pluginregistration"


@cache
def messages() -> dict[str, Any]:
    """The classes of all messages, by full name."""
    files = sorted(str(path) for path in PROTO.glob("*.proto"))
    with TemporaryDirectory() as place:
        output = f"{place}/descriptors"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"--descriptor_set_out={output}", *files]
        subprocess.run(command, check=True, timeout=60)
        found = descriptor_pb2.FileDescriptorSet.FromString(Path(output).read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in found.file:
        pool.Add(file)
    return dict(message_factory.GetMessageClassesForFiles([file.name for file in found.file], pool))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim as the kubelet names it."""

    uid: str
    name: str
    namespace: str = "default"


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device of an answer."""

    requests: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What was answered for one claim."""

    devices: tuple[Device, ...] = ()
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class PluginInfo:
    """Who a plugin says that it is."""

    type: str
    name: str
    endpoint: str
    versions: tuple[str, ...]
    socket: str


@dataclass
class Kubelet:
    """The kubelet of one node; `registry` is its plugins_registry, `dra` the version of the service that it calls."""

    registry: Path
    dra: str = DRA_V1
    plugin: PluginInfo | None = None
    _channels: dict[str, Any] = field(default_factory=dict)

    def sockets(self) -> list[str]:
        """The registration sockets that are there."""
        return sorted(str(path) for path in self.registry.iterdir() if path.suffix == ".sock")

    def get_info(self, socket: str) -> PluginInfo:
        """Ask a registration socket who it is; raises grpc.RpcError."""
        info = self._call(
            self._connect(socket), f"/{REGISTRATION}.Registration/GetInfo", f"{REGISTRATION}.InfoRequest", "PluginInfo"
        )
        return PluginInfo(
            type=info.type,
            name=info.name,
            endpoint=info.endpoint,
            versions=tuple(info.supported_versions),
            socket=socket,
        )

    def notify(self, socket: str, *, registered: bool, error: str = "") -> None:
        """Tell a plugin what came of its registration."""
        self._call(
            self._connect(socket),
            f"/{REGISTRATION}.Registration/NotifyRegistrationStatus",
            f"{REGISTRATION}.RegistrationStatus",
            "RegistrationStatusResponse",
            plugin_registered=registered,
            error=error,
        )

    def register(self, driver: str = "board.example.com", *, not_at: tuple[str, ...] = ()) -> PluginInfo:
        """Wait for a socket of the driver that answers, register it, and call it from now on."""

        def look() -> PluginInfo | None:
            for socket in self.sockets():
                with suppress(grpc.RpcError):
                    info = self.get_info(socket)
                    if info.name == driver and socket not in not_at:
                        self.notify(socket, registered=True)
                        return info
            return None

        self.plugin = wait_for(look, f"a registration socket of {driver} in {self.registry}")
        return self.plugin

    def prepare(self, *claims: Claim, timeout: float = DEADLINE) -> dict[str, Answer]:
        """NodePrepareResources; the answers by claim uid. Raises grpc.RpcError."""
        return parse_answers(self.start_prepare(*claims, timeout=timeout).result())

    def start_prepare(self, *claims: Claim, timeout: float = DEADLINE) -> Any:
        """NodePrepareResources on its way: grpc's future, whose result `parse_answers` reads."""
        return self._start("NodePrepareResources", claims, timeout)

    def prepare_one(self, claim: Claim, *, timeout: float = DEADLINE) -> tuple[Device, ...]:
        """Prepare a claim that is expected to succeed; its devices."""
        answer = self.prepare(claim, timeout=timeout)[claim.uid]
        assert not answer.error, answer.error
        return answer.devices

    def refusal(self, claim: Claim, *, timeout: float = DEADLINE) -> str:
        """Prepare a claim that is expected to fail; the error."""
        answer = self.prepare(claim, timeout=timeout)[claim.uid]
        assert answer.error, f"{claim.name} is prepared: {answer.devices}"
        return answer.error

    def unprepare(self, *claims: Claim, timeout: float = DEADLINE) -> dict[str, str]:
        """NodeUnprepareResources; the errors by claim uid, "" for success. Raises grpc.RpcError."""
        return parse_errors(self.start_unprepare(*claims, timeout=timeout).result())

    def start_unprepare(self, *claims: Claim, timeout: float = DEADLINE) -> Any:
        """NodeUnprepareResources on its way: grpc's future, whose result `parse_errors` reads."""
        return self._start("NodeUnprepareResources", claims, timeout)

    def release(self, *claims: Claim) -> None:
        """Unprepare claims that are expected to be unprepared without an error."""
        assert self.unprepare(*claims) == dict.fromkeys((one.uid for one in claims), "")

    def watch_health(self, version: str = "v1") -> Generator[dict[str, tuple[str, str]], None, None]:
        """The health stream: for each message, status and message of each device by name."""
        assert self.plugin is not None
        request, response = (messages()[f"{version}.NodeWatchResources{kind}"] for kind in ("Request", "Response"))
        stream = self._connect(self.plugin.endpoint).unary_stream(
            f"/{version}.DRAResourceHealth/NodeWatchResources",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )(request(), timeout=DEADLINE)
        names = dict(response.DESCRIPTOR.file.enum_types_by_name["HealthStatus"].values_by_number)
        try:
            for message in stream:
                yield {one.device.device_name: (names[one.health].name, one.message) for one in message.devices}
        finally:
            stream.cancel()

    def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def _start(self, method: str, claims: tuple[Claim, ...], timeout: float) -> Any:
        assert self.plugin is not None, "register first"
        request, response = (messages()[f"{DRA_V1}.{method}{kind}"] for kind in ("Request", "Response"))
        body = request(claims=[{"uid": one.uid, "namespace": one.namespace, "name": one.name} for one in claims])
        return (
            self._connect(self.plugin.endpoint)
            .unary_unary(
                f"/{self.dra}.DRAPlugin/{method}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
            .future(body, timeout=timeout, wait_for_ready=False)
        )

    def _call(self, channel: Any, method: str, request: str, response: str, **fields: Any) -> Any:
        kind, answer = messages()[request], messages()[f"{REGISTRATION}.{response}"]
        call: Callable[..., Any] = channel.unary_unary(
            method, request_serializer=kind.SerializeToString, response_deserializer=answer.FromString
        )
        return call(kind(**fields), timeout=DEADLINE)

    def _connect(self, socket: str) -> Any:
        if socket not in self._channels:
            options = [
                ("grpc.initial_reconnect_backoff_ms", 20),
                ("grpc.max_reconnect_backoff_ms", 100),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_http_proxy", 0),
            ]
            self._channels[socket] = grpc.insecure_channel(f"unix:{socket}", options=options)
        return self._channels[socket]


def parse_answers(response: Any) -> dict[str, Answer]:
    """The answers of a NodePrepareResourcesResponse, by claim uid."""
    return {
        uid: Answer(
            devices=tuple(
                Device(
                    requests=tuple(one.request_names),
                    pool=one.pool_name,
                    device=one.device_name,
                    cdi_ids=tuple(one.cdi_device_ids),
                    share_id=getattr(one, "share_id", ""),  # v1 has it
                )
                for one in answer.devices
            ),
            error=answer.error,
        )
        for uid, answer in response.claims.items()
    }


def parse_errors(response: Any) -> dict[str, str]:
    """The errors of a NodeUnprepareResourcesResponse, by claim uid."""
    return {uid: answer.error for uid, answer in response.claims.items()}
