"""A DHCP server with one address, for a simulated kernel, or in the namespace of a test."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing

from pydra_net.dhcp.messages import ACK, DECLINE, DISCOVER, NAK, OFFER, RELEASE, REQUEST
from pydra_net.netlink.namespaces import OpenNamespace

ADDRESS, SERVER = "10.0.0.77", "10.0.0.8"
ROUTES = bytes((16, 10, 8, 10, 0, 0, 8, 0, 10, 0, 0, 8))
"""10.8.0.0/16, and a default route, both by 10.0.0.8."""


class DhcpServer:
    """`log` has the types of what it got, with the address that the client uses.

    `leases` has the seconds and the routes of leases, one after the other; the last one is given again and again.
    """

    def __init__(self, *leases: tuple[int, bytes]) -> None:
        self.log: list[tuple[int, str]] = []
        self.leases = [*leases] or [(3600, ROUTES)]
        self.silent = False
        self.address = ADDRESS

    def answer(self, message: bytes) -> bytes | None:
        """The answer to a client's message."""
        options = dict(_read_options(message[240:]))
        kind, using = options[53][0], socket.inet_ntoa(message[12:16])
        self.log.append((kind, using))
        if self.silent or kind in (RELEASE, DECLINE):
            return None
        wanted = socket.inet_ntoa(options[50]) if 50 in options else using
        kinds = {DISCOVER: OFFER, REQUEST: ACK if wanted == self.address else NAK}
        seconds, routes = self.leases.pop(0) if len(self.leases) > 1 and kind == REQUEST else self.leases[0]
        body = (
            *((53, bytes((kinds[kind],))), (54, socket.inet_aton(SERVER)), (1, socket.inet_aton("255.255.255.0"))),
            *((51, struct.pack("!I", seconds)), (121, routes)),
        )
        head = b"\2" + message[1:16] + socket.inet_aton(self.address) + message[20:240]
        return head + b"".join(bytes((code, len(value))) + value for code, value in body) + b"\xff"

    @asynccontextmanager
    async def serve(self, path: str, link: str) -> AsyncIterator[None]:
        """Answer on a link of a namespace."""
        where = OpenNamespace(path)
        with where.run(lambda: _open(link)) as opened:
            where.close()
            task = asyncio.create_task(self._run(opened))
            yield
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, opened: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            message, (client, _) = await loop.sock_recvfrom(opened, 4096)
            if answer := self.answer(message):
                to = client if client != "0.0.0.0" else "255.255.255.255"
                await loop.sock_sendto(opened, answer, (to, 68))


def _open(link: str) -> socket.socket:
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, link.encode())
    opened.setblocking(False)
    opened.bind(("", 67))
    return opened


def advertise(path: str, link: str) -> None:
    """Advertise the prefix 2001:db8::/64 on a link of a namespace, as routers do (RFC 4861)."""
    prefix = struct.pack("!BBBBIII", 3, 4, 64, 0xC0, 3600, 3600, 0) + socket.inet_pton(socket.AF_INET6, "2001:db8::")
    message = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 0, 0, 0) + prefix

    def send() -> None:
        with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as opened:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
            opened.sendto(message, ("ff02::1", 0, 0, socket.if_nametoindex(link)))

    with closing(OpenNamespace(path)) as where:
        where.run(send)


def _read_options(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while data[place] != 255:
        yield data[place], data[place + 2 : place + 2 + data[place + 1]]
        place += 2 + data[place + 1]
