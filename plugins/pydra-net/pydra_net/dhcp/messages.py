"""DHCP messages as bytes and as values. No I/O. Source: RFC 2131, section 2; RFC 2132; RFC 3442."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterator, Mapping

import msgspec

from pydra_net.network_types import is_of_host

DISCOVER, OFFER, REQUEST, DECLINE, ACK, NAK, RELEASE = 1, 2, 3, 4, 5, 6, 7

_HEADER = struct.Struct("!BBBBIHH4s4s4s4s16s64s128s4s")
_COOKIE = b"\x63\x82\x53\x63"
_BROADCAST = 0x8000
_PAD, _END = 0, 255
_MASK, _ROUTER, _SECONDS, _OVERLOAD, _KIND, _REQUESTED, _SERVER, _WANTED, _RENEW, _REBIND, _IDENTITY, _ROUTES = (
    *(1, 3, 51, 52, 53, 50, 54, 55, 58, 59, 61, 121),
)
_SHORTEST = 300
"""Of a message: relays drop shorter ones, as those of BOOTP."""
LEAST = 60.0
"""Seconds between two requests for the same lease, unless half of its time is less."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a client sends. `address` is the one that it uses, `requested` the one that it would like.

    With an `identity`, the server knows the client by that, and not by its MAC address.
    """

    kind: int
    transaction: int
    mac: str
    address: str = ""
    requested: str = ""
    server: str = ""
    identity: bytes = b""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """What a server grants: `address` is `10.0.0.5/24`; times in seconds, from when it was requested.

    `routes` are pairs of a destination and a gateway, which is empty for a network of the interface itself. The
    server's router is a default route among them, unless it sends classless ones (RFC 3442).
    """

    address: str
    server: str
    seconds: int
    renew: float
    rebind: float
    routes: tuple[tuple[str, str], ...] = ()

    @property
    def ip(self) -> str:
        """The address without the length of its prefix."""
        return self.address.partition("/")[0]


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What a server sends: an offer or the answer to a request, with its lease."""

    kind: int
    transaction: int
    mac: str
    lease: Lease


def encode(request: Request) -> bytes:
    """The bytes of a message. Answers are to be broadcast: without an address, not every link delivers others."""
    mac = bytes.fromhex(request.mac.replace(":", ""))
    flags = 0 if request.address or request.kind == DECLINE else _BROADCAST  # RFC 2131, table 5
    header = _HEADER.pack(
        *(1, 1, len(mac), 0, request.transaction, 0, flags),
        *(_pack(request.address), bytes(4), bytes(4), bytes(4), mac, b"", b"", _COOKIE),
    )
    options = [(_KIND, bytes([request.kind]))]
    if request.identity:
        options.append((_IDENTITY, b"\0" + request.identity))
    if request.requested:
        options.append((_REQUESTED, _pack(request.requested)))
    if request.server:
        options.append((_SERVER, _pack(request.server)))
    if request.kind not in (RELEASE, DECLINE):
        options.append((_WANTED, bytes((_MASK, _ROUTES, _ROUTER, _SECONDS, _RENEW, _REBIND))))
    body = b"".join(bytes((code, len(value))) + value for code, value in options)
    return (header + body + bytes([_END])).ljust(_SHORTEST, b"\0")


def decode(data: bytes) -> Reply:
    """A server's message. Raises ValueError for what is none, and for a lease that no interface can have."""
    if len(data) < _HEADER.size:
        raise ValueError(f"found {len(data)} bytes, which are too few")
    kind, _, length, _, transaction, _, _, _, address, _, _, mac, host, file, cookie = _HEADER.unpack_from(data)
    if kind != 2 or cookie != _COOKIE:
        raise ValueError("found no message of a server")
    options = _read_options(data[_HEADER.size :])
    if overload := int.from_bytes(options.get(_OVERLOAD, b"")):
        options = _read_options(data[_HEADER.size :], file if overload & 1 else b"", host if overload & 2 else b"")
    if len(options.get(_KIND, b"")) != 1:
        raise ValueError("found a message without a type")
    seconds = int(_read_number(options, _SECONDS, -1))
    mask = options.get(_MASK, b"\xff" * 4)
    given = ipaddress.IPv4Interface(f"{_unpack(address)}/{_unpack(mask)}")
    if options[_KIND][0] in (OFFER, ACK):
        _check_lease(given, seconds)
    renew, rebind = _read_times(options, seconds)
    return Reply(
        kind=options[_KIND][0],
        transaction=transaction,
        mac=mac[:length].hex(":"),
        lease=Lease(
            address=str(given),
            server=_unpack(options[_SERVER]) if _SERVER in options else "",
            seconds=seconds,
            renew=renew,
            rebind=rebind,
            routes=tuple(_read_routes(options[_ROUTES]) if _ROUTES in options else _read_router(options)),
        ),
    )


def _check_lease(given: ipaddress.IPv4Interface, seconds: int) -> None:
    """Refuse what the kernel takes: an address for 0 s would stay for ever."""
    if not is_of_host(given):
        raise ValueError(f"found the address {given}, which no host can have")
    if seconds <= 0:
        raise ValueError(f"found a lease {'of 0 s' if seconds == 0 else 'without its time'}")


def _read_options(*fields: bytes) -> Mapping[int, bytes]:
    """The options by their codes, in one field of a message after the other; one that comes in parts is joined."""
    found: dict[int, bytes] = {}
    for data in fields:
        place = 0
        while place < len(data) and data[place] != _END:
            code, length = data[place], data[place + 1] if place + 1 < len(data) else 0
            if code == _PAD:
                place += 1
                continue
            if place + 2 + length > len(data):
                raise ValueError(f"found option {code}, which is cut off")
            found[code] = found.get(code, b"") + data[place + 2 : place + 2 + length]
            place += 2 + length
    return found


def _read_times(options: Mapping[int, bytes], seconds: int) -> tuple[float, float]:
    """When to renew and to rebind: as the server says, if that is in order and not more often than is allowed."""
    renew, rebind = _read_number(options, _RENEW, seconds / 2), _read_number(options, _REBIND, seconds * 7 / 8)
    if not 0 < renew < rebind < seconds:
        renew, rebind = seconds / 2, seconds * 7 / 8
    least = min(LEAST, seconds / 2)
    return max(renew, least), max(rebind, least * 7 / 4)


def _read_number(options: Mapping[int, bytes], code: int, default: float) -> float:
    value = options.get(code)
    return int.from_bytes(value) if value is not None and len(value) == 4 else default


def _read_router(options: Mapping[int, bytes]) -> Iterator[tuple[str, str]]:
    """Yield a default route by the first of the routers."""
    gateway = options.get(_ROUTER, b"")[:4]
    if len(gateway) == 4 and any(gateway):
        yield "0.0.0.0/0", _unpack(gateway)


def _read_routes(data: bytes) -> Iterator[tuple[str, str]]:
    """Yield the classless static routes."""
    place = 0
    while place < len(data):
        length = data[place]
        octets = (length + 7) // 8
        if length > 32 or place + 1 + octets + 4 > len(data):
            raise ValueError("found a route that is cut off")
        network = _unpack(data[place + 1 : place + 1 + octets].ljust(4, b"\0"))
        gateway = _unpack(data[place + 1 + octets : place + 5 + octets])
        yield str(ipaddress.ip_network(f"{network}/{length}", strict=False)), "" if gateway == "0.0.0.0" else gateway
        place += 5 + octets


def _pack(address: str) -> bytes:
    return ipaddress.IPv4Address(address or "0.0.0.0").packed


def _unpack(data: bytes) -> str:
    return str(ipaddress.IPv4Address(data))
