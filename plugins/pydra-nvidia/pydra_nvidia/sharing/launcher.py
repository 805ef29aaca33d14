"""How an MPS control daemon is started, by the setting `mps_launcher`. Pure, but for a look at the driver's root.

DIRECT, for an agent that runs on the host itself: in a session of its own, its files at their places. HOST, for an
agent in a container (it needs hostPID, and privileges): in the namespaces of process 1 and out of the container's
control groups. Either way the daemon's /dev/shm is the directory that its clients get as theirs, which MPS needs. A
driver that is installed in a container has its own device nodes and libraries, so the daemon gets that root.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import msgspec

from pydra_nvidia.host.driver_root import DriverRoot
from pydra_nvidia.settings import MpsLauncher
from pydra_nvidia.sharing import launch
from pydra_nvidia.sharing.places import MpsPlace
from pydra_nvidia.sharing.programs import SYSTEM_PATH, Program, find_environment

NAMESPACES = tuple(f"/proc/1/ns/{name}" for name in ("cgroup", "ipc", "uts", "net", "pid", "mnt"))
"""The mount namespace last: the others' names are of this one."""

SHELLS = ("/usr/bin/sh", "/bin/sh")
PIPE_INSIDE, LOG_INSIDE = "/tmp/nvidia-mps", "/var/log/nvidia-mps"  # noqa: S108 - the names that MPS itself has
MARK = "PYDRA_NVIDIA_MPS"
"""Variable of the daemon and its servers: their daemon's directory on this node, by which they are known as ours."""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What `launch` does, in this order.

    Enter `namespaces`; leave the control groups; unmount; mount tmpfs of these sizes; bind directories (source to
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
        return (sys.executable, "-I", launch.__file__, msgspec.json.encode(self).decode())


def plan_mount(place: MpsPlace, size: str, how: MpsLauncher) -> Launch:
    """Memory of its own for the daemon and its clients, in the view that clients are started from."""
    return Launch(namespaces=_namespaces(how), tmpfs={_seen(place, place.shm, how): size})


def plan_unmount(place: MpsPlace, how: MpsLauncher) -> Launch:
    """The contrary."""
    return Launch(namespaces=_namespaces(how), unmount=(_seen(place, place.shm, how),))


def plan_daemon(
    place: MpsPlace,
    program: Program,
    root: DriverRoot,
    how: MpsLauncher,
    *,
    devices: tuple[str, ...],
    multi_user: bool,
) -> Launch:
    """The control daemon, which goes into the background by itself."""
    outside = root.path_on_host if how is MpsLauncher.HOST else root.path_here
    shm, pipe, log = (_seen(place, path, how) for path in (place.shm, place.pipe, place.log))
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
        namespaces=_namespaces(how),
        leave_cgroups=how is MpsLauncher.HOST,
        binds=binds,
        root=new_root,
        argv=(argv0, "-d", *(("-M",) if multi_user else ())),
        environment=environment,
    )


def _namespaces(how: MpsLauncher) -> tuple[str, ...]:
    return NAMESPACES if how is MpsLauncher.HOST else ()


def _seen(place: MpsPlace, path: str, how: MpsLauncher) -> str:
    return place.on_host(path) if how is MpsLauncher.HOST else path


def _is_whole(root: DriverRoot) -> bool:
    """Whether the driver's root is a system of its own, with devices and a shell, as a driver container's is."""
    return root.host_path != "/" and root.dev_root == root.host_path and any(map(root.resolve, SHELLS))
