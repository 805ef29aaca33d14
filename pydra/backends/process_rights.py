"""Determines which of the agent's rights a backend's process gets, and whether it uses more memory than it may."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from pydra.quantity import parse_quantity
from pydra.settings import ProcessRights

CHILD = "pydra.backends.child.main"
"""The module that a backend's process runs."""

_BECOME_USER = Path(__file__).parent / "child" / "become_user.py"
_AGENTS_OWN = ("KUBECONFIG", "PYDRA_KUBECONFIG")
_AGENTS_OWN_PREFIXES = ("KUBERNETES_SERVICE_", "KUBERNETES_PORT", "OTEL_")
_OWN_MEMORY = re.compile(r"^(?:RssAnon|VmSwap):\s*(\d+) kB$", re.MULTILINE)


def build_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a backend's process: all but those that lead to the agent's credentials.

    Left out are where the API server and a kubeconfig are, and tracing, whose headers may have a token: a backend talks
    to neither.
    """
    return {
        name: text
        for name, text in environ.items()
        if name not in _AGENTS_OWN and not name.startswith(_AGENTS_OWN_PREFIXES)
    }


def build_command(target: str, fd: int, *, parent: int, rights: ProcessRights, program: str) -> list[str]:
    """Return the command line of a backend's process.

    `-u`: its last output is seen even if it crashes. `-P`: its module path has PYTHONPATH, but not the working
    directory. What makes it another user reads neither PYTHONPATH nor site-packages (`-I`, `-S`), whose code would run
    with the agent's rights.
    """
    command = [
        *(sys.executable, "-X", "faulthandler", "-u", "-P"),
        *("-m", program, str(fd), str(parent), target),
    ]
    if rights.run_as_user is None:
        return command
    group = rights.run_as_user if rights.run_as_group is None else rights.run_as_group
    groups = ",".join(map(str, rights.supplemental_groups))
    return [sys.executable, "-I", "-S", str(_BECOME_USER), str(rights.run_as_user), str(group), groups, *command]


def find_memory_excess(pid: int, rights: ProcessRights) -> str:
    """Return by how much the process exceeds its limit of memory; empty if it does not, or has none, or has ended.

    Counted is what only this process has, in memory or swapped out: neither files and libraries nor what it started.
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
