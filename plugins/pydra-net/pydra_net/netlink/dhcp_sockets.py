"""Sockets for DHCP on one interface. Source: packet(7), RFC 791, RFC 768; linux/filter.h for the filter."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct

_SERVER, _CLIENT = 67, 68
_IP = 0x0800
_ATTACH_FILTER = 26
_EVERYBODY = "255.255.255.255"
_FILTER = (
    (0x30, 0, 0, 9),  # the protocol
    (0x15, 0, 6, 17),  # UDP
    (0x28, 0, 0, 6),
    (0x45, 4, 0, 0x1FFF),  # no fragment
    (0xB1, 0, 0, 0),  # the length of the header
    (0x48, 0, 0, 2),  # the port behind it
    (0x15, 0, 1, _CLIENT),
    (0x06, 0, 0, 0xFFFFFFFF),
    (0x06, 0, 0, 0),
)


def open_packets(index: int, address: str) -> DhcpPackets:
    """Open sockets on a link of the thread's namespace. Raises OSError."""
    return DhcpPackets(index) if address else RawPackets(index)


class DhcpPackets:
    """Messages by UDP, for an interface with an address."""

    def __init__(self, index: int) -> None:
        self._name = socket.if_indextoname(index)
        self._socket = self._open()

    def _open(self) -> socket.socket:
        opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            opened.setblocking(False)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self._name.encode())
            opened.bind(("", _CLIENT))
        except BaseException:
            opened.close()
            raise
        return opened

    async def send(self, message: bytes, server: str) -> None:
        """To the server, or to all."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendto(self._socket, message, (server or _EVERYBODY, _SERVER))

    async def receive(self) -> bytes:
        """A message to this port."""
        return await asyncio.get_running_loop().sock_recv(self._socket, 4096)

    def close(self) -> None:
        """Receive no more."""
        self._socket.close()


class RawPackets(DhcpPackets):
    """Messages in packets of IP, for an interface without an address."""

    def _open(self) -> socket.socket:
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0)
        try:
            opened.setblocking(False)
            code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in _FILTER))
            program = struct.pack("HL", len(_FILTER), ctypes.addressof(code))
            opened.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)
            opened.bind((self._name, _IP))
        except BaseException:
            opened.close()
            raise
        return opened

    async def send(self, message: bytes, _server: str) -> None:
        """To all."""
        to = (self._name, _IP, 0, 0, b"\xff" * 6)
        await asyncio.get_running_loop().sock_sendto(self._socket, _wrap(message), to)

    async def receive(self) -> bytes:
        """The message of a packet. Its checksums are not looked at: virtual links leave them out."""
        packet = await super().receive()
        return packet[(packet[0] & 0xF) * 4 + 8 :]


def _wrap(message: bytes) -> bytes:
    """The message in a packet of IP from nobody to everybody; without the optional checksum of UDP."""
    udp = struct.pack("!HHHH", _CLIENT, _SERVER, 8 + len(message), 0) + message
    source, target = bytes(4), socket.inet_aton(_EVERYBODY)

    def build(checksum: int) -> bytes:
        return struct.pack("!BBHHHBBH4s4s", 0x45, 0x10, 20 + len(udp), 0, 0, 64, 17, checksum, source, target)

    words = sum(struct.unpack("!10H", build(0)))
    words = (words & 0xFFFF) + (words >> 16)
    return build(~(words + (words >> 16)) & 0xFFFF) + udp
