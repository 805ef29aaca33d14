"""The kernel's events, as hints: something has changed. Source: rtnetlink(7), linux/rtnetlink.h."""

from __future__ import annotations

import asyncio
import errno
import socket

from pydra_net.netlink.namespaces import OpenNamespace

_GROUPS = (1, 5, 9, 7, 11)
"""Links, addresses and routes: RTNLGRP_LINK, _IPV4_IFADDR, _IPV6_IFADDR, _IPV4_ROUTE, _IPV6_ROUTE."""
_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1


class LinkEvents:
    """Events of a namespace. What they say is not read: those that wait read everything again.

    The kernel keeps as many as fit into `buffer` bytes, or into its default.
    """

    def __init__(self, where: OpenNamespace, *, buffer: int = 0) -> None:
        self._socket = where.run(_open)
        if buffer:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)

    async def wait(self) -> None:
        """Return when something has changed since the last call. Events that were lost count, too."""
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_recv(self._socket, 65536)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
        self._drain()

    def _drain(self) -> None:
        while True:
            try:
                self._socket.recv(65536)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise

    def close(self) -> None:
        """Receive no more."""
        self._socket.close()


def _open() -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    opened.setblocking(False)
    opened.bind((0, 0))
    for group in _GROUPS:
        opened.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
    return opened
