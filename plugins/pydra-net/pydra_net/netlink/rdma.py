"""RDMA devices: read, and moved between namespaces, by messages that pyroute2 lacks. Source: rdma/rdma_netlink.h."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator

from pydra_net.kernel import KernelRefused
from pydra_net.netlink.messages import ACK, DUMP, HEADER, ask, pack, pack_number, unpack
from pydra_net.network_types import RdmaDevice

_NETLINK_RDMA = 20
_CLIENT = 5 << 10
"""RDMA_NL_NLDEV, of whose messages the following are."""
_GET, _SET, _PORT_GET, _SYS_GET = 1, 2, 5, 6
_INDEX, _NAME, _PORT_STATE, _LINK, _NETNS_MODE, _NETNS_FD = 1, 2, 12, 50, 66, 68
"""RDMA_NLDEV_ATTR_DEV_INDEX, _DEV_NAME, _PORT_STATE, _NDEV_INDEX, RDMA_NLDEV_SYS_ATTR_NETNS_MODE, _NET_NS_FD."""
_ACTIVE = 4

Attributes = dict[int, bytes]


def read_rdma() -> tuple[RdmaDevice, ...]:
    """The devices that this thread's namespace has; in shared mode those of the node."""
    found = []
    for device in _ask(_GET, DUMP):
        index = _number(device[_INDEX])
        ports = list(_ask(_PORT_GET, DUMP, {_INDEX: device[_INDEX]}))
        links = (_number(port[_LINK]) for port in ports if _LINK in port)
        found.append(
            RdmaDevice(
                index=index,
                name=device[_NAME].rstrip(b"\0").decode(),
                links=tuple(sorted(set(links))),
                active=any(_number(port.get(_PORT_STATE, b"\0")) == _ACTIVE for port in ports),
            )
        )
    return tuple(sorted(found, key=lambda one: one.name))


def read_exclusive() -> bool:
    """Whether each RDMA device is in one namespace only."""
    return any(_number(one.get(_NETNS_MODE, b"\1")) == 0 for one in _ask(_SYS_GET))


def move_rdma(index: int, namespace: int) -> None:
    """Move a device of this thread's namespace to another one, given as an open file. Raises KernelRefused."""
    try:
        list(_ask(_SET, ACK, {_INDEX: pack_number(index), _NETNS_FD: pack_number(namespace)}))
    except OSError as error:
        raise KernelRefused(str(error.strerror), error.errno or 0) from error


def _ask(operation: int, flags: int = 0, attributes: Attributes | None = None) -> Iterator[Attributes]:
    """Yield the attributes of each answer; nothing if the kernel has no RDMA. Raises OSError."""
    try:
        for message in ask(_NETLINK_RDMA, _CLIENT | operation, flags, pack(attributes or {})):
            yield unpack(message[HEADER.size :])
    except OSError as error:
        if error.errno not in (errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT):
            raise


def _number(value: bytes) -> int:
    return int.from_bytes(value, sys.byteorder)
