"""Calls to and from the runtime over one socket. Source: containerd/ttrpc; google.rpc.Code for the codes of errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import IntEnum

from pydra_nri.frames import Connection, Decoder, Kind, Message, ProtocolError, encode
from pydra_nri.messages import Request, Response, Status
from pydra_nri.protobuf import Malformed, Value, decode
from pydra_nri.protobuf import encode as encode_value

_READ = 1 << 20
_MAX_ERROR = 4096
"""Characters of an error's message; a message that the runtime cannot read would end the connection."""


class Code(IntEnum):
    """Why a call failed."""

    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    FAILED_PRECONDITION = 9
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallFailed(Exception):
    """A call was answered with an error, or not at all."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Channel:
    """A connected socket; `serve` answers the runtime's calls, or raises CallFailed."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, serve: Callable[[Request], Awaitable[bytes]]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._serve = serve
        self._decoder = Decoder()
        self._last_request = -1
        self._next_call = 1
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._serving: set[asyncio.Task[None]] = set()

    async def run(self) -> str:
        """Serve until the connection ends; returns why. Calls that are running then are cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                reason = await self._read(tasks)
                for task in self._serving:
                    task.cancel()
        finally:
            self._writer.transport.abort()
            for call in self._calls.values():
                call.cancel()
        return reason

    async def _read(self, tasks: asyncio.TaskGroup) -> str:
        try:
            while data := await self._reader.read(_READ):
                for message in self._decoder.feed(data):
                    self._take(message, tasks)
        except (OSError, ProtocolError) as error:
            return str(error)
        return "the container runtime closed the connection"

    def _take(self, message: Message, tasks: asyncio.TaskGroup) -> None:
        """Answers to calls that nobody waits for any more are dropped, and so is what is neither call nor answer."""
        if message.connection == Connection.RUNTIME and message.kind == Kind.RESPONSE:
            if (call := self._calls.get(message.stream)) and not call.done():
                call.set_result(message.data)
        elif message.connection == Connection.PLUGIN and message.kind == Kind.REQUEST:
            known, self._last_request = self._last_request, max(self._last_request, message.stream)
            task = tasks.create_task(self._answer(message, is_new=message.stream % 2 == 1 and message.stream > known))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)

    async def _answer(self, message: Message, *, is_new: bool) -> None:
        try:
            if not is_new:
                raise CallFailed(Code.INVALID_ARGUMENT, f"stream {message.stream} is even, or has been used")
            response = Response(payload=await self._serve(decode(message.data, Request)))
        except CallFailed as error:
            response = _refuse(error.code, error)
        except Malformed as error:
            response = _refuse(Code.INVALID_ARGUMENT, error)
        self._send(Connection.PLUGIN, message.stream, Kind.RESPONSE, response)

    def _send(self, connection: Connection, stream: int, kind: Kind, value: Value) -> None:
        """Nothing waits for the socket: messages are small and few, and a runtime that does not read closes."""
        self._writer.write(encode(Message(connection=connection, stream=stream, kind=kind, data=encode_value(value))))

    async def call(self, service: str, method: str, payload: Value, *, timeout: float) -> bytes:
        """Call the runtime.

        Raises:
            CallFailed: it answered with an error, not within `timeout` seconds, or the connection ended.
        """
        stream, self._next_call = self._next_call, self._next_call + 2
        answer = self._calls[stream] = asyncio.get_running_loop().create_future()
        timeout_nano = int(timeout * 1e9)
        request = Request(service=service, method=method, payload=encode_value(payload), timeout_nano=timeout_nano)
        self._send(Connection.RUNTIME, stream, Kind.REQUEST, request)
        try:
            await asyncio.wait((answer,), timeout=timeout)
        finally:
            del self._calls[stream]
        if not answer.done():
            raise CallFailed(
                Code.DEADLINE_EXCEEDED, f"the container runtime did not answer {method} within {timeout:g} s"
            )
        if answer.cancelled():
            raise CallFailed(Code.UNAVAILABLE, f"the connection ended before the container runtime answered {method}")
        try:
            response = decode(answer.result(), Response)
        except Malformed as error:
            raise CallFailed(Code.INTERNAL, f"the answer to {method} cannot be read: {error}") from error
        if response.status.code:
            raise CallFailed(response.status.code, response.status.message)
        return response.payload

    def close(self) -> None:
        """End the connection after what has been written."""
        self._writer.close()


def _refuse(code: int, error: Exception) -> Response:
    text = str(error)[:_MAX_ERROR].encode(errors="backslashreplace").decode()
    return Response(status=Status(code=code, message=text))
