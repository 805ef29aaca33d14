"""A transport that makes one write of the several that grpclib does for an answer."""

from __future__ import annotations

import asyncio
from typing import Any


class GatheringTransport(asyncio.WriteTransport):
    """Writes once what is written in one turn of the event loop.

    grpclib writes the headers, the message and the trailers of an answer one by one; each write wakes the kubelet, and
    costs more than all that was done to build it.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._gathered: list[bytes] = []

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What the transport below says."""
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        """Whether nothing more is sent."""
        return self._transport.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send the bytes before the loop waits again."""
        if not self._gathered:
            self._loop.call_soon(self._send)
        self._gathered.append(bytes(data))

    def write_eof(self) -> None:
        """Say that nothing more is sent, when all is; what the client says is still read."""
        self._send()
        if not self._transport.is_closing():
            self._transport.write_eof()

    def close(self) -> None:
        """Close when all is sent."""
        self._send()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._gathered.clear()
        self._transport.abort()

    def _send(self) -> None:
        if self._gathered:
            data = b"".join(self._gathered)
            self._gathered.clear()
            if not self._transport.is_closing():
                self._transport.write(data)
