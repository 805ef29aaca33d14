"""The gRPC server, frame by frame: what a grpc-go client needs to see, and what nobody may do to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from grpclib import Status
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import PingFrame

from pydra.kubelet import pb
from pydra.kubelet.grpc_server import GrpcServer, Method
from pydra.kubelet.sockets import bind_socket
from tests.integration.kubelet.fakes import DEADLINE, Failed, Kubelet, claim, grpcio_kubelet, prepare, wait_until
from tests.integration.kubelet.raw import RawClient, frame, raw_client

PREPARE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
REQUEST = bytes(pb.NodePrepareResourcesRequest(claims=[claim("uid-1")]))


class Node:
    """Answers when `gate` is open."""

    def __init__(self) -> None:
        self.gate = anyio.Event()
        self.started = 0
        self.cancelled = 0

    async def prepare(self, request: bytes) -> bytes:
        self.started += 1
        try:
            await self.gate.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        claims = pb.NodePrepareResourcesRequest.parse(request).claims
        return bytes(
            pb.NodePrepareResourcesResponse(claims={one.uid: pb.NodePrepareResourceResponse() for one in claims})
        )


@asynccontextmanager
async def serving(root: Path) -> AsyncIterator[tuple[GrpcServer, Node, str]]:
    path = str(root / "dra.sock")
    node = Node()
    server = GrpcServer({PREPARE: Method(unary=node.prepare)})
    bound = bind_socket(path)
    await server.listen(bound.sock)
    try:
        yield server, node, path
    finally:
        bound.remove()
        await server.drain(0)


@asynccontextmanager
async def raw_serving(root: Path) -> AsyncIterator[tuple[RawClient, GrpcServer, Node]]:
    async with serving(root) as (server, node, path), raw_client(path) as client:
        yield client, server, node


async def answered(client: RawClient) -> bool:
    stream_id = await client.send(PREPARE, frame(REQUEST))
    return (await client.status(stream_id))["grpc-status"] == "0"


async def test_an_unknown_method_is_answered_with_trailers_that_grpc_go_understands(root: Path) -> None:
    async with raw_serving(root) as (client, _, _):
        headers = await client.status(await client.send("/v1.Nothing/Do", frame(b"")))
    assert headers[":status"] == "200"
    assert headers["content-type"].startswith("application/grpc")
    assert headers["grpc-status"] == str(Status.UNIMPLEMENTED.value)
    assert headers["grpc-message"] == "unknown method Do of service v1.Nothing"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", Status.INVALID_ARGUMENT, "the request has no message"),
        (b"\0\0", Status.INVALID_ARGUMENT, "the request has no message"),
        (frame(REQUEST, length=len(REQUEST) + 9), Status.INVALID_ARGUMENT, "the request ends within its message"),
        (frame(b"", length=2**32 - 1), Status.RESOURCE_EXHAUSTED, "the request has 4294967295 bytes"),
        (frame(REQUEST, compressed=1), Status.UNIMPLEMENTED, "compressed messages are not supported"),
        (frame(REQUEST) * 2, Status.INVALID_ARGUMENT, "the request has more than one message"),
    ],
    ids=["no message", "half a header", "half a message", "four gigabytes", "compressed", "two messages"],
)
async def test_a_broken_request_is_its_callers_error_in_words(
    root: Path, body: bytes, status: Status, words: str
) -> None:
    async with raw_serving(root) as (client, _, node):
        headers = await client.status(await client.send(PREPARE, body))
        assert headers["grpc-status"] == str(status.value)
        assert headers["grpc-message"].startswith(words)
        node.gate.set()
        assert await answered(client)


async def test_a_bug_in_a_service_is_the_error_of_its_call_alone(root: Path) -> None:
    async def fail(_: bytes) -> bytes:
        raise ValueError("a bug")

    async with raw_serving(root) as (client, server, node):
        node.gate.set()
        server.methods = {**server.methods, "/x.Y/Fail": Method(unary=fail)}
        headers = await client.status(await client.send("/x.Y/Fail", frame(b"")))
        assert headers["grpc-status"] == str(Status.INTERNAL.value)
        assert headers["grpc-message"] == "internal error in pydra: ValueError: a bug"
        assert await answered(client)


async def test_the_text_of_an_error_is_no_longer_than_a_client_takes_in_headers(root: Path) -> None:
    async def fail(_: bytes) -> bytes:
        raise ValueError("a bug " * 100_000)

    async with raw_serving(root) as (client, server, _):
        server.methods = {**server.methods, "/x.Y/Fail": Method(unary=fail)}
        headers = await client.status(await client.send("/x.Y/Fail", frame(b"")))
        assert headers["grpc-message"].startswith("internal error in pydra: ValueError: a bug a bug")
        assert len(headers["grpc-message"]) < 20_000


async def test_a_large_answer_waits_for_the_clients_window(root: Path) -> None:
    answer = bytes(range(256)) * 4096

    async def answer_at_length(_: bytes) -> bytes:
        return answer

    async with raw_serving(root) as (client, server, _):
        server.methods = {PREPARE: Method(unary=answer_at_length)}
        assert await client.message(await client.send(PREPARE, frame(b""))) == answer


async def test_a_client_that_reads_nothing_holds_up_the_answers(root: Path) -> None:
    made = 0

    async def answer_endlessly(_: bytes) -> AsyncGenerator[bytes, None]:
        nonlocal made
        for made in range(1, 21):  # noqa: B007
            yield bytes(2**18)
            await anyio.lowlevel.checkpoint()

    async with raw_serving(root) as (client, server, _):
        server.methods = {PREPARE: Method(stream=answer_endlessly)}
        await client.open_windows()
        stream_id = await client.send(PREPARE, frame(b""))
        await wait_until(lambda: made)
        for _ in range(1000):
            await anyio.lowlevel.checkpoint()
        assert made < 20
        assert (await client.status(stream_id))["grpc-status"] == "0"
    assert made == 20


async def test_a_client_may_keep_no_table_of_headers(root: Path) -> None:
    async with raw_serving(root) as (client, _, node):
        node.gate.set()
        assert await answered(client)
        await client.change_setting(SettingCodes.HEADER_TABLE_SIZE, 0)
        assert await answered(client)


async def test_a_request_without_a_path_is_a_protocol_error(root: Path) -> None:
    async with raw_serving(root) as (client, _, node):
        stream_id = await client.send("", frame(REQUEST), without=":path", end=False)
        assert await client.reset_code(stream_id) == ErrorCodes.PROTOCOL_ERROR
        node.gate.set()
        assert await answered(client)


async def test_headers_need_not_be_ascii(root: Path) -> None:
    async with raw_serving(root) as (client, _, node):
        node.gate.set()
        stream_id = await client.send(PREPARE, frame(REQUEST), headers=[("user-agent", "Kübelet")])
        assert (await client.status(stream_id))["grpc-status"] == "0"


async def test_frames_of_unknown_types_are_ignored(root: Path) -> None:
    async with raw_serving(root) as (client, _, node):
        node.gate.set()
        await client.flush(b"\x00\x00\x02\xf0\x00\x00\x00\x00\x00hi")
        assert await answered(client)


async def test_what_is_not_http2_is_disconnected(root: Path) -> None:
    async with serving(root) as (_, node, path):
        node.gate.set()
        async with await anyio.connect_unix(path) as stream:
            await stream.send(b"GET / HTTP/1.1\r\n\r\n" * 10)
            await RawClient(stream).wait_end()
        async with raw_client(path) as client:
            assert await answered(client)


async def test_a_drain_finishes_the_call_in_flight_and_sends_new_ones_elsewhere(root: Path) -> None:
    async with raw_serving(root) as (client, server, node), anyio.create_task_group() as group:
        first = await client.send(PREPARE, frame(REQUEST))
        await wait_until(lambda: node.started == 1)
        cut_off: list[int] = []

        async def drain() -> None:
            cut_off.append(await server.drain(5))

        group.start_soon(drain)
        goaway = await client.goaway()
        assert (goaway.error_code, goaway.last_stream_id) == (ErrorCodes.NO_ERROR, first)
        node.gate.set()
        assert (await client.status(first))["grpc-status"] == "0"
        assert pb.NodePrepareResourcesResponse.parse(await client.body(first)).claims.keys() == {"uid-1"}
        await client.wait_end()
    assert (cut_off, node.cancelled) == ([0], 0)


async def test_a_drain_sends_a_client_elsewhere_that_has_just_connected(root: Path) -> None:
    async with raw_serving(root) as (client, server, node), anyio.create_task_group() as group:
        await client.send(PREPARE, frame(REQUEST))
        await wait_until(lambda: node.started == 1)
        with socket.socket(socket.AF_UNIX) as late:
            late.connect(str(root / "dra.sock"))
            late.setblocking(False)
            group.start_soon(server.drain, 60)
            received = b""
            with anyio.fail_after(DEADLINE):
                while chunk := await asyncio.get_running_loop().sock_recv(late, 4096):
                    received += chunk
        assert b"\0\0\x08\x07\0\0\0\0\0" in received, "GOAWAY"
        node.gate.set()
    assert node.cancelled == 0


async def test_a_drain_waits_for_a_request_that_is_still_arriving(root: Path) -> None:
    async with raw_serving(root) as (client, server, node), anyio.create_task_group() as group:
        node.gate.set()
        body = frame(REQUEST)
        stream_id = await client.send(PREPARE, body[:7], end=False)
        await wait_until(lambda: server.connections and all(one.calls for one in server.connections))
        group.start_soon(server.drain, 60)
        assert (await client.goaway()).last_stream_id == stream_id
        await client.send_rest(stream_id, body[7:])
        assert (await client.status(stream_id))["grpc-status"] == "0"


@pytest.mark.parametrize("path", [PREPARE, "/v1.Nothing/Do"])
async def test_a_call_that_is_given_up_at_once_costs_no_other(root: Path, path: str) -> None:
    async with raw_serving(root) as (client, _, node):
        node.gate.set()
        await client.send_and_reset(path)
        assert await answered(client)


@pytest.mark.parametrize(
    ("headers", "without"),
    [([("content-type", "text/plain")], "content-type"), ([(":method", "GET")], ":method")],
    ids=["not gRPC", "not a POST"],
)
async def test_a_request_that_is_not_a_grpc_call_is_refused_as_http(
    root: Path, headers: list[tuple[str, str]], without: str
) -> None:
    async with raw_serving(root) as (client, _, node):
        node.gate.set()
        stream_id = await client.send(PREPARE, frame(REQUEST), headers=headers, without=without)
        assert await client.http_status(stream_id) == "415"
        assert await answered(client)


async def test_a_stream_without_messages_ends_with_headers_that_grpc_go_understands(root: Path) -> None:
    async def nothing(_: bytes) -> AsyncGenerator[bytes, None]:
        if server.draining:
            yield b""

    async with raw_serving(root) as (client, server, _):
        server.methods = {"/x.Y/Watch": Method(stream=nothing)}
        headers = await client.status(await client.send("/x.Y/Watch", frame(b"")))
    assert (headers[":status"], headers["grpc-status"]) == ("200", "0")


async def test_a_call_that_crosses_the_goaway_is_refused_for_a_retry_elsewhere(root: Path) -> None:
    async with raw_serving(root) as (client, server, node), anyio.create_task_group() as group:
        first = await client.send(PREPARE, frame(REQUEST))
        await wait_until(lambda: node.started == 1)
        group.start_soon(server.drain, 5)
        await anyio.lowlevel.checkpoint()
        second = await client.send(PREPARE, frame(REQUEST))  # the GOAWAY is on its way, and not read yet
        assert await client.reset_code(second) == ErrorCodes.REFUSED_STREAM
        node.gate.set()
        assert (await client.status(first))["grpc-status"] == "0"
    assert node.started == 1


async def test_a_drain_cuts_off_what_does_not_end_within_the_grace(root: Path) -> None:
    async with serving(root) as (server, node, path), grpcio_kubelet(path) as kubelet:
        failures: list[Failed] = []
        async with anyio.create_task_group() as group:
            group.start_soon(failing_prepare, kubelet, failures)
            await wait_until(lambda: node.started == 1)
            assert await server.drain(0.05) == 1
    assert [failure.code for failure in failures] == ["UNAVAILABLE"]
    assert node.cancelled == 1


async def failing_prepare(kubelet: Kubelet, failures: list[Failed]) -> None:
    try:
        await prepare(kubelet, "uid-1")
    except Failed as error:
        failures.append(error)


async def test_a_drain_does_not_wait_for_clients_that_are_only_connected(root: Path) -> None:
    async with serving(root) as (server, node, path), grpcio_kubelet(path) as kubelet, raw_client(path) as idle:
        node.gate.set()
        await prepare(kubelet, "uid-1")
        with anyio.fail_after(30):
            assert await server.drain(60) == 0
        await idle.wait_end()


async def test_a_client_that_still_writes_after_its_last_answer_meets_no_closed_door(root: Path) -> None:
    async with raw_serving(root) as (client, server, node), anyio.create_task_group() as group:
        node.gate.set()
        assert await answered(client)
        group.start_soon(server.drain, 60)
        await client.wait_end()
        await client.flush(PingFrame(opaque_data=b"a client").serialize())


async def test_connections_outlive_a_change_of_sockets(root: Path) -> None:
    async with raw_serving(root) as (client, server, node):
        node.gate.set()
        assert await answered(client)
        other = bind_socket(str(root / "other.sock"))
        await server.listen(other.sock)
        assert await answered(client)
        async with raw_client(other.path) as newcomer:
            assert await answered(newcomer)
        other.remove()
