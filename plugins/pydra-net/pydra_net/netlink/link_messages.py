"""Messages about single links by hand: pyroute2 lacks some, and needs a millisecond more while a runtime waits.

Source: rtnetlink(7), linux/if_link.h.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping
from typing import Any

from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from pydra_net.gso_sizes_and_sysctls import IPV4, SIZES
from pydra_net.kernel import KernelRefused
from pydra_net.netlink.messages import ACK, ask, pack

_ROUTE = 0
_NEW_LINK, _GET_LINK, _SET_LINK = 16, 18, 19
_NAME, _FAMILIES, _NAMESPACE, _MASK = 3, 26, 28, 29
_FUNCTIONS, WITHOUT_COUNTERS = 1, 8
"""RTEXT_FILTER_VF: tell of virtual functions, too. RTEXT_FILTER_SKIP_STATS: with counters, 180 functions need more than
64 KiB, the most that an attribute can have."""
_INET, _INET_CONF = 2, 1
_LINK = struct.Struct("=BxHiII")


def get_link(index: int, *, functions: bool = False) -> Any:
    """The message about a link of this thread's namespace, as pyroute2 decodes it, or None. Raises OSError."""
    try:
        (message,) = _ask(_GET_LINK, 0, index, {_MASK: _number(_FUNCTIONS | WITHOUT_COUNTERS)} if functions else {})
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
        return None
    decoded = ifinfmsg(message)  # type: ignore[no-untyped-call]
    decoded.decode()  # type: ignore[no-untyped-call]
    return decoded


def move_link(index: int, namespace: int, name: str) -> None:
    """Move a link to a namespace, given as an open file, and rename it. Raises KernelRefused."""
    _change(_NEW_LINK, index, {_NAMESPACE: _number(namespace), _NAME: name.encode() + b"\0"})


def set_parameter(index: int, name: str, value: int) -> None:
    """Set one of a link's `gso_sizes_and_sysctls`. Raises KernelRefused."""
    if name in SIZES:
        _change(_SET_LINK, index, {SIZES[name]: _number(value)})
    else:
        of_inet = pack({_INET_CONF: pack({IPV4[name]: _number(value)})})
        _change(_SET_LINK, index, {_FAMILIES: pack({_INET: of_inet})})


def _change(kind: int, index: int, attributes: Mapping[int, bytes]) -> None:
    try:
        _ask(kind, ACK, index, attributes)
    except OSError as error:
        raise KernelRefused(str(error.strerror), taken=error.errno == errno.EEXIST) from error


def _ask(kind: int, flags: int, index: int, attributes: Mapping[int, bytes]) -> list[bytes]:
    return list(ask(_ROUTE, kind, flags, _LINK.pack(0, 0, index, 0, 0) + pack(attributes)))


def _number(value: int) -> bytes:
    return struct.pack("=I", value)
