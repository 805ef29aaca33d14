"""Returns memory that is not used any longer to the operating system.

A burst, such as the start or a client that sends all that the kubelet's socket accepts, leaves garbage that nothing
collects while the agent is at rest, and free pages that the C library keeps.
"""

from __future__ import annotations

import gc
import logging
import resource
from ctypes import CDLL

import anyio

_log = logging.getLogger(__name__)

_START_SECONDS = 10.0
"""After so long the start is over, and with it the use of much memory."""

_PERIOD_SECONDS = 60.0
_GROWTH = 16 * 1024 * 1024


async def return_memory(*, start: float = _START_SECONDS, period: float = _PERIOD_SECONDS) -> None:
    """Return memory after the start, and then in each period in which 16 MiB more are in use, until cancelled."""
    await anyio.sleep(start)
    gc.unfreeze()  # `pydra.agent.entry` froze what it had imported, garbage included
    _collect()
    gc.freeze()  # what the start has left is not looked at again
    settled = _measure()
    while True:
        await anyio.sleep(period)
        if _measure() >= settled + _GROWTH:  # if it is in use now, it may not be in a minute
            _collect()


def _collect() -> None:
    gc.collect()
    try:
        CDLL(None).malloc_trim(0)
    except AttributeError:
        _log.debug("this C library has no malloc_trim")


def _measure() -> int:
    """Return the bytes of this process that are in memory: one read of a file of the kernel; 0 if it cannot be read."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:  # too many open files
        return 0
