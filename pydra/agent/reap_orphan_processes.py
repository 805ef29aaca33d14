"""Reaps what others leave behind, where the agent is process 1 of its container.

A program of a backend that ends before its own children makes them children of process 1, and as zombies they count
against the container's limit of processes. Waiting for any child would take the exit codes of the agent's own
processes, which the event loop reaps as soon as they end: a zombie that is there at two checks in a row is an orphan.
"""

from __future__ import annotations

import os
from contextlib import suppress

import anyio

_PERIOD_SECONDS = 60.0


async def reap_orphans(period: float = _PERIOD_SECONDS) -> None:
    """Reap until cancelled; return at once if this is not process 1."""
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
