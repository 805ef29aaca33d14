"""Who has a device open: the kernel waits for them without end when it is told to take a driver from a device.

Source: proc(5), /proc/<pid>/fd. Processes of containers are seen where the tree's /proc is the node's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

from pydra import ClaimError
from pydra_nvidia.host.filesystem import Tree, shows_all_processes

POLL_SECONDS = 0.5
NAMED = 10
"""So many processes are named in an error."""

_PERSISTENCED = "nvidia-persiste"
"""What the kernel keeps of its name."""


class DeviceBusy(ClaimError):
    """Processes still use the device."""

    reason = "DeviceBusy"


class ProcessesUnseen(ClaimError):
    """Nobody can tell who uses a device: the kernel could wait without end for a process that is not seen here."""

    reason = "ProcessesUnseen"


def require_all_seen(tree: Tree) -> None:
    """Raises ProcessesUnseen where the tree's /proc is that of a container."""
    if not shows_all_processes(tree):
        raise ProcessesUnseen(
            f"{tree.proc('')} has only the processes of the agent's container, so that a GPU cannot be taken from its"
            " driver safely: a process that uses it would not be seen; the admin lets the agent's pod have hostPID"
        )


def find_users(tree: Tree, nodes: Collection[str]) -> dict[int, str]:
    """The command names of the processes that have one of the device nodes (`/dev/nvidia0`) open, by pid.

    A driver in a container has its nodes below another root, so only the end of a path counts.
    """
    ends = tuple(nodes)
    found: dict[int, str] = {}
    for name in tree.names(tree.proc("")) if ends else ():
        if name.isdecimal() and _holds(tree, tree.proc(f"{name}/fd"), ends):
            found[int(name)] = read_command(tree, int(name))
    return found


def own_pid(tree: Tree) -> int | None:
    """This process in the tree's /proc, where it may have another pid than it knows of; None when it is not there."""
    link = tree.link(tree.proc("self")) or ""
    return int(link) if link.isdecimal() else None


def read_command(tree: Tree, pid: int) -> str:
    """The process's command name."""
    return tree.read(tree.proc(f"{pid}/comm")) or "a process"


async def wait_until_idle(
    attempt: Callable[[], Awaitable[Mapping[int, str]]], *, what: str, variable: str, deadline: float
) -> None:
    """Repeat `attempt`, which does what it can do once nobody uses the device, and returns who does.

    Raises:
        DeviceBusy: somebody still does after `deadline` seconds.
    """
    clock = asyncio.get_running_loop().time
    end = clock() + deadline
    while users := await attempt():
        if (left := end - clock()) <= 0:
            raise DeviceBusy(
                f"{what} is still in use after {deadline:.3g} s, by {_list(users)}; stop what uses it, monitoring"
                f" agents too, or let {variable} be longer{_advise(users)}"
            )
        await asyncio.sleep(min(POLL_SECONDS, left))


def _holds(tree: Tree, folder: str, ends: tuple[str, ...]) -> bool:
    links = (tree.link(f"{folder}/{descriptor}") for descriptor in tree.names(folder))
    return any((link or "").removesuffix(" (deleted)").endswith(ends) for link in links)


def _advise(users: Mapping[int, str]) -> str:
    if _PERSISTENCED not in users.values():
        return ""
    return (
        "; nvidia-persistenced is told to release the GPU where its socket is found, below the driver's root or"
        " PYDRA_HOST_ROOT: mount the host's / there, or stop the daemon"
    )


def _list(users: Mapping[int, str]) -> str:
    named = [f"{command} (pid {pid})" for pid, command in sorted(users.items())]
    more = [f"{len(named) - NAMED} more"] if len(named) > NAMED else []
    return ", ".join(named[:NAMED] + more)
