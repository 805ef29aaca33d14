"""Netlink messages by hand, where pyroute2 has none or takes too long. Source: netlink(7), linux/netlink.h."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator, Mapping

from pyroute2.netlink.exceptions import NetlinkDumpInterrupted

from pydra_net.kernel import KernelRefused

REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
REPLACE, CREATE, APPEND = 0x500, 0x600, 0xC00
"""Flags of a message that makes something: in place of what is there, only if there is nothing, or beside it."""
_NOTHING, _ERROR, _DONE = 1, 2, 3
_INTERRUPTED = 0x10
"""NLM_F_DUMP_INTR."""
_MOST = 32768
"""Of a part of a list, in bytes. The kernel takes the most that was received on the socket before: without that 4 KiB,
in which a route by more than 230 links has no place, so that it lists nothing."""

HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")


def ask(protocol: int, kind: int, flags: int, content: bytes) -> Iterator[bytes]:
    """Yield the messages that answer, with their headers. Raises OSError, NetlinkDumpInterrupted."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as asking:
        asking.bind((0, 0))
        if protocol == socket.NETLINK_ROUTE and flags == DUMP:
            asking.send(HEADER.pack(HEADER.size, _NOTHING, REQUEST | ACK, 1, 0))
            asking.recv(_MOST)
        asking.send(HEADER.pack(HEADER.size + len(content), kind, REQUEST | flags, 1, 0) + content)
        going_on = True
        while going_on:
            size = asking.recv_into(bytearray(1), 1, socket.MSG_PEEK | socket.MSG_TRUNC)
            messages, going_on = parse_answer(asking.recv(size))
            yield from messages
            going_on = going_on and bool(flags)  # else there is one answer


def parse_answer(data: bytes) -> tuple[list[bytes], bool]:
    """The messages that the kernel has sent at once, and whether others follow.

    Raises:
        OSError: one says that the kernel refused.
        NetlinkDumpInterrupted: one says that something changed meanwhile, so what is listed may not be all.
    """
    messages: list[bytes] = []
    for message in _split(data, "=I", HEADER.size):
        _, kind, flags, *_ = HEADER.unpack_from(message)
        if flags & _INTERRUPTED:
            raise NetlinkDumpInterrupted
        if kind in (_ERROR, _DONE):
            code = int.from_bytes(message[HEADER.size : HEADER.size + 4], sys.byteorder, signed=True)
            if code < 0:
                raise OSError(-code, os.strerror(-code))
            return messages, False
        messages.append(message)
    return messages, True


def change(kind: int, flags: int, content: bytes) -> None:
    """Change links or their configuration by a message of rtnetlink. Raises KernelRefused."""
    try:
        list(ask(socket.NETLINK_ROUTE, kind, ACK | flags, content))
    except OSError as error:
        raise KernelRefused(str(error.strerror), error.errno or 0) from error


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
    """The attributes in a message, or in another attribute."""
    return dict(list_attributes(content))


def list_attributes(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield them in order, where several have one number."""
    for one in _split(content, "=H", _ATTRIBUTE.size):
        yield _ATTRIBUTE.unpack_from(one)[1] & 0x3FFF, one[_ATTRIBUTE.size :]


def _split(data: bytes, length_form: str, least: int) -> Iterator[bytes]:
    """Yield the parts of what begins with its length each, and is filled up to four bytes."""
    place = 0
    while place + least <= len(data):
        (length,) = struct.unpack_from(length_form, data, place)
        yield data[place : place + length]
        place += max(length, least) + -length % 4
