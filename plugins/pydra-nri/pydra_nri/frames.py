"""Bytes of the runtime's socket to messages and back: ttrpc inside NRI's multiplexer.

The socket carries frames: the number of a connection, a length, bytes. The bytes of one connection are messages:
length, stream, type, flags, data. Where frames end means nothing to our reader, but Go's fail on a frame that is larger
than their buffer. Source: containerd/nri, containerd/ttrpc.
"""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec

MAX_DATA = 4 << 20
"""Bytes of one message's data."""

_FRAME = struct.Struct(">II")
_MESSAGE = struct.Struct(">IIBB")
_MAX_FRAME = MAX_DATA + _MESSAGE.size
_FIRST_FRAME = 4096
"""What Go's ttrpc reads at most with a message's header; it reads the rest into one buffer."""


class ProtocolError(Exception):
    """What follows on the socket cannot be read."""


class Connection(IntEnum):
    """Who serves a connection of the multiplexer; nobody opens them."""

    PLUGIN = 1
    RUNTIME = 2


class Kind(IntEnum):
    """What a message is; others belong to streams, which NRI does not use."""

    REQUEST = 1
    RESPONSE = 2


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message. A response has the stream of its request."""

    connection: int
    stream: int
    kind: int
    data: bytes = b""


def encode(message: Message) -> bytes:
    """The message in one frame, or in two if it is longer than a Go reader's first buffer."""
    whole = _MESSAGE.pack(len(message.data), message.stream, message.kind, 0) + message.data
    parts = (whole[:_FIRST_FRAME], whole[_FIRST_FRAME:])
    return b"".join(_FRAME.pack(message.connection, len(part)) + part for part in parts if part)


class Decoder:
    """Collects bytes until they are messages."""

    def __init__(self) -> None:
        self._frames = bytearray()
        self._connections = {Connection.PLUGIN: bytearray(), Connection.RUNTIME: bytearray()}

    def feed(self, data: bytes) -> list[Message]:
        """The messages that end in these bytes. Frames of other connections are dropped, as the runtime does.

        Raises:
            ProtocolError: a length is above what NRI allows.
        """
        self._frames += data
        messages = []
        position = 0
        while len(self._frames) - position >= _FRAME.size:
            number, length = _FRAME.unpack_from(self._frames, position)
            if length > _MAX_FRAME:
                raise ProtocolError(f"a frame has {length} bytes, and at most {_MAX_FRAME} are allowed")
            end = position + _FRAME.size + length
            if end > len(self._frames):
                break
            if number in self._connections:
                connection = Connection(number)
                self._connections[connection] += self._frames[position + _FRAME.size : end]
                messages += self._take_messages(connection)
            position = end
        del self._frames[:position]
        return messages

    def _take_messages(self, connection: Connection) -> list[Message]:
        unread = self._connections[connection]
        messages = []
        while len(unread) >= _MESSAGE.size:
            length, stream, kind, _flags = _MESSAGE.unpack_from(unread)
            if length > MAX_DATA:
                raise ProtocolError(f"a message has {length} bytes, and at most {MAX_DATA} are allowed")
            end = _MESSAGE.size + length
            if end > len(unread):
                break
            data = bytes(unread[_MESSAGE.size : end])
            messages.append(Message(connection=connection, stream=stream, kind=kind, data=data))
            del unread[:end]
        return messages
