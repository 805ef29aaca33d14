"""The processes of an MPS control daemon: how they are started, by the setting `mps_launcher`, found and ended.

DIRECT, for an agent that runs on the host itself: in a session of its own, its files at their places. HOST, for an
agent in a container (it needs hostPID, and privileges): in the namespaces of process 1. Either way the daemon leaves
the agent's control groups, with which it would be ended, and its /dev/shm is the directory that its clients get as
theirs, which MPS needs. What clients can write to, that and the pipes, is memory of limited size, for the node's /run
is limited too. A driver that is installed in a container has its own device nodes and libraries, so the
daemon gets that root.

Processes are found by a mark in their environment, ended by id and start time; always in the real /proc: their ids mean
something to the kernel that this process runs on, whatever the hardware is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from pydra_nvidia.host.driver_programs import SYSTEM_PATH, Program, find_environment
from pydra_nvidia.host.driver_root import DriverRoot
from pydra_nvidia.settings import MpsLauncher
from pydra_nvidia.sharing import mps_launcher
from pydra_nvidia.sharing.mps_directory import MpsDirectory

SHELLS = ("/usr/bin/sh", "/bin/sh")
PIPE_INSIDE, LOG_INSIDE = "/tmp/nvidia-mps", "/var/log/nvidia-mps"  # noqa: S108 - the names that MPS itself has
PIPE_OPTIONS = "size=1m,nr_inodes=1k,mode=755"
"""Of the memory that the pipes are in: two sockets, a lock, a fifo, a file with a number."""

MARK = "PYDRA_NVIDIA_MPS"
"""Variable of the daemon and its servers: their daemon's directory on this node, by which they are known as ours."""


class LaunchContext(msgspec.Struct, frozen=True, kw_only=True):
    """Where daemons run: the namespaces to enter for it, the mounts that are seen there, and its root from here."""

    mounts: str = "/proc/self/mountinfo"
    root: str = "/"
    namespaces: tuple[str, ...] = ()

    @property
    def is_host(self) -> bool:
        """Whether paths there are the host's."""
        return self.namespaces != ()


def find_context(how: MpsLauncher, first: str = "/proc/1") -> LaunchContext:
    """`first` is the host's first process, in /proc."""
    if how is MpsLauncher.DIRECT:
        return LaunchContext()
    names = ("cgroup", "ipc", "uts", "net", "pid", "mnt")
    namespaces = tuple(f"{first}/ns/{name}" for name in names)
    return LaunchContext(mounts=f"{first}/mountinfo", root=f"{first}/root", namespaces=namespaces)


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What `mps_launcher` does, in this order.

    Enter `namespaces`; leave the control groups; unmount; mount tmpfs with these options; bind directories (source to
    target) for itself only; change the root; become `argv`.
    """

    namespaces: tuple[str, ...] = ()
    leave_cgroups: bool = False
    unmount: tuple[str, ...] = ()
    tmpfs: Mapping[str, str] = {}
    binds: Mapping[str, str] = {}
    root: str = ""
    argv: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}

    def command(self) -> tuple[str, ...]:
        """The program to run, with its arguments."""
        return (sys.executable, "-I", mps_launcher.__file__, msgspec.json.encode(self).decode())


def plan_mount(place: MpsDirectory, size: str, where: LaunchContext) -> Launch:
    """Memory of its own for the daemon and its clients, in the view that clients are started from.

    The pipes' first: where the other is mounted, nothing is missing.
    """
    pipe, shm = _seen(place, place.pipe, where), _seen(place, place.shm, where)
    return Launch(namespaces=where.namespaces, tmpfs={pipe: PIPE_OPTIONS, shm: f"size={size},mode=1777"})


def plan_unmount(mounted: tuple[str, ...], where: LaunchContext) -> Launch:
    """The contrary, of what `find_mounts` found."""
    return Launch(namespaces=where.namespaces, unmount=mounted)


def plan_daemon(
    place: MpsDirectory,
    program: Program,
    root: DriverRoot,
    where: LaunchContext,
    *,
    devices: tuple[str, ...],
    multi_user: bool,
) -> Launch:
    """The control daemon, which goes into the background by itself."""
    outside = root.path_on_host if where.is_host else root.path_here
    shm, pipe, log = (_seen(place, path, where) for path in (place.shm, place.pipe, place.log))
    environment = {
        "CUDA_VISIBLE_DEVICES": ",".join(devices),
        "CUDA_MPS_PIPE_DIRECTORY": pipe,
        "CUDA_MPS_LOG_DIRECTORY": log,
        MARK: place.path,
    }
    if _is_whole(root):
        environment |= {
            "CUDA_MPS_PIPE_DIRECTORY": PIPE_INSIDE,
            "CUDA_MPS_LOG_DIRECTORY": LOG_INSIDE,
            "PATH": ":".join(SYSTEM_PATH),
        }
        binds = {shm: outside("/dev/shm"), pipe: outside(PIPE_INSIDE), log: outside(LOG_INSIDE)}  # noqa: S108
        argv0, new_root = program.inside, outside("/").rstrip("/")
    else:
        environment |= find_environment(root, program, outside)
        binds, argv0, new_root = {shm: "/dev/shm"}, outside(program.inside), ""  # noqa: S108
    return Launch(
        namespaces=where.namespaces,
        leave_cgroups=True,
        binds=binds,
        root=new_root,
        argv=(argv0, "-d", *(("-M",) if multi_user else ())),
        environment=environment,
    )


def _seen(place: MpsDirectory, path: str, where: LaunchContext) -> str:
    return place.on_host(path) if where.is_host else path


def find_mounts(place: MpsDirectory, where: LaunchContext) -> tuple[str, ...]:
    """What is mounted of the place's, there; the latest first, and as often as it is mounted."""
    wanted = {_seen(place, path, where).encode() for path in (place.pipe, place.shm)}
    try:
        with open(where.mounts, "rb") as file:
            points = [re.sub(rb"\\([0-7]{3})", _unescape, line.split(b" ")[4]) for line in file]
    except OSError:
        return ()
    return tuple(os.fsdecode(point) for point in reversed(points) if point in wanted)


def has_memory(place: MpsDirectory, where: LaunchContext) -> bool:
    """Whether the memory was mounted, that of the pipes too: it is mounted first."""
    return _seen(place, place.shm, where) in find_mounts(place, where)


def reach_pipe(place: MpsDirectory, where: LaunchContext) -> str:
    """The daemon's pipes as this process reaches them, which may not see what is mounted there."""
    there = f"{where.root}{place.on_host(place.pipe)}"
    try:
        return place.pipe if not where.is_host or os.path.samefile(there, place.pipe) else there
    except OSError:
        return place.pipe


def _unescape(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8)])


def _is_whole(root: DriverRoot) -> bool:
    """Whether the driver's root is a system of its own, with devices and a shell, as a driver container's is."""
    return root.host_path != "/" and root.dev_root == root.host_path and any(map(root.resolve, SHELLS))


COMMAND = "nvidia-cuda-mps"
"""What the kernel keeps of the names of MPS programs, `nvidia-cuda-mps-control` and `-server`: 15 bytes."""

_POLL = 0.02


class Process(msgspec.Struct, frozen=True, order=True):
    """A process; `started` is in ticks since boot, which tells it from a later one with the same id."""

    started: int
    pid: int


def identify(pid: int) -> Process | None:
    """The process that has this id now; None when there is none, or it has ended and nobody asked how."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()  # the name before may have spaces and parentheses
        return None if fields[0] in "ZX" else Process(int(fields[19]), pid)
    except (OSError, ValueError, IndexError):
        return None


def is_alive(process: Process) -> bool:
    """Whether it is still this one."""
    return identify(process.pid) == process


def has_mark(pid: int, mark: str) -> bool:
    """Whether the process was started with `NAME=value` in its environment.

    May block: a process that hangs in the driver may keep its memory, where its environment is, from readers.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark.encode() in file.read().split(b"\0")
    except OSError:
        return False


def find_marked(mark: str) -> tuple[Process, ...]:
    """All processes of MPS with the mark, the oldest first. Blocks, but for no process that is not of MPS."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdecimal())
    found = (identify(pid) for pid in pids if _read_command(pid) == COMMAND and has_mark(pid, mark))
    return tuple(sorted(process for process in found if process is not None))


def _read_command(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


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


async def wait_gone(processes: Iterable[Process], seconds: float) -> tuple[Process, ...]:
    """Wait until all have ended; those that have not."""
    until = time.monotonic() + seconds
    left = tuple(process for process in processes if is_alive(process))
    while left and time.monotonic() < until:
        await asyncio.sleep(_POLL)
        left = tuple(process for process in left if is_alive(process))
    return left


def _send(process: Process, number: signal.Signals) -> None:
    """Through a descriptor, so that it is never another process that got the id meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            if is_alive(process):
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
