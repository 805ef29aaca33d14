"""A gRPC server on Unix sockets, over h2: unary calls and server streams, and a drain that lets calls in flight end.

Written for the kubelet's client, grpc-go: GOAWAY before the end, answers to unknown methods in the form that grpc-go
understands, as many calls at once as a node has pods, and one write for all that is answered in one turn of the loop.
Deadlines (`grpc-timeout`) are left to the client, which cancels the call. Metadata is not read, messages are not
compressed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from enum import IntEnum
from types import SimpleNamespace
from typing import Any, TypeAlias, cast
from urllib.parse import quote

import msgspec
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    RemoteSettingsChanged,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hpack import Encoder, NeverIndexedHeaderTuple
from hyperframe.frame import GoAwayFrame

from pydra.kubelet.sockets import BACKLOG

log = logging.getLogger(__name__)

MAX_MESSAGE = 4 * 1024 * 1024
"""Bytes of one message: what grpc-go, and so the kubelet, accepts, and what this server accepts."""

MAX_CALLS = 4096
"""Calls in flight on one connection. The kubelet has one connection and sends a call for each pod that starts."""

CLOSE_SECONDS = 2.0
"""For the last bytes to reach the client, and for cancelled calls to end; after that the connection is cut."""

LEAVE_SECONDS = 1.0
"""For clients that were told to go elsewhere, and have all their answers, to disconnect by themselves."""

_PREFIX = 5
"""Bytes before each message: whether it is compressed, and its length."""

_STREAM_WINDOW = MAX_MESSAGE + _PREFIX + 1
"""Flow control of a request: a whole message fits, so the window of a stream is never updated."""

_CONNECTION_WINDOW = 16 * 1024 * 1024
_WINDOW_UPDATE = 1024 * 1024
_ACCEPTING_TURNS = 3
_MAX_TEXT = 4096


class Status(IntEnum):
    """gRPC's codes for the end of a call: those that pydra uses."""

    OK = 0
    INVALID_ARGUMENT = 3
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallError(Exception):
    """Ends a call with this status, and this text for the client."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
_ANSWER: Headers = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_OK: Headers = ((b"grpc-status", b"0"),)
_CONTENT_TYPES = (b"application/grpc", b"application/grpc+proto")


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """A method of a gRPC service, in bytes, with one answer or a stream of them. It may raise CallError."""

    unary: Callable[[bytes], Awaitable[bytes]] | None = None
    stream: Callable[[bytes], AsyncGenerator[bytes, None]] | None = None


class GrpcServer:
    """Serves methods by path (`/package.Service/Method`) on the socket that `listen` was given last.

    Connections outlive a change of sockets.
    """

    def __init__(self, methods: Mapping[str, Method]) -> None:
        self.methods = methods
        self.draining = False
        self.running: set[asyncio.Task[None]] = set()
        self.connections: set[Connection] = set()
        self.call_ended = asyncio.Event()
        self._listener: asyncio.AbstractServer | None = None

    async def listen(self, sock: socket.socket) -> None:
        """Accept connections at the bound socket, which the server owns from now on, and no longer at another."""
        loop = asyncio.get_running_loop()
        listener = await loop.create_unix_server(lambda: Connection(self), sock=sock, backlog=BACKLOG)
        self._stop_listening()
        self._listener = listener

    async def drain(self, grace: float) -> int:
        """Stop: accept nothing new, wait up to `grace` seconds for the calls in flight, then close.

        Returns:
            How many calls were cut off.
        """
        self.draining = True
        for connection in tuple(self.connections):
            connection.go_away()
        # The path is gone already. What was accepted before needs a few turns of the loop to become a connection;
        # asyncio's own loop (3.12 and later) loses its descriptor when the listener closes in between.
        for _ in range(_ACCEPTING_TURNS):
            await asyncio.sleep(0)
        self._stop_listening()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while self._count_calls():
                    self.call_ended.clear()
                    await self.call_ended.wait()
        if not (cut_off := self._count_calls()):
            await self._let_leave()
        for connection in tuple(self.connections):
            connection.close()
        await _wait_all((*self.running, *(connection.gone for connection in self.connections)), CLOSE_SECONDS)
        for connection in tuple(self.connections):
            connection.abort()
        return cut_off

    def _count_calls(self) -> int:
        """Calls that run, and those whose requests still arrive: a GOAWAY does not send them elsewhere."""
        return sum(len(connection.calls) for connection in self.connections)

    async def _let_leave(self) -> None:
        """Let clients disconnect first. The side that closes first reads no more, and a client that still writes to
        it, if only an acknowledgement, gets an error: gRPC's C core takes a broken pipe for the end of calls whose
        answers it has not read yet.
        """
        for connection in self.connections:
            connection.write_eof()
        await _wait_all((connection.gone for connection in self.connections), LEAVE_SECONDS)

    def _stop_listening(self) -> None:
        # `wait_closed` is left out: from Python 3.12 on it waits for the clients, and the kubelet never leaves.
        if self._listener is not None:
            self._listener.close()
            self._listener = None


async def _wait_all(futures: Iterable[asyncio.Future[None]], seconds: float) -> None:
    if waiting := [future for future in futures if not future.done()]:
        await asyncio.wait(waiting, timeout=seconds)


class _Call(msgspec.Struct):
    """A call whose request arrives, or that runs."""

    path: str
    body: bytearray = msgspec.field(default_factory=bytearray)
    is_answered: bool = False  # the answer's headers are sent
    request_ended: bool = False
    task: asyncio.Task[None] | None = None


class Connection(asyncio.Protocol):
    """One client's HTTP/2 connection and its calls, each a task.

    A protocol's callbacks cannot wait, so no task group holds the tasks; `GrpcServer.drain` waits for all of them.
    """

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._h2 = _build_h2()
        self.calls: dict[int, _Call] = {}
        self._unacknowledged = 0
        self._flushing = False
        self._is_paused = False
        self._can_send = asyncio.Event()
        self.gone: asyncio.Future[None] = self._loop.create_future()

    # The client's bytes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is connected. The server's settings go out at once: grpc-go waits for them."""
        self._transport = cast("asyncio.Transport", transport)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW - self._h2.inbound_flow_control_window)
        self._flush()
        self._server.connections.add(self)
        if self._server.draining:  # it was accepted a moment before the listener closed
            self.go_away()
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected: nobody waits for its calls any longer."""
        self._cancel_calls()
        self._server.connections.discard(self)
        if not self.gone.done():
            self.gone.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        try:
            events = self._h2.receive_data(data)
        except ProtocolError as error:
            log.debug("a client does not speak HTTP/2: %s", error)
            self.close()
            return
        for event in events:
            if isinstance(event, RequestReceived):
                self._open(event)
            elif isinstance(event, DataReceived):
                self._receive(event)
            elif isinstance(event, StreamEnded):
                call = self.calls.get(event.stream_id)
                if call is not None and call.task is None:
                    call.request_ended = True
                    self._start(event.stream_id, call)
            elif isinstance(event, StreamReset):
                self._cancel(event.stream_id)
            elif isinstance(event, (WindowUpdated, RemoteSettingsChanged)):
                self._can_send.set()
            elif isinstance(event, ConnectionTerminated):
                self.close()
                return
        self._schedule_flush()

    def _open(self, event: RequestReceived) -> None:
        """A call begins."""
        headers = dict(event.headers)
        path = headers.get(b":path")
        if (
            not self._server.draining
            and headers.get(b":method") == b"POST"
            and headers.get(b"content-type") in _CONTENT_TYPES
            and path is not None
        ):
            self.calls[event.stream_id] = _Call(path=path.decode("latin-1"))
            return
        with suppress(ProtocolError):  # the client may have reset it already
            if self._server.draining:  # tells the client to call elsewhere
                self._h2.reset_stream(event.stream_id, ErrorCodes.REFUSED_STREAM)
            elif path is None:
                self._h2.reset_stream(event.stream_id, ErrorCodes.PROTOCOL_ERROR)
            else:
                self._h2.send_headers(event.stream_id, ((b":status", b"415"),), end_stream=True)
                self._h2.reset_stream(event.stream_id, ErrorCodes.NO_ERROR)

    def _receive(self, event: DataReceived) -> None:
        """Bytes of a request. They are acknowledged in large steps: what bounds them is the window of their stream."""
        self._unacknowledged += event.flow_controlled_length
        if self._unacknowledged >= _WINDOW_UPDATE:
            self._h2.increment_flow_control_window(self._unacknowledged)
            self._unacknowledged = 0
        call = self.calls.get(event.stream_id)
        if call is None or call.task is not None:
            return
        call.body += event.data
        if event.stream_ended is None and int.from_bytes(call.body[1:_PREFIX], "big") > MAX_MESSAGE:
            self._start(event.stream_id, call)  # refused without its rest

    def _start(self, stream_id: int, call: _Call) -> None:
        """Serve a call, in a task even if it is refused: a reset by the client may be among the events to come."""
        call.task = task = self._loop.create_task(self._serve(stream_id, call))
        self._server.running.add(task)
        task.add_done_callback(self._server.running.discard)

    def _cancel(self, stream_id: int) -> None:
        """The client gave up on a call."""
        call = self.calls.pop(stream_id, None)
        if call is not None and call.task is not None:
            call.task.cancel()
        self._server.call_ended.set()

    def _cancel_calls(self) -> None:
        for stream_id in tuple(self.calls):
            self._cancel(stream_id)

    # Answers

    async def _serve(self, stream_id: int, call: _Call) -> None:
        try:
            method = self._server.methods.get(call.path)
            if method is None:
                service, _, name = call.path.removeprefix("/").rpartition("/")
                raise CallError(Status.UNIMPLEMENTED, f"unknown method {name} of service {service}")
            message = _parse_message(call.body)
            if method.unary is not None:
                await self._send(stream_id, call, await method.unary(message))
            elif method.stream is not None:
                async with aclosing(method.stream(message)) as answers:
                    async for answer in answers:
                        await self._send(stream_id, call, answer)
        except CallError as error:
            self._fail(stream_id, call, error.status, error.text)
        except Exception as error:
            # A bug in a service. The client must still be answered, and other calls go on.
            log.exception("a bug in pydra: %s failed", call.path)
            self._fail(stream_id, call, Status.INTERNAL, f"pydra has a bug: {type(error).__name__}: {error}")
        else:
            self._end(stream_id, call, _OK)

    async def _send(self, stream_id: int, call: _Call, message: bytes) -> None:
        """Send an answer, in as many frames as the client's flow control needs.

        Raises:
            CallError: RESOURCE_EXHAUSTED, when the kubelet would refuse the message for its size.
        """
        size = len(message)
        if size > MAX_MESSAGE:
            text = f"the answer has {size} bytes; the kubelet accepts at most {MAX_MESSAGE}"
            raise CallError(Status.RESOURCE_EXHAUSTED, text)
        if not call.is_answered:
            call.is_answered = True
            self._h2.send_headers(stream_id, _ANSWER)
        data = b"\0" + size.to_bytes(4, "big") + message
        while data:
            room = min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size)
            if room <= 0 or self._is_paused:
                self._schedule_flush()
                self._can_send.clear()
                await self._can_send.wait()
                continue
            self._h2.send_data(stream_id, data[:room])
            data = data[room:]
        self._schedule_flush()

    def _fail(self, stream_id: int, call: _Call, status: Status, text: str) -> None:
        encoded = quote(text[:_MAX_TEXT], safe=_SAFE, errors="replace").encode()
        self._end(stream_id, call, ((b"grpc-status", b"%d" % status), (b"grpc-message", encoded)))

    def _end(self, stream_id: int, call: _Call, trailers: Headers) -> None:
        if self.calls.pop(stream_id, None) is not call:
            return  # the client cancelled it
        # Without a message the trailers are the only headers.
        self._h2.send_headers(stream_id, trailers if call.is_answered else (*_ANSWER, *trailers), end_stream=True)
        if not call.request_ended:
            self._h2.reset_stream(stream_id, ErrorCodes.NO_ERROR)
        self._schedule_flush()
        self._server.call_ended.set()

    # The transport

    def _schedule_flush(self) -> None:
        """Write what h2 has to send before the loop waits again: each write wakes the kubelet, and costs more than all
        that was done to build it.
        """
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        data = self._h2.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def pause_writing(self) -> None:
        """The client does not read fast enough."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """The client has read."""
        self._is_paused = False
        self._can_send.set()

    def go_away(self) -> None:
        """Send GOAWAY: calls in flight go on, new ones go elsewhere.

        The frame is written past h2, whose own `close_connection` would forbid the answers still to come.
        """
        self._flush()
        if not self._transport.is_closing():
            frame = GoAwayFrame(stream_id=0, last_stream_id=self._h2.highest_inbound_stream_id)
            self._transport.write(frame.serialize())

    def write_eof(self) -> None:
        """Say that nothing more is sent, when all is; what the client sends is still read."""
        self._flush()
        if not self._transport.is_closing():
            self._transport.write_eof()

    def close(self) -> None:
        """Cancel what still runs, and close when all that was written has reached the client."""
        self._flush()
        self._cancel_calls()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()


def _parse_message(body: bytearray) -> bytes:
    """A request's only message.

    Raises:
        CallError: there is none, it is incomplete, compressed or too long.
    """
    if len(body) < _PREFIX:
        raise CallError(Status.INVALID_ARGUMENT, "the request has no message")
    size = int.from_bytes(body[1:_PREFIX], "big")
    if size > MAX_MESSAGE:
        text = f"the request has {size} bytes; at most {MAX_MESSAGE} are accepted"
        raise CallError(Status.RESOURCE_EXHAUSTED, text)
    if body[0]:
        raise CallError(Status.UNIMPLEMENTED, "compressed messages are not supported")
    if len(body) < _PREFIX + size:
        raise CallError(Status.INVALID_ARGUMENT, "the request ends within its message")
    if len(body) > _PREFIX + size:
        raise CallError(Status.INVALID_ARGUMENT, "the request has more than one message")
    return bytes(memoryview(body)[_PREFIX:])


_SAFE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
"""What gRPC sends as it is in `grpc-message`; the rest is percent-encoded."""

_CONFIG = H2Configuration(
    client_side=False,
    # Header names and values stay bytes, as they came. Authorities are not checked: the kubelet's are `localhost` and,
    # on the registration socket, the socket's path.
    header_encoding=None,
    validate_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_inbound_headers=False,
    normalize_outbound_headers=False,
    # Formats nothing, at the price of a call into C: h2 logs more than twenty lines for each call.
    logger=cast("Any", SimpleNamespace(debug="".format, trace="".format)),
)


class _H2(H2Connection):
    """h2's connection, with the number of open streams counted when it can matter.

    h2 counts (and forgets closed streams) by looking at every stream for every new one, which costs calls in flight
    squared.
    """

    _count_from = 64

    @property
    def open_inbound_streams(self) -> int:
        """How many calls are in flight, or more: closed streams count until they are forgotten."""
        if len(self.streams) < self._count_from:
            return len(self.streams)
        count = super().open_inbound_streams
        self._count_from = min(2 * count + 64, MAX_CALLS)
        return count


class _ConstantBlocks(Encoder):
    """hpack's encoder, with the header blocks of a successful answer made once.

    They refer to no dynamic table, so they are right whatever was sent before.
    """

    def encode(self, headers: Any, huffman: bool = True) -> bytes:
        """The header block."""
        headers = tuple(headers)
        block = None if self.header_table.resized else _BLOCKS.get(headers)
        return block if block is not None else super().encode(headers, huffman)


_BLOCKS = {
    headers: Encoder().encode([NeverIndexedHeaderTuple(*header) for header in headers]) for headers in (_ANSWER, _OK)
}


def _build_h2() -> H2Connection:
    h2 = _H2(_CONFIG)
    h2.local_settings = Settings(
        client=False,
        initial_values={
            SettingCodes.MAX_CONCURRENT_STREAMS: MAX_CALLS,
            SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
            SettingCodes.MAX_HEADER_LIST_SIZE: H2Connection.DEFAULT_MAX_HEADER_LIST_SIZE,
        },
    )
    h2.encoder = _ConstantBlocks()
    return h2
