"""What stands on both sides of the kubelet plugin: claims behind it, kubelets in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
import grpc
import grpc.aio
import msgspec

from pydra.claim import ClaimRef, ContainerDevice, PrepareOutcome, UnprepareOutcome
from pydra.kubelet import pb
from pydra.kubelet.health_service import HealthBoard
from pydra.kubelet.plugin import KubeletEvent, KubeletPlugin, Serving
from pydra.kubelet.sockets import SocketPaths, plan_socket_paths

DRIVER = "gpu.example.com"
V1 = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
V1BETA1 = "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin"
DEADLINE = 30.0

T = TypeVar("T")


async def wait_until(condition: Callable[[], T]) -> T:
    """The condition's first true value."""
    with anyio.fail_after(DEADLINE):
        while not (value := condition()):
            await anyio.sleep(0.002)
        return value


class Claims:
    """Prepares at once, or when `gate` opens. Remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.done: list[str] = []
        self.gate: anyio.Event | None = None
        self.answer: Callable[[ClaimRef], PrepareOutcome] = lambda ref: (
            ContainerDevice(
                requests=("gpu",), pool="node-1", device="gpu-0", cdi_ids=(f"{DRIVER}/claim={ref.uid}:gpu:gpu-0",)
            ),
        )
        self._work: set[asyncio.Future[Any]] = set()

    def prepare(self, ref: ClaimRef) -> asyncio.Future[PrepareOutcome]:
        return self._start(ref, self.answer)

    def unprepare(self, ref: ClaimRef) -> asyncio.Future[UnprepareOutcome]:
        return self._start(ref, lambda _: None)

    def _start(self, ref: ClaimRef, answer: Callable[[ClaimRef], T]) -> asyncio.Future[T]:
        async def work() -> T:
            if self.gate is not None:
                await self.gate.wait()
            self.done.append(ref.uid)
            return answer(ref)

        self.asked.append(ref.uid)
        task = asyncio.get_running_loop().create_task(work())
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return task

    async def stop(self) -> None:
        """End what was never let through."""
        for task in tuple(self._work):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


class Running(msgspec.Struct):
    """A plugin that serves, and how to stop it."""

    paths: SocketPaths
    claims: Claims
    board: HealthBoard
    events: list[KubeletEvent]
    scope: anyio.CancelScope

    def stop(self) -> None:
        self.scope.cancel()

    def heard(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]


@asynccontextmanager
async def serve(root: Path, *, driver: str = DRIVER, wait: bool = True, **options: Any) -> AsyncIterator[Running]:
    """A plugin below the kubelet root, stopped at the end of the block."""
    registry = root / "plugins_registry"
    if wait:
        registry.mkdir(exist_ok=True)
    events: list[KubeletEvent] = []
    board, claims = HealthBoard(), options.pop("claims", None) or Claims()
    paths = plan_socket_paths(
        driver,
        registry_directory=str(registry),
        plugin_directory=str(root / "plugins" / driver),
        pod_uid=options.pop("pod_uid", ""),
    )
    options = {"drain_grace": DEADLINE, "check_period": 0.01, **options}
    plugin = KubeletPlugin(
        driver,
        prepare=claims.prepare,
        unprepare=claims.unprepare,
        paths=paths,
        health=board,
        report=events.append,
        **options,
    )
    scope = anyio.CancelScope()

    async def run() -> None:
        with scope:
            await plugin.run()

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        running = Running(paths=paths, claims=claims, board=board, events=events, scope=scope)
        if wait:
            await wait_until(lambda: running.heard(Serving))
        try:
            yield running
        finally:
            scope.cancel()
    await claims.stop()


class Failed(Exception):
    """A call ended with an error: gRPC's code by name, and its text."""

    def __init__(self, code: str, text: str) -> None:
        self.code = code
        self.text = text
        super().__init__(f"{code}: {text}")


class Kubelet:
    """A client's connection, by gRPC's C core, which most of the world's clients are."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def unary(self, path: str, request: Any, reply: type[T], timeout: float = DEADLINE) -> T:
        parse = cast("Any", reply).parse
        method = self._channel.unary_unary(path, request_serializer=bytes, response_deserializer=parse)
        try:
            answer: T = await method(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise Failed(error.code().name, str(error.details())) from error
        return answer

    async def stream(self, path: str, request: Any, reply: Any) -> AsyncIterator[Any]:
        method = self._channel.unary_stream(path, request_serializer=bytes, response_deserializer=reply.parse)
        call = method(request)
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise Failed(error.code().name, str(error.details())) from error
        finally:
            call.cancel()


@asynccontextmanager
async def grpcio_kubelet(path: str, authority: str = "localhost") -> AsyncIterator[Kubelet]:
    options = [("grpc.default_authority", authority), ("grpc.max_receive_message_length", 4 << 20)]
    async with grpc.aio.insecure_channel(f"unix:{path}", options=options) as channel:
        yield Kubelet(channel)


def claim(uid: str) -> pb.Claim:
    return pb.Claim(uid=uid, namespace="team", name=f"claim-{uid}")


async def prepare(kubelet: Kubelet, *uids: str, timeout: float = DEADLINE) -> pb.NodePrepareResourcesResponse:
    request = pb.NodePrepareResourcesRequest(claims=[claim(uid) for uid in uids])
    path = f"{V1}/NodePrepareResources"
    return await kubelet.unary(path, request, pb.NodePrepareResourcesResponse, timeout)


async def unprepare(kubelet: Kubelet, *uids: str) -> pb.NodeUnprepareResourcesResponse:
    request = pb.NodeUnprepareResourcesRequest(claims=[claim(uid) for uid in uids])
    path = f"{V1}/NodeUnprepareResources"
    return await kubelet.unary(path, request, pb.NodeUnprepareResourcesResponse)


async def prepare_v1beta1(kubelet: Kubelet, *uids: str) -> pb.NodePrepareResourcesResponse:
    request = pb.NodePrepareResourcesRequest(claims=[claim(uid) for uid in uids])
    path = f"{V1BETA1}/NodePrepareResources"
    return await kubelet.unary(path, request, pb.NodePrepareResourcesResponse)
