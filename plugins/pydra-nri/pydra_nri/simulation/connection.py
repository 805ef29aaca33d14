"""A runtime's side of one plugin's socket, as strict as Go's readers are."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Annotated

from pydra_nri.frames import Connection, Decoder, Kind, Message, encode
from pydra_nri.messages import PLUGIN, Request, Response, Status
from pydra_nri.protobuf import Value, decode
from pydra_nri.protobuf import encode as encode_value
from pydra_nri.values import KeyValue

_FRAME, _HEADER, _GO_BUFFER = struct.Struct(">II"), 10, 4096


class TracedRequest(Request, frozen=True, kw_only=True):
    """A call with metadata, such as of a trace."""

    metadata: Annotated[tuple[KeyValue, ...], 5] = ()


class PluginClosed(Exception):
    """The plugin's connection has ended, or did not answer in time and was closed."""


class PluginRefused(Exception):
    """The plugin answered with an error."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.message)
        self.code = status.code


class PluginConnection:
    """A plugin's socket; `serve` answers its calls. `cut` is how many bytes are written at once, 0 for all."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        serve: Callable[[Request], Awaitable[Value]],
        *,
        cut: int,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._serve = serve
        self._cut = cut
        self._stream = 1
        self._missing = {Connection.PLUGIN: 0, Connection.RUNTIME: 0}
        self._calls: dict[int, asyncio.Future[Response]] = {}
        self._lock = asyncio.Lock()
        self.closed = asyncio.Event()

    async def run(self) -> None:
        """Read until the connection ends."""
        decoder = Decoder()
        try:
            async with asyncio.TaskGroup() as tasks:
                while not self.closed.is_set():
                    header = await self._reader.readexactly(_FRAME.size)
                    payload = await self._reader.readexactly(_FRAME.unpack(header)[1])
                    self._check_buffer(Connection(_FRAME.unpack(header)[0]), payload)
                    for message in decoder.feed(header + payload):
                        self._take(message, tasks)
        except* (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.close()

    def _check_buffer(self, connection: Connection, payload: bytes) -> None:
        """Go hands a frame to one Read: of 4096 bytes, or of what is missing of a message that has begun."""
        missing = self._missing[connection]
        if len(payload) > max(_GO_BUFFER, missing):
            raise ConnectionError("cannot allocate memory")
        if not missing:
            missing = _HEADER + struct.unpack_from(">I", payload)[0]
        self._missing[connection] = missing - len(payload)

    def _take(self, message: Message, tasks: asyncio.TaskGroup) -> None:
        if message.connection == Connection.RUNTIME:
            tasks.create_task(self._answer(message))
        elif call := self._calls.get(message.stream):
            call.set_result(decode(message.data, Response))

    async def _answer(self, message: Message) -> None:
        try:
            response = Response(payload=encode_value(await self._serve(decode(message.data, Request))))
        except PluginRefused as error:
            response = Response(status=Status(code=error.code, message=str(error)))
        data = encode_value(response)
        await self.write(
            encode(Message(connection=Connection.RUNTIME, stream=message.stream, kind=Kind.RESPONSE, data=data))
        )

    async def write(self, data: bytes) -> None:
        """Bytes as they are."""
        size = self._cut or len(data)
        async with self._lock:
            for start in range(0, len(data), size):
                self._writer.write(data[start : start + size])
                await self._writer.drain()
                await asyncio.sleep(0)

    async def call(self, method: str, payload: Value, *, timeout: float, stream: int | None = None) -> bytes:
        """Call the plugin; the connection is closed if it does not answer in time.

        Raises:
            PluginRefused: it answered with an error.
            PluginClosed: it did not answer.
        """
        stream, self._stream = stream or self._stream, self._stream + (0 if stream else 2)
        call = self._calls[stream] = asyncio.get_running_loop().create_future()
        traced = (KeyValue(key="traceparent", value="00-0-0-00"),)
        request = TracedRequest(
            service=PLUGIN,
            method=method,
            payload=encode_value(payload),
            timeout_nano=int(timeout * 1e9),
            metadata=traced,
        )
        data = encode_value(request)
        await self.write(encode(Message(connection=Connection.PLUGIN, stream=stream, kind=Kind.REQUEST, data=data)))
        ended = asyncio.ensure_future(self.closed.wait())
        await asyncio.wait((call, ended), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        del self._calls[stream]
        if not call.done():
            self.close()
            raise PluginClosed(f"{method} was not answered")
        if call.result().status.code:
            raise PluginRefused(call.result().status)
        response: Response = call.result()
        return response.payload

    def end(self) -> None:
        """End the connection after what has been written."""
        self._writer.close()

    def close(self) -> None:
        """End the connection at once."""
        self.closed.set()
        self._writer.transport.abort()
