"""An HTTP/2 client that can misbehave, and shows every frame that comes back."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
from anyio.abc import UNIXSocketStream
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event, ResponseReceived, StreamReset, TrailersReceived
from h2.settings import SettingCodes
from hyperframe.frame import Frame, GoAwayFrame

from tests.integration.kubelet.fakes import DEADLINE

EventT = TypeVar("EventT")
Headers = Sequence[tuple[str, str]]
HEADERS: Headers = (
    (":method", "POST"),
    (":scheme", "http"),
    (":authority", "localhost"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)


def frame(message: bytes, *, compressed: int = 0, length: int | None = None) -> bytes:
    """A message as gRPC sends it; `length` may lie."""
    return struct.pack(">BI", compressed, len(message) if length is None else length) + message


class RawClient:
    """One HTTP/2 connection."""

    def __init__(self, stream: UNIXSocketStream) -> None:
        self._stream = stream
        self._h2 = H2Connection(
            H2Configuration(client_side=True, header_encoding="utf-8", validate_outbound_headers=False)
        )
        self._h2.initiate_connection()
        self._seen: list[Event] = []
        self._goaways: list[GoAwayFrame] = []
        self._buffer = b""
        self.ended = False

    async def send(self, path: str, body: bytes, *, headers: Headers = (), without: str = "", end: bool = True) -> int:
        """Send a request; `headers` are added, the one named `without` is left out. Returns the stream's id."""
        stream_id = self._h2.get_next_available_stream_id()
        fields = [*[field for field in [*HEADERS, (":path", path)] if field[0] != without], *headers]
        fields.sort(key=lambda field: not field[0].startswith(":"))
        self._h2.send_headers(stream_id, fields)
        if body or end:
            self._h2.send_data(stream_id, body, end_stream=end)
        await self.flush()
        return stream_id

    async def change_setting(self, code: SettingCodes, value: int) -> None:
        """Send another value of a setting."""
        self._h2.update_settings({code: value})
        await self.flush()

    async def open_windows(self) -> None:
        """Let the server send as much as it wants."""
        self._h2.increment_flow_control_window(2**30)
        await self.change_setting(SettingCodes.INITIAL_WINDOW_SIZE, 2**30)

    async def send_rest(self, stream_id: int, body: bytes) -> None:
        """Send what is left of a request."""
        self._h2.send_data(stream_id, body, end_stream=True)
        await self.flush()

    async def send_and_reset(self, path: str) -> None:
        """Begin a request and give it up in the same write."""
        stream_id = self._h2.get_next_available_stream_id()
        self._h2.send_headers(stream_id, [*HEADERS[:1], (":path", path), *HEADERS[1:]], end_stream=True)
        self._h2.reset_stream(stream_id)
        await self.flush()

    async def flush(self, extra: bytes = b"") -> None:
        await self._stream.send(self._h2.data_to_send() + extra)

    async def wait_for(self, match: Callable[[Event], EventT | None]) -> EventT:
        """The first event that matches, new or seen before."""
        with anyio.fail_after(DEADLINE):
            while True:
                for event in self._seen:
                    if found := match(event):
                        return found
                await self._receive()

    async def wait_end(self) -> None:
        """Until the server closes."""
        with anyio.fail_after(DEADLINE):
            while not self.ended:
                try:
                    await self._receive()
                except (anyio.EndOfStream, anyio.BrokenResourceError):
                    self.ended = True

    async def status(self, stream_id: int) -> dict[str, str]:
        """The headers that end the call: trailers, or those of an answer that has nothing else."""

        def match(event: Event) -> dict[str, str] | None:
            if not isinstance(event, TrailersReceived | ResponseReceived) or event.stream_id != stream_id:
                return None
            headers = {str(name): str(value) for name, value in event.headers or ()}
            return headers if "grpc-status" in headers else None

        return await self.wait_for(match)

    async def http_status(self, stream_id: int) -> str:
        """The HTTP status of the answer."""

        def match(event: Event) -> str | None:
            if not isinstance(event, ResponseReceived) or event.stream_id != stream_id:
                return None
            return {str(name): str(value) for name, value in event.headers or ()}[":status"]

        return await self.wait_for(match)

    async def reset_code(self, stream_id: int) -> int:
        """Why the server reset the stream."""

        def match(event: Event) -> StreamReset | None:
            return event if isinstance(event, StreamReset) and event.stream_id == stream_id else None

        return int((await self.wait_for(match)).error_code or 0)

    async def goaway(self) -> GoAwayFrame:
        """The server's GOAWAY."""
        with anyio.fail_after(DEADLINE):
            while not self._goaways:
                await self._receive()
        return self._goaways[0]

    async def body(self, stream_id: int) -> bytes:
        """The first message of the answer."""

        def match(event: Event) -> DataReceived | None:
            return event if isinstance(event, DataReceived) and event.stream_id == stream_id else None

        return (await self.wait_for(match)).data[5:]

    async def message(self, stream_id: int) -> bytes:
        """The only message of an answer that has ended."""
        await self.status(stream_id)
        data = [one.data for one in self._seen if isinstance(one, DataReceived) and one.stream_id == stream_id]
        return b"".join(data)[5:]

    async def _receive(self) -> None:
        """Read on, and let the server send more.

        GOAWAY is kept from h2, which takes it for the end; grpc-go and grpcio read on, as they may.
        """
        self._buffer += await self._stream.receive()
        while len(self._buffer) >= 9 and len(self._buffer) >= (end := 9 + int.from_bytes(self._buffer[:3], "big")):
            data, self._buffer = self._buffer[:end], self._buffer[end:]
            parsed, _ = Frame.parse_frame_header(memoryview(data[:9]))
            if isinstance(parsed, GoAwayFrame):
                parsed.parse_body(memoryview(data[9:]))
                self._goaways.append(parsed)
            else:
                self._seen += (events := self._h2.receive_data(data))
                for event in events:
                    if isinstance(event, DataReceived):
                        self._h2.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
                        await self.flush()


@asynccontextmanager
async def raw_client(path: str) -> AsyncIterator[RawClient]:
    async with await anyio.connect_unix(path) as stream:
        client = RawClient(stream)
        await client.flush()
        yield client
