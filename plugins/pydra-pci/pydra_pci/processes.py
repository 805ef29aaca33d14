"""Who has a device open, from the links in /proc. Source: proc(5), namespaces(7).

The kernel waits for them without end when it is asked to take a driver from a device. Processes of containers are seen
where the tree's /proc is the node's.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping

from pydra import ClaimError
from pydra_pci.filesystem import Tree

POLL_SECONDS = 0.5
NAMED = 10
"""So many processes are named in an error."""

_FIRST_NAMESPACES = {"pid": "pid:[4026531836]", "cgroup": "cgroup:[4026531835]"}
"""Those of the node itself. Source: the kernel's include/linux/proc_ns.h. A kernel without namespaces of a kind has no
link for it, and all that runs there is the node's own."""


_CAPABILITIES = {"DAC_READ_SEARCH": 2, "SYS_PTRACE": 19}
"""What looking at another user's processes needs. Source: the kernel's include/uapi/linux/capability.h."""


_FROM_SERVERS = ("nfs", "cifs", "smb", "fuse", "ceph", "9p", "afs", "lustre", "gfs2", "ocfs2", "beegfs", "gpfs")
"""How types of file systems begin that ask a server or a process, which may not answer."""


class DeviceBusy(ClaimError):
    """Processes still use the device."""

    reason = "DeviceBusy"


class ProcessesUnseen(ClaimError):
    """Nobody can tell who uses a device: the kernel could wait without end for a process that is not seen here."""

    reason = "ProcessesUnseen"


def shows_all_processes(tree: Tree) -> bool:
    """Whether the tree's /proc has the processes of the whole node."""
    shown = tree.link(tree.proc("1/ns/pid")) or tree.link(tree.proc("self/ns/pid"))
    return shown in ("", _FIRST_NAMESPACES["pid"])


def find_own_namespaces(tree: Tree) -> tuple[str, ...]:
    """The kinds of namespaces, of `pid` and `cgroup`, that this process does not have from the node."""
    return tuple(
        kind for kind, first in _FIRST_NAMESPACES.items() if tree.link(tree.proc(f"self/ns/{kind}")) not in ("", first)
    )


def require_all_seen(tree: Tree) -> None:
    """Raises ProcessesUnseen where the tree's /proc is that of a container, or not all of it may be looked at."""
    if not shows_all_processes(tree):
        raise ProcessesUnseen(
            f"{tree.proc('')} has only the processes of the agent's container, so that a device cannot be taken from"
            " its driver safely: a process that uses it would not be seen; the admin lets the agent's pod have hostPID"
        )
    if hidden := [pid for pid in _list_pids(tree) if _is_hidden(tree, pid)]:
        more = f" and {len(hidden) - 1} more" if len(hidden) > 1 else ""
        raise ProcessesUnseen(
            f"what {read_command(tree, hidden[0])} (pid {hidden[0]}){more} may have open cannot be seen, so that"
            f" a device cannot be taken from its driver safely: {_advise()}"
        )


def _advise() -> str:
    """What lets this thread look at other processes."""
    try:
        with open("/proc/thread-self/status", encoding="utf-8", errors="replace") as status:
            effective = next((int(line.split()[1], 16) for line in status if line.startswith("CapEff:")), 0)
    except OSError:
        effective = 0
    lacking = [name for name, number in _CAPABILITIES.items() if not effective >> number & 1]
    if lacking:
        return f"the agent needs the capabilit{'ies' if len(lacking) > 1 else 'y'} {' and '.join(lacking)}"
    return (
        f"the agent has {' and '.join(_CAPABILITIES)}, but something else refuses it: an AppArmor or SELinux profile,"
        " which then has to let the agent's container look at all processes, or a user namespace (hostUsers: false)"
    )


def _is_hidden(tree: Tree, pid: int) -> bool:
    """Whether it is a process that this one may not look at; one that has ended is none.

    Without DAC_READ_SEARCH the descriptors of another user's process are not listed, without SYS_PTRACE they are listed
    and lead nowhere. Source: the kernel's fs/proc/fd.c and fs/proc/base.c.
    """
    folder = tree.proc(f"{pid}/fd")
    try:
        for name in os.listdir(folder)[:1]:
            os.readlink(os.path.join(folder, name))
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def list_users(tree: Tree, nodes: Collection[str]) -> Iterator[tuple[int, frozenset[str]]]:
    """The processes that have one of the device nodes (`/dev/nvidia0`) open, by pid, and which.

    A driver in a container has its nodes below another root, so only the end of a path counts, and that it is such a
    device: any pod can have a file of that name open. A process may end meanwhile, or not be ours to look at.
    """
    numbers = {node: _read_number(tree.here(tree.host_node(node))) for node in nodes}
    for pid in _list_pids(tree) if numbers else ():
        opened: set[str] = set()
        for name in tree.names(tree.proc(f"{pid}/fd")):
            path = tree.link(tree.proc(f"{pid}/fd/{name}")).removesuffix(" (deleted)")
            if found := [node for node in numbers if path.endswith(node)]:
                opened.update(node for node in found if _may_be_device(tree, pid, name, numbers[node]))
        if opened:
            yield pid, frozenset(opened)


def _may_be_device(tree: Tree, pid: int, descriptor: str, number: int | None) -> bool:
    """Whether what the process has open may be a device, of this number if it is known.

    A file system of a server has none, and might keep who asks it waiting.
    """
    mount = re.search(r"^mnt_id:\s*(\d+)$", tree.read(tree.proc(f"{pid}/fdinfo/{descriptor}")), re.MULTILINE)
    if mount is not None:
        mounts = tree.read(tree.proc(f"{pid}/mountinfo"))
        kind = re.search(rf"^{mount[1]} .* - (\S+)", mounts, re.MULTILINE)
        if kind is not None and kind[1].startswith(_FROM_SERVERS):
            return False
    try:
        found = os.stat(tree.proc(f"{pid}/fd/{descriptor}"))
    except OSError:  # it has been closed meanwhile, if this is the node's /proc
        return True
    return stat.S_ISCHR(found.st_mode) and number in (None, found.st_rdev)


def _read_number(path: str) -> int | None:
    """The number of a device node; None if there is none here."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_rdev if stat.S_ISCHR(found.st_mode) else None


def _list_pids(tree: Tree) -> list[int]:
    return sorted(int(name) for name in tree.names(tree.proc("")) if name.isdecimal())


def find_users(tree: Tree, nodes: Collection[str]) -> dict[int, str]:
    """The command names of the processes that have one of the device nodes open, by pid."""
    return {pid: read_command(tree, pid) for pid, _ in list_users(tree, nodes)}


def find_others(tree: Tree, nodes: Collection[str], pids: Collection[int]) -> dict[int, str]:
    """The same, with the processes `pids`, and without this one, which may have another pid in the tree's /proc."""
    users = find_users(tree, nodes)
    users |= {pid: read_command(tree, pid) for pid in pids if pid not in users}
    own = tree.link(tree.proc("self"))
    return {pid: command for pid, command in users.items() if str(pid) != own}


def read_command(tree: Tree, pid: int) -> str:
    """The process's command name."""
    return tree.read(tree.proc(f"{pid}/comm")) or "a process"


def advise_nothing(_users: Mapping[int, str]) -> str:
    """There is nothing to add to who uses a device."""
    return ""


async def wait_until_idle(
    attempt: Callable[[], Awaitable[Mapping[int, str]]],
    *,
    what: str,
    variable: str,
    deadline: float,
    advise: Callable[[Mapping[int, str]], str] = advise_nothing,
) -> None:
    """Repeat `attempt`, which does what it can do once nobody uses the device, and returns who does.

    `variable` is the setting of `deadline` (seconds); `advise` says what else to do about the users.

    Raises:
        DeviceBusy: somebody still does after `deadline` seconds.
    """
    clock = asyncio.get_running_loop().time
    end = clock() + deadline
    while users := await attempt():
        if (left := end - clock()) <= 0:
            raise DeviceBusy(
                f"{what} is still in use after {deadline:.3g} s, by {_list(users)}; stop what uses it, monitoring"
                f" agents too, or let {variable} be longer{advise(users)}"
            )
        await asyncio.sleep(min(POLL_SECONDS, left))


def _list(users: Mapping[int, str]) -> str:
    named = [f"{command} (pid {pid})" for pid, command in sorted(users.items())]
    more = [f"{len(named) - NAMED} more"] if len(named) > NAMED else []
    return ", ".join(named[:NAMED] + more)
