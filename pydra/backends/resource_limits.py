"""Limits what a backend's process uses: in a cgroup of its own, or, for memory, by looking.

A cgroup, whose limits the kernel enforces, needs cgroup v2 that the agent may write to: in Kubernetes a privileged
container. Source: Documentation/admin-guide/cgroup-v2.rst of the kernel.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pydra.quantity import parse_quantity
from pydra.settings import ProcessRights

MOUNT = Path("/sys/fs/cgroup")

_AGENT = "pydra-agent"
"""The cgroup that the agent itself moves to: one with limits below it must not have processes."""

_CPU_PERIOD = 100_000
"""Microseconds in which a process may use its share of CPU time; the kernel's default."""

_OWN_MEMORY = re.compile(r"^(?:RssAnon|RssShmem|VmSwap):\s*(\d+) kB$", re.MULTILINE)


class CgroupUnavailable(Exception):
    """The agent cannot make cgroups; the message says why."""


def create_cgroup(name: str, rights: ProcessRights) -> Path:
    """Make a cgroup for a process of this backend, with its limits, and return the directory.

    It is below the agent's own, which still counts and limits both. Those of earlier processes are removed, unless what
    they started still runs.

    Raises:
        CgroupUnavailable: there is no cgroup v2 that the agent may write to.
    """
    limits = dict(_build_limits(rights))
    try:
        parent = _make_room(_find_own())
        for earlier in parent.glob(f"{name}@*"):
            with suppress(OSError):
                earlier.rmdir()
        controllers = sorted({file.partition(".")[0] for file in limits})
        (parent / "cgroup.subtree_control").write_text(" ".join(f"+{one}" for one in controllers))
        directory = Path(tempfile.mkdtemp(prefix=f"{name}@", dir=parent))
        for file, text in limits.items():
            (directory / file).write_text(text)
    except OSError as error:
        raise CgroupUnavailable(str(error)) from error
    return directory


def has_oom_kill(directory: Path) -> bool:
    """Return whether the kernel killed a process of this cgroup for lack of memory."""
    try:
        events = dict(line.split() for line in _read_lines(directory, "memory.events"))
    except OSError:
        return False
    return events.get("oom_kill", "0") != "0"


def find_memory_excess(pid: int, rights: ProcessRights) -> str:
    """Return by how much the process exceeds its limit of memory; empty if it does not, or has none, or has ended.

    Counted is what it has in memory or swapped out, shared memory too: neither files and libraries nor what it started.
    Source: proc_pid_status(5).
    """
    if rights.memory_limit is None:
        return ""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    used = sum(int(kilobytes) for kilobytes in _OWN_MEMORY.findall(status)) * 1024
    if used <= parse_quantity(rights.memory_limit):
        return ""
    return f"{used // 2**20} MiB, and its memoryLimit is {rights.memory_limit}"


def _build_limits(rights: ProcessRights) -> Iterator[tuple[str, str]]:
    if rights.memory_limit is not None:
        yield "memory.max", str(int(parse_quantity(rights.memory_limit)))
    if rights.cpu_limit is not None:
        yield "cpu.max", f"{int(parse_quantity(rights.cpu_limit) * _CPU_PERIOD)} {_CPU_PERIOD}"
    if rights.pids_limit is not None:
        yield "pids.max", str(rights.pids_limit)


def _find_own() -> Path:
    """Return the directory of the agent's cgroup, or of the one that it was started in."""
    found = [line for line in _read_lines(Path("/proc/self"), "cgroup") if line.startswith("0::")]
    if not found or not (MOUNT / "cgroup.controllers").exists():
        raise CgroupUnavailable(f"cgroup v2 is not mounted at {MOUNT}")
    own = MOUNT / found[0].removeprefix("0::/")
    if own == MOUNT and not (MOUNT / "cgroup.type").exists():
        raise CgroupUnavailable("the agent is in the root of all cgroups, which has no limits")
    if not os.access(own, os.W_OK):
        raise CgroupUnavailable(f"{own} is read-only, as in containers that are not privileged")
    return own.parent if own.name == _AGENT else own


def _make_room(own: Path) -> Path:
    """Move the agent and what it started to a cgroup below, and return the one that may have limits below it now."""
    processes = [int(line) for line in _read_lines(own, "cgroup.procs")]
    if others := [pid for pid in processes if not _is_own(pid)]:
        raise CgroupUnavailable(f"processes that the agent did not start are in {own} (pid {others[0]})")
    (own / _AGENT).mkdir(exist_ok=True)
    for pid in processes:
        with suppress(ProcessLookupError):
            (own / _AGENT / "cgroup.procs").write_text(str(pid))
    return own


def _is_own(pid: int) -> bool:
    """Return whether this is the agent, something that it started, or a process that has ended."""
    while pid != os.getpid():
        try:
            status = _read_lines(Path("/proc", str(pid)), "status")
        except OSError:
            return pid != 0  # 0 is a process outside of the container
        pid = next(int(line.split()[1]) for line in status if line.startswith("PPid:"))
        if pid == 0:
            return False
    return True


def _read_lines(directory: Path, name: str) -> list[str]:
    return (directory / name).read_text(encoding="utf-8", errors="replace").splitlines()
