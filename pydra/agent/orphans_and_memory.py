"""Keeps the agent's own process small: reaps orphans, and returns memory to the operating system."""

from __future__ import annotations

import gc
import logging
import os
import resource
from contextlib import suppress
from ctypes import CDLL

import anyio

_log = logging.getLogger(__name__)

_PERIOD_SECONDS = 60.0
_START_SECONDS = 10.0
"""After so long the start is over, and with it the use of much memory."""

_GROWTH = 16 * 1024 * 1024


async def reap_orphans(period: float = _PERIOD_SECONDS) -> None:
    """Reap what others leave behind until cancelled; return at once if this is not process 1.

    A program of a backend that ends before its own children makes them children of process 1, and as zombies they count
    against the container's limit of processes. Waiting for any child would take the exit codes of the agent's own
    processes, which the event loop reaps as soon as they end: a zombie that is there at two checks in a row is an
    orphan.
    """
    if os.getpid() != 1:
        return
    before: set[int] = set()
    while True:
        found: set[int] = set()
        with suppress(OSError):  # too many open files
            found = {int(name) for name in os.listdir("/proc") if name.isdigit() and _is_zombie_of_process_1(name)}
        for pid in found & before:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - which does not wait
        before = found - before
        await anyio.sleep(period)


def _is_zombie_of_process_1(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, parent = file.read().rpartition(")")[2].split()[:2]
    except OSError:  # it has just ended
        return False
    return (state, parent) == ("Z", "1")


async def return_memory(*, start: float = _START_SECONDS, period: float = _PERIOD_SECONDS) -> None:
    """Return memory after the start, and then in each period in which 16 MiB more are in use, until cancelled.

    A burst, such as the start or a client that sends all that the kubelet's socket accepts, leaves garbage that nothing
    collects while the agent is at rest, and free pages that the C library keeps.
    """
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
