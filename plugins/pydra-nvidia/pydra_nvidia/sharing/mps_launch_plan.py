"""What `mps_launcher` does to start an MPS control daemon, by the setting of that name.

DIRECT, for an agent that runs on the host itself: in a session of its own, its files at their places. HOST, for an
agent in a container (it needs hostPID, and privileges): in the namespaces of process 1. Either way the daemon leaves
the agent's control groups, with which it would be ended, and its /dev/shm is the directory that its clients get as
theirs, which MPS needs. What clients can write to, that and the pipes, is memory of limited size, for the node's /run
is limited too. A driver that is installed in a container has its own device nodes and libraries, so the
daemon gets that root.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

import msgspec

from pydra_nvidia.host.driver_programs import SYSTEM_PATH, Program, find_environment
from pydra_nvidia.host.driver_root import DriverRoot
from pydra_nvidia.settings import MpsLauncher
from pydra_nvidia.sharing import mps_launcher
from pydra_nvidia.sharing.mps_directory import MpsDirectory
from pydra_nvidia.sharing.mps_processes import MARK

SHELLS = ("/usr/bin/sh", "/bin/sh")
PIPE_INSIDE, LOG_INSIDE = "/tmp/nvidia-mps", "/var/log/nvidia-mps"  # noqa: S108 - the names that MPS itself has
PIPE_OPTIONS = "size=1m,nr_inodes=1k,mode=755,nosymfollow"
"""Of the memory that the pipes are in: two sockets, a lock, a fifo, a file with a number. Links are not followed: a
daemon that is started again writes as user 0 of the host, and a client may have put some in its files' places."""


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
        return (sys.executable, "-IS", mps_launcher.__file__, msgspec.json.encode(self).decode())


def plan_mount(place: MpsDirectory, size: str, where: LaunchContext) -> Launch:
    """Memory of its own for the daemon and its clients, in the view that clients are started from.

    The pipes' first: where the other is mounted, nothing is missing.
    """
    pipe, shm = _seen(place, place.pipe, where), _seen(place, place.shm, where)
    return Launch(namespaces=where.namespaces, tmpfs={pipe: PIPE_OPTIONS, shm: f"size={size},mode=1777"})


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
    wanted = {_seen(place, path, where) for path in (place.pipe, place.shm)}
    return tuple(point for point in _list_mounts(where) if point in wanted)


def find_copies(place: MpsDirectory) -> tuple[str, ...]:
    """The same below any directory of this process: its view of the host's / may keep what the host has unmounted."""
    ends = tuple(place.on_host(path) for path in (place.pipe, place.shm))
    return tuple(point for point in _list_mounts(LaunchContext()) if point.endswith(ends))


def _list_mounts(where: LaunchContext) -> list[str]:
    try:
        with open(where.mounts, "rb") as file:
            points = [re.sub(rb"\\([0-7]{3})", _unescape, line.split(b" ")[4]) for line in file]
    except OSError:
        return []
    return [os.fsdecode(point) for point in reversed(points)]


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
