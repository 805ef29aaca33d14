"""gRPC server on Unix sockets, on top of grpclib's protocol: unary calls, server streams, graceful drain.

Written for the kubelet's client, grpc-go: GOAWAY before the end, answers to unknown methods in the form that grpc-go
understands, as many calls at once as a node has pods, and one write for all that is answered in one event loop
iteration. grpclib has none of these in its server, so the interfaces below it are used: H2Protocol, AbstractHandler,
Connection and Stream, for which it is pinned below 0.5. Deadlines (`grpc-timeout`) are left to the client,
which cancels the call. Metadata is not read, messages are not compressed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from types import SimpleNamespace
from typing import Any, TypeAlias, cast
from urllib.parse import quote

import grpclib.protocol
import msgspec
from grpclib import GRPCError, Status
from grpclib.config import Configuration
from grpclib.protocol import AbstractHandler, EventsProcessor, H2Protocol, Stream
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import UnknownFrameReceived
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hpack import Encoder, NeverIndexedHeaderTuple
from hyperframe.frame import GoAwayFrame

from pydra.kubelet.sockets import BACKLOG
from pydra.message_text import cut

log = logging.getLogger(__name__)

MAX_MESSAGE = 4 * 1024 * 1024
"""Bytes of one message: what grpc-go, and so the kubelet, accepts, and what this server accepts."""

MAX_CALLS = 4096
"""Calls in flight on one connection. The kubelet has one connection and sends a call for each pod that starts."""

CLOSE_SECONDS = 2.0
"""Time for the last bytes to reach the client, and for cancelled calls to end; then the connection is closed."""

LEAVE_SECONDS = 1.0
"""Time for clients that got GOAWAY and all answers to disconnect by themselves."""

_PREFIX = 5
"""Bytes before each message: whether it is compressed, and its length."""

_STREAM_WINDOW = MAX_MESSAGE + _PREFIX + 1
"""Flow control of a request: a whole message fits, so the window of a stream is never updated."""

_CONNECTION_WINDOW = 16 * 1024 * 1024
_WINDOW_UPDATE = 1024 * 1024
_ACCEPTING_TURNS = 3
_MAX_TEXT = 4096


Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
_ANSWER: Headers = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_OK: Headers = ((b"grpc-status", b"0"),)
_CONTENT_TYPES = (b"application/grpc", b"application/grpc+proto")


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """A method of a gRPC service, in bytes, with one answer or a stream of them. It may raise GRPCError."""

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
        """Accept connections at the bound socket instead of any former one; the server owns it from now on."""
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
        # The path is already removed. What was accepted before needs a few loop iterations to become a connection;
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
            connection.disconnect()
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


class Call(Stream):
    """A call whose request arrives, or that runs.

    It is its own buffer: grpclib's acknowledges what a task has read, and no task reads a request that is incomplete.
    """

    id: int
    handler: Connection
    path: str
    release: Callable[[], None] | None = None  # takes the call off the connection's list; None once it is off
    task: asyncio.Task[None] | None = None
    request_ended = False
    is_answered = False  # the answer's headers are sent

    def init_stream(self, stream_id: int, connection: grpclib.protocol.Connection) -> None:
        """Take the stream's number, and begin with an empty request."""
        self.id = stream_id
        self.buffer = self  # type: ignore[assignment]
        self._body = bytearray()

    def add(self, data: bytes, ack_size: int) -> None:
        """Bytes of the request."""
        self.connection.ack(self.id, ack_size)
        if self.task is None:
            self._body += data
            if int.from_bytes(self._body[1:_PREFIX], "big") > MAX_MESSAGE:
                self.handler.start(self)  # refused without its rest

    def eof(self) -> None:
        """The request has ended."""
        self.request_ended = True
        if self.task is None:
            self.handler.start(self)

    def unacked_size(self) -> int:
        """Return 0: `add` has acknowledged everything."""
        return 0

    def parse_message(self) -> bytes:
        """Return the request's only message.

        Raises:
            GRPCError: there is none, it is incomplete, compressed or too long.
        """
        body = self._body
        if len(body) < _PREFIX:
            raise GRPCError(Status.INVALID_ARGUMENT, "the request has no message")
        size = int.from_bytes(body[1:_PREFIX], "big")
        if size > MAX_MESSAGE:
            text = f"the request has {size} bytes; at most {MAX_MESSAGE} are accepted"
            raise GRPCError(Status.RESOURCE_EXHAUSTED, text)
        if body[0]:
            raise GRPCError(Status.UNIMPLEMENTED, "compressed messages are not supported")
        if len(body) < _PREFIX + size:
            raise GRPCError(Status.INVALID_ARGUMENT, "the request ends within its message")
        if len(body) > _PREFIX + size:
            raise GRPCError(Status.INVALID_ARGUMENT, "the request has more than one message")
        return bytes(memoryview(body)[_PREFIX:])


class Http2Connection(grpclib.protocol.Connection):
    """grpclib's connection, with one write for each event loop iteration, and acknowledgements in large steps.

    Each write wakes the kubelet, and costs more than all that was done to build it. What bounds a request is the window
    of its stream.
    """

    def __init__(self, h2: H2Connection, transport: asyncio.Transport) -> None:
        super().__init__(h2, transport, config=_GRPCLIB)
        self._h2 = h2
        self._loop = asyncio.get_running_loop()
        self._flushing = False
        self._unacknowledged = 0

    def create_stream(self, *, stream_id: int | None = None, wrapper: Any = None) -> Call:
        """Return the stream of a new call."""
        return Call(self, self._h2, self._transport, stream_id=stream_id)

    def ack(self, stream_id: int, size: int) -> None:
        """Note that bytes of a request were taken."""
        self._unacknowledged += size
        if self._unacknowledged >= _WINDOW_UPDATE:
            self._h2.increment_flow_control_window(self._unacknowledged)
            self._unacknowledged = 0

    def flush(self) -> None:
        """Write what h2 has to send before the loop waits again."""
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.write)

    def write(self) -> None:
        """Write what h2 has to send now."""
        self._flushing = False
        data = self._h2.data_to_send()
        if data and not self.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close when all that was written has reached the client."""
        self.write()
        super().close()


class Connection(H2Protocol, AbstractHandler):
    """One client's HTTP/2 connection and its calls, each a task.

    A protocol's callbacks cannot wait, so no task group holds the tasks; `GrpcServer.drain` waits for all of them.
    """

    connection: Http2Connection

    def __init__(self, server: GrpcServer) -> None:
        super().__init__(self, _GRPCLIB, _H2_CONFIG)
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._h2 = _build_h2()
        self.gone: asyncio.Future[None] = self._loop.create_future()

    # What grpclib hands over

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is connected. The server's settings go out at once: grpc-go waits for them.

        As in grpclib, whose own method makes the h2 connection too, with settings that cannot be chosen.
        """
        self._transport = cast("asyncio.Transport", transport)
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_CONNECTION_WINDOW - self._h2.inbound_flow_control_window)
        self.connection = Http2Connection(self._h2, self._transport)
        self.processor = EventsProcessor(self, self.connection)
        # RFC 9113, 5.5: frames of unknown types are ignored. grpclib raises NotImplementedError.
        self.processor.processors[UnknownFrameReceived] = lambda _: None
        self.connection.write()
        self._server.connections.add(self)
        if self._server.draining:  # it was accepted a moment before the listener closed
            self.go_away()
            self.disconnect()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client has disconnected: nobody waits for its calls any longer."""
        super().connection_lost(exc)
        self._server.connections.discard(self)
        if not self.gone.done():
            self.gone.set_result(None)

    def accept(self, call: Call, headers: Any, release_stream: Callable[[], None]) -> None:  # type: ignore[override]
        """Start a call."""
        call.handler, call.release = self, release_stream
        fields = dict(headers)
        path = fields.get(b":path")
        if (
            not self._server.draining
            and fields.get(b":method") == b"POST"
            and fields.get(b"content-type") in _CONTENT_TYPES
            and path is not None
        ):
            call.path = path.decode("latin-1")
            return
        self._leave(call)
        with suppress(ProtocolError):  # the client may have reset it already
            if self._server.draining:  # the client calls another instance
                self._h2.reset_stream(call.id, ErrorCodes.REFUSED_STREAM)
            elif path is None:
                self._h2.reset_stream(call.id, ErrorCodes.PROTOCOL_ERROR)
            else:
                self._h2.send_headers(call.id, ((b":status", b"415"),), end_stream=True)
                self._h2.reset_stream(call.id, ErrorCodes.NO_ERROR)

    def cancel(self, call: Call) -> None:  # type: ignore[override]
        """The client gave up on a call."""
        self._leave(call)
        if call.task is not None:
            call.task.cancel()

    def close(self) -> None:
        """The connection was closed, by either side."""
        for call in self.calls:
            self.cancel(call)

    # Answers

    @property
    def calls(self) -> Sequence[Call]:
        """The calls that run, and those whose requests still arrive."""
        return tuple(cast("dict[int, Call]", self.processor.streams).values())

    def start(self, call: Call) -> None:
        """Serve a call, in a task even if it is refused: a reset by the client may be among the events to come."""
        call.task = task = self._loop.create_task(self._serve(call))
        self._server.running.add(task)
        task.add_done_callback(self._server.running.discard)

    def _leave(self, call: Call) -> bool:
        """Remove a call from the list; return False if it was already removed."""
        release, call.release = call.release, None
        if release is None:
            return False
        release()
        self._server.call_ended.set()
        return True

    async def _serve(self, call: Call) -> None:
        try:
            method = self._server.methods.get(call.path)
            if method is None:
                service, _, name = call.path.removeprefix("/").rpartition("/")
                raise GRPCError(Status.UNIMPLEMENTED, f"unknown method {name} of service {service}")
            message = call.parse_message()
            if method.unary is not None:
                await self._send(call, await method.unary(message))
            elif method.stream is not None:
                async with aclosing(method.stream(message)) as answers:
                    async for answer in answers:
                        await self._send(call, answer)
        except GRPCError as error:
            self._fail(call, error.status, error.message or "")
        except Exception as error:
            # An internal error in a service. The client must still get an answer, and other calls continue.
            log.exception("internal error in pydra: %s failed", call.path)
            self._fail(call, Status.INTERNAL, f"internal error in pydra: {type(error).__name__}: {error}")
        else:
            self._end(call, _OK)

    async def _send(self, call: Call, message: bytes) -> None:
        """Send an answer, in as many frames as the client's flow control needs.

        Raises:
            GRPCError: RESOURCE_EXHAUSTED, when the kubelet would refuse the message for its size.
        """
        size = len(message)
        if size > MAX_MESSAGE:
            text = f"the answer has {size} bytes; the kubelet accepts at most {MAX_MESSAGE}"
            raise GRPCError(Status.RESOURCE_EXHAUSTED, text)
        if not call.is_answered:
            call.is_answered = True
            self._h2.send_headers(call.id, _ANSWER)
        data = b"\0" + size.to_bytes(4, "big") + message
        while data:
            room = min(self._h2.local_flow_control_window(call.id), self._h2.max_outbound_frame_size)
            if room <= 0:
                self.connection.flush()
                call.window_updated.clear()
                await call.window_updated.wait()
            elif self.connection.write_ready.is_set():
                self._h2.send_data(call.id, data[:room])
                data = data[room:]
            else:
                await self.connection.write_ready.wait()
        self.connection.flush()

    def _fail(self, call: Call, status: Status, text: str) -> None:
        encoded = quote(cut(text, _MAX_TEXT), safe=_SAFE, errors="replace").encode()
        self._end(call, ((b"grpc-status", b"%d" % status.value), (b"grpc-message", encoded)))

    def _end(self, call: Call, trailers: Headers) -> None:
        if not self._leave(call):
            return  # the client cancelled it
        # Without a message the trailers are the only headers.
        self._h2.send_headers(call.id, trailers if call.is_answered else (*_ANSWER, *trailers), end_stream=True)
        if not call.request_ended:
            self._h2.reset_stream(call.id, ErrorCodes.NO_ERROR)
        self.connection.flush()

    # The transport

    def go_away(self) -> None:
        """Send GOAWAY: calls in flight continue, new ones use another connection.

        The frame is written past h2, whose own `close_connection` would forbid the answers still to come.
        """
        self.connection.write()
        if not self._transport.is_closing():
            frame = GoAwayFrame(stream_id=0, last_stream_id=self._h2.highest_inbound_stream_id)
            self._transport.write(frame.serialize())

    def write_eof(self) -> None:
        """Announce the end of the stream once all is sent; what the client sends is still read."""
        self.connection.write()
        if not self._transport.is_closing():
            self._transport.write_eof()

    def disconnect(self) -> None:
        """Cancel what still runs, and close when all that was written has reached the client."""
        self.processor.close("the server stops")

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()


_SAFE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
"""What gRPC sends as it is in `grpc-message`; the rest is percent-encoded."""

_GRPCLIB = Configuration().__for_server__()

_H2_CONFIG = H2Configuration(
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

for _name in ("hpack.hpack", "hpack.table"):  # the same for nineteen lines of hpack, which has no setting for it
    logging.getLogger(_name).debug = "".format  # type: ignore[method-assign,assignment]


class _H2(H2Connection):
    """h2's connection, with the number of open streams counted when it can matter.

    h2 counts (and forgets closed streams) by looking at every stream for every new one, which costs calls in flight
    squared.
    """

    _count_from = 64

    @property
    def open_inbound_streams(self) -> int:
        """An upper bound of the calls in flight: closed streams count until they are forgotten."""
        if len(self.streams) < self._count_from:
            return len(self.streams)
        count = super().open_inbound_streams
        self._count_from = min(2 * count + 64, MAX_CALLS)
        return count


# hpack makes 21 Python calls to encode the headers of an answer, and this 3.
class _ConstantBlocks(Encoder):
    """hpack's encoder, with the header blocks of a successful answer made once.

    They do not use the dynamic table, so they are valid whatever was sent before.
    """

    def encode(self, headers: Any, huffman: bool = True) -> bytes:
        """Return the header block."""
        headers = tuple(headers)
        block = None if self.header_table.resized else _BLOCKS.get(headers)
        return block if block is not None else super().encode(headers, huffman)


_BLOCKS = {
    headers: Encoder().encode([NeverIndexedHeaderTuple(*header) for header in headers]) for headers in (_ANSWER, _OK)
}


def _build_h2() -> H2Connection:
    h2 = _H2(_H2_CONFIG)
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
