"""Asks by ARP whether somebody has an address. Source: RFC 826; RFC 5227, section 2.1; packet(7)."""

from __future__ import annotations

import socket
import struct
import time

_ARP = 0x0806
_PROBES = 3
_PAUSE = 0.1
"""Seconds after each. RFC 5227 has 1 to 2, for any network; in a data centre, an answer takes a millisecond."""

_MESSAGE = struct.Struct("!HHBBH6s4s6s4s")
_ETHERNET, _IP, _REQUEST, _REPLY = 1, 0x0800, 1, 2


def find_user(index: int, mac: str, address: str) -> str:
    """The MAC address of a host on a link of the thread's namespace that has this address, or is about to take it.

    Empty if nobody answers, after 0.3 s. Raises OSError.
    """
    own, wanted = bytes.fromhex(mac.replace(":", "")), socket.inet_aton(address)
    probe = _MESSAGE.pack(_ETHERNET, _IP, 6, 4, _REQUEST, own, bytes(4), bytes(6), wanted)
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0) as opened:
        name = socket.if_indextoname(index)
        opened.bind((name, _ARP))
        for _ in range(_PROBES):
            opened.sendto(probe, (name, _ARP, 0, 0, b"\xff" * 6))
            if user := _receive(opened, own, wanted):
                return user.hex(":")
    return ""


def _receive(opened: socket.socket, own: bytes, wanted: bytes) -> bytes:
    until = time.monotonic() + _PAUSE
    while (left := until - time.monotonic()) > 0:
        opened.settimeout(left)
        try:
            message = opened.recv(256)
        except TimeoutError:
            break
        if user := _read_user(message, own, wanted):
            return user
    return b""


def _read_user(message: bytes, own: bytes, wanted: bytes) -> bytes:
    """Who says that it has the address, or asks for it as this host does."""
    if len(message) < _MESSAGE.size:
        return b""
    *kind, operation, sender, source, _, target = _MESSAGE.unpack_from(message)
    if kind != [_ETHERNET, _IP, 6, 4] or operation not in (_REQUEST, _REPLY):
        return b""
    asks = operation == _REQUEST and source == bytes(4) and target == wanted and sender != own
    return bytes(sender) if source == wanted or asks else b""
