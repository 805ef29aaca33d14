"""A program of its own: enters the namespaces and the root that it is given, and becomes another program there.

    python -IS mps_launcher.py '{"namespaces": ["/proc/1/ns/mnt"], "argv": ["/usr/bin/..."], ...}'

It leaves the container that it was started in (namespaces, control groups), sees some directories under other names
(binds), and changes its root, so that MPS daemons outlive the agent's container and use the driver's own files. It
does with system calls what nsenter, unshare, mount and chroot would, which not every node's system has. Standard
library only, and everything is imported before the root changes. What each field means is in `mps_launch_plan.Launch`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

TYPE_CHECKING = False  # typing's own would cost a third of the start
if TYPE_CHECKING:
    from typing import Any

CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MS_NOSYMFOLLOW = 256  # since Linux 5.10; older kernels ignore it
MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def launch(plan: dict[str, Any]) -> int:
    """Carry the plan out; returns only when there is no program to become, or with the status of its first process."""
    entered = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in plan["namespaces"]]
    for descriptor in entered:
        _call("setns", descriptor, 0)
    if plan["leave_cgroups"]:
        _leave_cgroups(required=bool(entered))
    for target in plan["unmount"]:
        _call("umount2", target.encode(), MNT_DETACH)
    for target, options in plan["tmpfs"].items():
        given = options.split(",")
        flags = MS_NOSUID | MS_NODEV | MS_NOEXEC | ("nosymfollow" in given and MS_NOSYMFOLLOW)
        data = ",".join(one for one in given if one != "nosymfollow")
        _call("mount", b"mps", target.encode(), b"tmpfs", flags, data.encode())
    if not plan["argv"]:
        return 0
    if plan["binds"]:
        _bind(plan["binds"], required=plan["root"] != "" or bool(entered))
    if plan["root"]:
        os.chroot(plan["root"])
    os.chdir("/")
    if entered and (child := os.fork()):  # a process id namespace is entered by children only
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return os.execve(plan["argv"][0], plan["argv"], plan["environment"])  # noqa: S606 - no shell is wanted


def _bind(binds: dict[str, str], *, required: bool) -> None:
    """See each directory under the other name too, in a mount namespace that nobody shares."""
    try:
        _call("unshare", CLONE_NEWNS)
        _call("mount", None, b"/", None, MS_REC | MS_PRIVATE, None)
        for source, target in binds.items():
            os.makedirs(target, exist_ok=True)
            _call("mount", source.encode(), target.encode(), None, MS_BIND, None)
    except PermissionError as error:
        if required:
            raise
        sys.stderr.write(f"going on without directories of its own, which are not permitted: {error}\n")


def _leave_cgroups(*, required: bool) -> None:
    """Move to the root of each hierarchy: what ends the agent's service or container then does not end this."""
    root = "/sys/fs/cgroup"
    unified = os.path.exists(f"{root}/cgroup.controllers")
    for path in [root] if unified else [f"{root}/{name}" for name in sorted(os.listdir(root))]:
        try:
            with open(f"{path}/cgroup.procs", "w", encoding="ascii") as file:
                file.write("0")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if required:
                raise
            sys.stderr.write(f"going on in the control groups of the agent, and ending with them: {error}\n")
            return


def _call(name: str, *arguments: Any) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        code = ctypes.get_errno()
        shown = ", ".join(repr(one) for one in arguments)
        raise OSError(code, f"{name}({shown}): {os.strerror(code)}")


if __name__ == "__main__":
    try:
        sys.exit(launch(json.loads(sys.argv[1])))
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
