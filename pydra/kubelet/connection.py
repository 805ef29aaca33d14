"""One HTTP/2 connection of the kubelet, over grpclib's protocol, and the calls that run on it.

grpclib serves calls well and ends them badly: it has no GOAWAY, answers unknown methods in a form that grpc-go does not
understand, and believes whatever length a request claims to have. What mends that is here and in `server`, in terms of
grpclib's own seams (AbstractHandler, Buffer, H2Protocol); they are why grpclib is pinned below 0.5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from grpclib import GRPCError, Status
from grpclib.config import Configuration
from grpclib.const import Handler
from grpclib.encoding.base import CodecBase
from grpclib.events import _DispatchServerEvents
from grpclib.protocol import AbstractHandler, Buffer, H2Protocol, Stream
from grpclib.server import request_handler
from h2.config import H2Configuration
from h2.errors import ErrorCodes
from h2.events import UnknownFrameReceived
from hyperframe.frame import GoAwayFrame

from pydra.kubelet.codec import MAX_MESSAGE
from pydra.kubelet.gathering import GatheringTransport


class RequestBuffer(Buffer):
    """The bytes of a call's one request message: not more than allowed, and not none."""

    _at_header = True

    async def read(self, size: int) -> bytes:
        """The next `size` bytes.

        Raises:
            GRPCError: the message is too long, or the caller ended the call before its end.
        """
        if size > MAX_MESSAGE:
            text = f"the request has {size} bytes, at most {MAX_MESSAGE} are accepted"
            raise GRPCError(Status.RESOURCE_EXHAUSTED, text)
        try:
            data = await super().read(size)
        except AssertionError as error:
            raise GRPCError(Status.INVALID_ARGUMENT, "the request ends within its message") from error
        if len(data) < size:
            raise GRPCError(Status.INVALID_ARGUMENT, "the request has no message, or ends within it")
        # grpclib reads the five bytes of the message's header first; their first says whether it is compressed.
        if self._at_header and data[0]:
            raise GRPCError(Status.UNIMPLEMENTED, "compressed messages are not supported")
        self._at_header = False
        return data


class Calls(AbstractHandler):
    """The calls of one connection, each a task. A connection's callbacks cannot wait, so no task group can hold them;
    `DrainServer.drain` sees every one of them to its end instead.
    """

    def __init__(self, routes: dict[str, Handler], codec: CodecBase, running: set[asyncio.Task[None]]) -> None:
        """`running` is where the server sees the calls of all its connections."""
        self.last_stream_id = 0
        self._running = running
        self._routes = routes
        self._codec = codec
        self._dispatch = _DispatchServerEvents()
        self._by_stream: dict[Stream, asyncio.Task[None]] = {}
        self._refusing = False

    def refuse_new(self) -> None:
        """Refuse every further call, in the way that tells the caller to take it elsewhere."""
        self._refusing = True

    def accept(self, stream: Stream, headers: Any, release_stream: Callable[[], Any]) -> None:
        """Start a call."""
        names = {name for name, _ in headers}
        if self._refusing or not {":method", ":path"} <= names:
            stream.reset_nowait(ErrorCodes.REFUSED_STREAM if self._refusing else ErrorCodes.PROTOCOL_ERROR)
            release_stream()
            return
        self.last_stream_id = max(self.last_stream_id, cast("int", stream.id))
        stream.buffer = RequestBuffer(partial(stream.connection.ack, cast("int", stream.id)))
        task = asyncio.get_running_loop().create_task(self._serve(stream, headers, release_stream))
        self._running.add(task)
        self._by_stream[stream] = task
        task.add_done_callback(partial(self._ended, stream))

    async def _serve(self, stream: Stream, headers: Any, release_stream: Callable[[], Any]) -> None:
        # The events that grpclib would dispatch have no listeners, and details of a status need protobuf.
        await request_handler(
            self._routes,
            stream,
            headers,
            self._codec,
            None,
            self._dispatch,
            release_stream,
        )
        if stream.closable:
            # Something that grpclib only logs, such as undecodable metadata; without this the caller would wait.
            stream.reset_nowait()

    def _ended(self, stream: Stream, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._by_stream.pop(stream, None)

    def cancel(self, stream: Stream) -> None:
        """The caller gave up on a call."""
        if task := self._by_stream.get(stream):
            task.cancel()

    def close(self) -> None:
        """The connection is gone."""
        for task in tuple(self._by_stream.values()):
            task.cancel()


class Connection(H2Protocol):
    """An HTTP/2 connection that can tell its client to go elsewhere."""

    transport: GatheringTransport

    def __init__(
        self,
        calls: Calls,
        config: Configuration,
        h2_config: H2Configuration,
        *,
        opened: Callable[[Connection], None],
        closed: Callable[[Connection], None],
    ) -> None:
        super().__init__(calls, config, h2_config)
        self.gone = asyncio.Event()
        self._calls = calls
        self._opened = opened
        self._closed = closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The client is there; grpclib sends the server's SETTINGS at once, for which grpc-go waits."""
        self.transport = GatheringTransport(cast("asyncio.Transport", transport))
        super().connection_made(self.transport)
        # RFC 9113, 5.5: frames of unknown types are to be ignored. grpclib raises NotImplementedError.
        self.processor.processors[UnknownFrameReceived] = lambda _: None
        self._opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone, and with it the calls' callers."""
        super().connection_lost(exc)
        self.gone.set()
        self._closed(self)

    def go_away(self) -> None:
        """Send GOAWAY: calls in flight go on, new ones go elsewhere.

        The frame is written past h2, whose own `close_connection` would forbid the answers still to come.
        """
        self._calls.refuse_new()
        if not self.transport.is_closing():
            self.transport.write(GoAwayFrame(stream_id=0, last_stream_id=self._calls.last_stream_id).serialize())

    def close(self) -> None:
        """Cancel what still runs, and close once what was written is with the client."""
        self.processor.close("the server stops")
