"""Netlink messages by hand, where pyroute2 has none or takes too long. Source: netlink(7), linux/netlink.h."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator, Mapping

from pydra_net.kernel import KernelRefused

REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
REPLACE, CREATE, APPEND = 0x500, 0x600, 0xC00
"""Flags of a message that makes something: in place of what is there, only if there is nothing, or beside it."""
_ERROR, _DONE = 2, 3

HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")


def ask(protocol: int, kind: int, flags: int, content: bytes) -> Iterator[bytes]:
    """Yield the messages that answer, with their headers. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as asking:
        asking.bind((0, 0))
        asking.send(HEADER.pack(HEADER.size + len(content), kind, REQUEST | flags, 1, 0) + content)
        going_on = True
        while going_on:
            going_on = bool(flags)  # else there is one answer
            size = asking.recv_into(bytearray(1), 1, socket.MSG_PEEK | socket.MSG_TRUNC)
            for message in _split(asking.recv(size), "=I", HEADER.size):
                _, kind, *_ = HEADER.unpack_from(message)
                if kind == _ERROR and (code := struct.unpack_from("=i", message, HEADER.size)[0]):
                    raise OSError(-code, os.strerror(-code))
                if kind in (_ERROR, _DONE):
                    return
                yield message


def change(kind: int, flags: int, content: bytes) -> None:
    """Change links or their configuration by a message of rtnetlink. Raises KernelRefused."""
    try:
        list(ask(socket.NETLINK_ROUTE, kind, ACK | flags, content))
    except OSError as error:
        raise KernelRefused(str(error.strerror), taken=error.errno == errno.EEXIST) from error


def pack(attributes: Mapping[int, bytes]) -> bytes:
    """Attributes by their numbers as bytes."""
    return b"".join(
        _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), number) + value + bytes(-len(value) % 4)
        for number, value in attributes.items()
    )


def pack_number(value: int) -> bytes:
    """A number of 32 bits, as most attributes have it."""
    return struct.pack("=I", value)


def unpack(content: bytes) -> dict[int, bytes]:
    """The attributes in a message."""
    return {
        _ATTRIBUTE.unpack_from(one)[1] & 0x3FFF: one[_ATTRIBUTE.size :]
        for one in _split(content, "=H", _ATTRIBUTE.size)
    }


def _split(data: bytes, length_form: str, least: int) -> Iterator[bytes]:
    """Yield the parts of what begins with its length each, and is filled up to four bytes."""
    place = 0
    while place + least <= len(data):
        (length,) = struct.unpack_from(length_form, data, place)
        yield data[place : place + length]
        place += max(length, least) + -length % 4
