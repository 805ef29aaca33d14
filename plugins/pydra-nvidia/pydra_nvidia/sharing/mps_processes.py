"""The processes of an MPS control daemon: how they are found and ended.

They are found by a mark in their environment, ended by id and start time; always in the real /proc: their ids mean
something to the kernel that this process runs on, whatever the hardware is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection

import msgspec

from pydra_pci import Roots, Tree

MARK = "PYDRA_NVIDIA_MPS"
"""Variable of the daemon and its servers: their daemon's directory on this node, by which they are known as ours."""

COMMAND = "nvidia-cuda-mps"
"""What the kernel keeps of the names of MPS programs, `nvidia-cuda-mps-control` and `-server`: 15 bytes."""

_POLL = 0.02
_REAL = Tree(Roots())


class Process(msgspec.Struct, frozen=True, order=True):
    """A process; `started` is in ticks since boot, which tells it from a later one with the same id."""

    started: int
    pid: int


def identify(pid: int) -> Process | None:
    """The process that has this id now; None when there is none, or it has ended and nobody asked how."""
    # The name before may have spaces and parentheses.
    fields = _REAL.read(_REAL.proc(f"{pid}/stat")).rpartition(")")[2].split()
    return Process(int(fields[19]), pid) if len(fields) > 19 and fields[0] not in "ZX" else None


def is_alive(process: Process) -> bool:
    """Whether it is still this one."""
    return identify(process.pid) == process


def has_mark(pid: int, mark: str) -> bool:
    """Whether the process was started with `NAME=value` in its environment, and not in a pod, which may do so, too.

    May block: a process that hangs in the driver may keep its memory, where its environment is, from readers.
    """
    try:
        if os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid"):
            return False
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark.encode() in file.read().split(b"\0")
    except OSError:
        return False


def find_marked(mark: str) -> tuple[Process, ...]:
    """All processes of MPS with the mark, the oldest first. Blocks, but for no process that is not of MPS."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    ours = (pid for pid in pids if _REAL.read(_REAL.proc(f"{pid}/comm")) == COMMAND and has_mark(pid, mark))
    found = map(identify, ours)
    return tuple(sorted(process for process in found if process is not None))


async def end(find: Callable[[], Collection[Process]], *, grace: float, deadline: float) -> tuple[Process, ...]:
    """SIGTERM, `grace` seconds later SIGKILL, to all that `find` returns; those that are left after `deadline` more.

    `find` may block. It is asked again until it returns nothing: processes fork while they are listed and signalled.
    """
    left: Collection[Process] = ()
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, deadline)):
        until = time.monotonic() + seconds
        signalled: set[Process] = set()
        # Twice: one may fork after the processes were listed, and end before its turn.
        while left := await asyncio.to_thread(find) or await asyncio.to_thread(find):
            for process in left:
                if process not in signalled:
                    _send(process, number)
            signalled.update(left)
            if time.monotonic() >= until:
                break
            await asyncio.sleep(_POLL)
        if not left:
            break
    return tuple(left)


async def wait_gone(process: Process, seconds: float) -> None:
    """Wait until it has ended, for so long at most."""
    until = time.monotonic() + seconds
    while is_alive(process) and time.monotonic() < until:  # noqa: ASYNC110 - nothing tells of the end of a process
        await asyncio.sleep(_POLL)


def _send(process: Process, number: signal.Signals) -> None:
    """Through a descriptor, so that it is never another process that got the id meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if is_alive(process):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
